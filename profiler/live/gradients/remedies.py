"""Fix for a wrong gradient: one sentence, and the code if it is short."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardtoll.ledger import Cause, Remedy
from shardtoll.profiler.live.gradients.diagnosis import Diagnosis, loss_scale
from shardtoll.profiler.live.gradients.shards import Partition

_PLAIN: Final[Mapping[Cause, tuple[str, str]]] = {
    "missing": (
        "Find out why backward misses the parameter on these ranks: detach(), .data, a local shard outside "
        "autograd, no_sync, or set_requires_gradient_sync(False).",
        "{get}.register_hook(lambda grad: print(dist.get_rank(), grad.norm()))  # does backward reach it?",
    ),
    "extra": (
        "Clear gradients before the check: this one may be left from an earlier step. If it stays, the "
        "distributed model uses the parameter and the unsharded one does not.",
        "optimizer.zero_grad()",
    ),
    "zero": (
        "Look for what clears or cuts off the gradient: detach(), a mask, or zero_grad between backward and "
        "this check. The parameter is used.",
        "{get}.register_hook(lambda grad: print(dist.get_rank(), grad.norm()))  # zero already here?",
    ),
    "not-finite": (
        "Look for an overflow on these ranks: float16 without loss scaling, a division by a local count of "
        "zero, log of an empty shard.",
        "with torch.autograd.detect_anomaly():  # names the operator\n    loss.backward()",
    ),
    "unknown": (
        "Make sure that loss(reference) is the loss of the same global batch, with dropout off. Then check "
        "a part of the model at a time until one module remains.",
        "model.eval()  # no dropout\ncheck_gradients({module}, reference_part, loss_of_part)",
    ),
}


def _get(name: str) -> str:
    return f"model.get_parameter({json.dumps(name)})"


def remedy_of(
    diagnosis: Diagnosis,
    name: str,
    *,
    partition: Partition | None,
    partial_hidden: bool,
    wrapper: str | None,
    weights_differ: bool,
    holders: Sequence[int],
) -> Remedy:
    """Return the remedy for one parameter.

    `partial_hidden`: a DTensor whose placements claim Replicate over the partition. `wrapper`: what should
    have reduced it, by name. `weights_differ`: the ranks' weights were not equal before the gradient was.
    `holders`: the ranks that hold the parameter.
    """
    if diagnosis.cause == "missing-reduction":
        assert partition is not None
        if partial_hidden:
            return _declare_partial(diagnosis, name, partition)
        return _reduce(diagnosis, name, partition, wrapper, holders)
    if diagnosis.cause == "wrong-scale":
        return _rescale(diagnosis, name)
    if diagnosis.cause == "replicas-differ":
        return _make_equal(name, weights_differ)
    text, code = _PLAIN[diagnosis.cause]
    part = name.rpartition(".")[0]
    where = f"model.get_submodule({json.dumps(part)})" if part else "model"
    return Remedy(text, code.replace("{get}", _get(name)).replace("{module}", where))


def for_all(remedy: Remedy, name: str, count: int) -> Remedy:
    """Return the remedy with its code in a loop if several parameters need it, not `name` alone."""
    getter = _get(name)
    if count == 1 or remedy.code is None or getter not in remedy.code:
        return remedy
    body = remedy.code.replace(getter, "parameter").replace("\n", "\n    ")
    code = f"for parameter in model.parameters():  # the {count} of this finding\n    {body}"
    return replace(remedy, code=code)


def _declare_partial(diagnosis: Diagnosis, name: str, partition: Partition) -> Remedy:
    local = name.rpartition(".")[2]
    local = local if local.isidentifier() else _get(name)
    kind = 'Partial("avg")' if diagnosis.factor_name == "mean" else "Partial()"
    return Remedy(
        f"Declare the gradient as Partial over {partition.label}: it is treated as Replicate. Do so where "
        "the DTensor becomes a local tensor; DTensor then reduces it.",
        f"{local}.to_local(grad_placements=[{kind}])",
    )


def _reduce(
    diagnosis: Diagnosis, name: str, partition: Partition, wrapper: str | None, holders: Sequence[int]
) -> Remedy:
    if wrapper is not None:
        return Remedy(
            f"Leave no_sync() for the last micro-batch's forward: {wrapper} did not reduce this gradient. "
            "Wrap the model once all its parameters exist.",
            "with contextlib.nullcontext() if is_last_micro_batch else model.no_sync():\n"
            "    loss = loss_of(model(micro_batch))",
        )
    group = f', group=mesh.get_group("{partition.mesh_dim}")' if partition.mesh_dim else ""
    if len(holders) < len(partition.ranks) == partition.size:
        return _reduce_where_held(diagnosis, name, list(holders))
    gradient = f"{_get(name)}.grad"
    code = f"dist.all_reduce({gradient}{group})"
    if diagnosis.factor_name == "mean":
        code = f"dist.all_reduce({gradient}, op=dist.ReduceOp.AVG{group})"
    elif diagnosis.factor_name != "sum":
        code = f"{code}; {gradient} /= {diagnosis.factor:.4g}"
    return Remedy(f"Reduce the gradient over {partition.label} after backward, before the optimizer.", code)


def _reduce_where_held(diagnosis: Diagnosis, name: str, holders: list[int]) -> Remedy:
    mean = ", op=dist.ReduceOp.AVG" if diagnosis.factor_name == "mean" else ""
    return Remedy(
        "Reduce the gradient over the ranks that hold the parameter, after backward and before the "
        "optimizer. Each may have its own name for it if weights are tied across pipeline stages.",
        f"group = dist.new_group({holders})  # once, on every rank\n"
        f"if dist.get_rank() in {holders}:\n"
        f"    dist.all_reduce({_get(name)}.grad{mean}, group=group)",
    )


def _rescale(diagnosis: Diagnosis, name: str) -> Remedy:
    assert diagnosis.factor is not None
    factor, factor_name = diagnosis.factor, diagnosis.factor_name or ""
    divide = f"{_get(name)}.grad /= {factor:.4g}"
    if factor_name.startswith("1 /"):
        return Remedy(
            "Make every rank's loss a mean over its own samples: DDP and FSDP2 average gradients, and these "
            "should be added. If the loss is the rank's share of the global mean already, multiply it by the "
            "number of ranks.",
            f"loss = loss * {1 / factor:.4g}",
        )
    if factor_name:
        return Remedy(
            "Reduce with AVG: the ranks' gradients are added and should be averaged. Or divide the loss by "
            "the global number of samples instead of the local one.",
            divide,
        )
    if loss_scale(factor):
        return Remedy(
            "Compare the two losses, or unscale before the check. One may be a sum and the other a mean, "
            "or a gradient scaler's factor is in it.",
            "scaler.unscale_(optimizer)",
        )
    return Remedy(
        "Compare how the two losses are normalised: micro-batches, padding, "
        "sequence length, samples per rank.",
        divide,
    )


def _make_equal(name: str, weights_differ: bool) -> Remedy:
    if weights_differ:
        return Remedy(
            f"Make the ranks' weights {name} equal once: they differ already. Then reduce their gradient "
            "over these ranks in every step.",
            f"dist.broadcast({_get(name)}.data, src=0)",
        )
    return Remedy(
        "Find what only some ranks do to this gradient: a condition on the rank, a hook, clipping, a "
        "skipped reduction. Do it on all of them.",
        f"dist.all_reduce({_get(name)}.grad)",
    )
