"""Remedies if replicas do not agree: one sentence, and the code to write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import Case
from shardtoll.analyzers.findings.replicas.replicas import Replicas
from shardtoll.analyzers.shared import remedy_code
from shardtoll.analyzers.shared.remedy_code import on_group, parameter
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Finding, Remedy


def gradient_remedy(
    replicas: Replicas, case: Case, names: Sequence[str], mesh_dim: str | None, factor: float | None
) -> Remedy:
    """Return what to do about gradients of the named parameters that differ between replicas."""
    if case in ("parts", "classes"):
        if replicas.basis == "placements":
            return _declare_partial(names, mesh_dim)
        if replicas.wrapper is not None:
            return _under_wrapper(replicas)
        return Remedy(
            "Reduce the gradient over these ranks after backward, before the optimizer: each rank holds "
            "only a part. SUM if all ranks share one loss, AVG if each rank's loss is a mean of its own "
            "samples.",
            reduce_code(names, mesh_dim),
        )
    if case == "scale":
        return Remedy(
            "Divide by the same number on all ranks, before the reduction: some scale their gradient or "
            "their loss, and others do not.",
            f"loss = loss / {factor:.4g}  # on the ranks whose gradient is too large" if factor else None,
        )
    if case == "not-finite":
        return Remedy(
            "Check torch.isfinite of the gradient, and skip the step on all ranks or on none. These ranks "
            "alone "
            "may have float16 without loss scaling, a division by a local count of zero, log of an empty "
            "shard.",
            f"bad = (~torch.isfinite({parameter(names[0])}.grad)).any().float()\n"
            "dist.all_reduce(bad, op=dist.ReduceOp.MAX)  # then all ranks skip the step, or none",
        )
    return Remedy(
        "Search the forward for detach(), .data, a local shard outside autograd, or a branch on the rank: "
        "backward misses the parameter on these ranks. Then reduce the gradient over all replicas, with "
        "zeros from ranks that have none.",
        f"parameter = {parameter(names[0])}\n"
        "if parameter.grad is None:\n"
        "    parameter.grad = torch.zeros_like(parameter)\n"
        f"dist.all_reduce(parameter.grad{on_group(mesh_dim)})",
    )


def reduce_code(names: Sequence[str], mesh_dim: str | None) -> str:
    """Return code that reduces the gradients of the named parameters by hand."""
    group = on_group(mesh_dim)
    if len(names) == 1:
        gradient = f"{parameter(names[0])}.grad"
        return f"dist.all_reduce({gradient}{group})  # op=dist.ReduceOp.AVG for a local mean loss"
    return (
        f"for parameter in model.parameters():  # the {len(names)} of this finding\n"
        f"    dist.all_reduce(parameter.grad{group})  # op=dist.ReduceOp.AVG for a local mean loss"
    )


def _declare_partial(names: Sequence[str], mesh_dim: str | None) -> Remedy:
    name = names[0]
    module, _, local = name.rpartition(".")
    dim = f' over mesh dim "{mesh_dim}"' if mesh_dim else ""
    return Remedy(
        f"Declare the gradient as Partial{dim}: it is treated as Replicate. Do so where the DTensor (the "
        "parameter, or what was computed from it) becomes a local tensor, with "
        "to_local(grad_placements=[Partial()]): DTensor then reduces it. Or redistribute, or all_reduce the "
        "local gradient once, before the optimizer.",
        f"y = {remedy_code.module(module)}(x).to_local(grad_placements=[Partial()])\n"
        f"# or {local}.to_local(...) likewise\n"
        "# or, before optimizer.step():\n"
        f"dist.all_reduce({parameter(name)}.grad.to_local(){on_group(mesh_dim)})",
    )


def _under_wrapper(replicas: Replicas) -> Remedy:
    if replicas.wrapper == "DDP":
        return Remedy(
            "Leave no_sync() for the forward and backward of the last micro-batch: DDP did not reduce this "
            "gradient. Call the wrapped model and not its module. Write no gradient after backward on some "
            "ranks only.",
            "with contextlib.nullcontext() if is_last_micro_batch else model.no_sync():\n"
            "    loss_of(model(batch)).backward()  # model: the DDP object itself",
        )
    return Remedy(
        f"Let {replicas.wrapper} sync on the last micro-batch: it did not reduce this gradient.",
        "model.set_requires_gradient_sync(is_last_micro_batch)",
    )


def drift_remedy(replicas: Replicas, *, gradient_differs: bool, buffer: bool) -> Remedy:
    """Return what to do about replicas that hold different values."""
    name = replicas.name
    source = f"{replicas.ranks[0]}"
    group = on_group(replicas.mesh_dim)
    if buffer:
        return Remedy(
            "Reduce the buffer, or synchronise the statistics, if checkpoints or evaluation use it: each "
            "rank updates it from its own batch.",
            f'dist.all_reduce(model.get_buffer("{name}"), op=dist.ReduceOp.AVG{group})',
        )
    local = f"{parameter(name)}.to_local()" if replicas.basis == "placements" else f"{parameter(name)}.data"
    once_more = f"dist.broadcast({local}, src={source}{group})"
    if gradient_differs:
        return Remedy(
            "Fix the replicas' gradients first (see wrong-gradient of this parameter), then make the "
            "values equal once.",
            once_more,
        )
    return Remedy(
        "Make the values equal once, then search for other code that writes the parameter: its gradients "
        "agree. "
        "It may be a seed per rank, a checkpoint loaded on some ranks, different optimizer states or "
        "clipping, random in-place changes.",
        once_more,
    )


EITHER: Final = re.compile(r"\.grad\)  # op=dist\.ReduceOp\.AVG for a local mean loss")
"""An all_reduce over all ranks that leaves open whether to add up or to average."""
AVERAGED: Final = ".grad, op=dist.ReduceOp.AVG)  # as the wrapper does with the others"


def wrapped(context: Context, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with code that fits the wrapped model.

    DDP's object knows a parameter under its module. If a gradient is reduced by hand over the ranks over
    which a wrapper averages its siblings, it has to be averaged too.
    """
    table = context.model
    table = keep(table, table["wrapper"].notna() & table["group"].notna())
    if table.empty:
        return list(findings)
    ddp = bool((table["wrapper"] == "DDP").any())
    groups = table[["group", "rank"]].drop_duplicates().itertuples(index=False)
    averaging = {context.members.get((str(group), int(rank))) for group, rank in groups}
    return [_fitting(finding, ddp, finding.ranks in averaging) for finding in findings]


def _fitting(finding: Finding, ddp: bool, averaged: bool) -> Finding:
    if finding.remedy is None or finding.remedy.code is None:
        return finding
    code = finding.remedy.code
    if averaged:
        code = EITHER.sub(AVERAGED, code)
    if ddp:
        code = code.replace("model.get_parameter(", "model.module.get_parameter(")
    return replace(finding, remedy=replace(finding.remedy, code=code))
