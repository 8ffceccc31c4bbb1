"""Remedies for work done several times: a mistake to fix, or a choice with its price and alternative."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from shardtoll.ledger import Remedy
from shardtoll.ledger.words.human import duration, size, some_time

_STATE: Final = re.compile(r"state u8\[(\d+)\]")

CHOICES: Final = ("norm", "loss", "embedding", "optimizer")
"""Work that every rank of a group is often meant to repeat."""


class Told(Struct, frozen=True):
    """Facts known of a family of operators that several ranks repeat."""

    why: str
    """`norm`, `loss`, `embedding`, `optimizer`, `data` (all ranks had equal inputs), or empty."""
    op: str
    ways: int
    """Ranks that did the same."""
    dims: str | None
    ranks: str
    module: str | None
    parameter: str | None
    phases: tuple[str, ...]
    toll: int | None
    state_bytes: int | None
    modules: tuple[str, ...]
    inputs_seen: bool
    """The inputs of the model were looked at and found equal: another finding says so."""


def is_choice(case: Told) -> bool:
    """Whether it is usually intended, or reported as a warning elsewhere."""
    return case.why in CHOICES or case.inputs_seen


def state_bytes(shapes: str | None) -> int | None:
    """Return the bytes of an optimizer's states, from the shapes of its record."""
    sizes = [int(text) for text in _STATE.findall(shapes or "")]
    return sum(sizes) if sizes else None


_SUBJECTS: Final = {
    "norm": "normalisation",
    "loss": "the loss over all classes",
    "embedding": "the embedding's gradient",
}


def title(case: Told, where: str, done: str, needed: str) -> str:
    """Return one sentence; `where` as ` in mlp at train.py:3`, `done` and `needed` as `8 MFLOP`."""
    phases = " and ".join(case.phases)
    over = f"{case.ranks} ({case.dims})" if case.dims else case.ranks
    if case.why == "data":
        return (
            f"all operators compute the same on {over}, {done} where {needed} are needed: "
            "those ranks were given the same data"
        )
    if case.why == "optimizer":
        held = "" if not case.state_bytes else f" and keeps the same {size(case.state_bytes)} of states"
        return (
            f"a choice: each of {case.ways} replicas makes the same update{held}, {some_time(case.toll)} "
            f"per step that they could share, on {over}"
        )
    if case.why in _SUBJECTS:
        return (
            f"a choice: {_SUBJECTS[case.why]} is computed {case.ways} times in {phases}, on {over}: "
            f"{done} where {needed} are needed, {some_time(case.toll)} per step"
        )
    return (
        f"{case.op}{where} does the same work {case.ways} times in {phases}, on {over}: "
        f"{done} where {needed} are needed"
    )


def _counterfactual(case: Told) -> str | None:
    if case.toll is None:
        return None
    return (
        f"each of {case.ways} ranks doing 1/{case.ways} of the work "
        f"({duration(case.toll)} less), whatever it takes to bring the parts together not counted"
    )


def _mesh(case: Told) -> str:
    return f'mesh["{case.dims}"]' if case.dims and "," not in case.dims else "mesh"


def remedy(case: Told) -> Remedy:
    """Return what to write instead, and at what price."""
    text, code = _written(case)
    return Remedy(text=text, code=code, counterfactual=_counterfactual(case))


def _written(case: Told) -> tuple[str, str]:
    over = f" over {case.dims}" if case.dims else ""
    name = case.module or ""
    if case.why == "data":
        return (
            "Give each rank its own data: fingerprints of all operators' inputs are equal. Until then all "
            "data-parallel ranks but one do no useful work, and the batch is one rank's.",
            "sampler = DistributedSampler(dataset, num_replicas=dp_size, rank=dp_rank)\n"
            "loader = DataLoader(dataset, batch_size, sampler=sampler)  # and sampler.set_epoch(epoch)",
        )
    if case.why == "optimizer":
        spared = ""
        if case.state_bytes:
            each = case.state_bytes - case.state_bytes // case.ways
            spared = f" and {size(each)} of states on each rank"
        return (
            f"Shard the optimizer's work: that spares up to {some_time(case.toll)} per step{spared}. It "
            "costs a broadcast or all_gather of the updated parameters. fully_shard does it with the "
            "parameters' memory, ZeroRedundancyOptimizer under DistributedDataParallel. Replicas are "
            "simpler, so keep them if memory and time suffice.",
            f"fully_shard(model, mesh={_mesh(case)})"
            if case.dims
            else "optimizer = ZeroRedundancyOptimizer(\n"
            "    model.parameters(), optimizer_class=type(optimizer), lr=lr)  # and the arguments it had",
        )
    if case.why == "norm":
        named = ", ".join(f'"{module}": SequenceParallel()' for module in case.modules[:3] if module)
        return (
            f"Without sequence parallelism every rank{over} normalises all tokens. SequenceParallel gives "
            "each its part of the sequence, and the memory with it. Its reduce_scatters and all_gathers "
            "move as many bytes as the all_reduces they replace. Leave it if sequences are short.",
            f"parallelize_module(model, {_mesh(case)}, {{{named or chr(34) + 'norm' + chr(34)}}})"
            if named
            else f'parallelize_module(model, {_mesh(case)}, {{"norm": SequenceParallel()}})',
        )
    if case.why == "loss":
        return (
            f"Every rank{over} holds all logits. Keep them sharded over the classes and let loss_parallel "
            "reduce two numbers a token.",
            'plan["output"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)\n'
            "with loss_parallel():\n    loss = cross_entropy(logits, labels)\n    loss.backward()",
        )
    if case.why == "embedding":
        table = case.modules[0] if case.modules else "tok_embeddings"
        return (
            "Give each rank its own channels of the table by ColwiseParallel, in backward too. Every "
            f"rank{over} adds up the gradient of the whole table. RowwiseParallel shards the table only: "
            "torch 2.13 adds up all rows on every rank and then keeps its own.",
            f"parallelize_module(model, {_mesh(case)}, "
            f'{{"{table}": ColwiseParallel(output_layouts=Replicate())}})',
        )
    text = (
        f"Give each rank its share of the work{over}. Shard one operand, or slice the input before the "
        "operator and reduce or gather the smaller result. Keep the replicas if every rank must hold the "
        "result: they avoid a collective, and this is their price."
    )
    if "backward" in case.phases:
        text += " The gradient of a weight is then a part on each rank, to be summed by one all_reduce."
    if case.dims and name and case.parameter:
        return text, (
            f'parallelize_module(model, {_mesh(case)}, {{"{name}": ColwiseParallel()}})  # if an nn.Linear\n'
            f"x = x.redistribute(placements=[Shard(0)])  # else, before {case.op}: each rank its own rows"
        )
    if case.dims:
        dim = "" if "," in case.dims else f"{_mesh(case)}, "
        return text, f"x = x.redistribute({dim}placements=[Shard(0)])  # before {case.op}, on {case.dims}"
    return text, (
        f"x = x.chunk({case.ways})[rank]  # before {case.op}: each rank its own rows\n"
        "dist.all_reduce(weight.grad)      # after backward, where a weight is shared"
    )


def keep_result(toll: int | None) -> Remedy:
    """Return what to write if one rank multiplies the same twice."""
    return Remedy(
        text="Keep the first result and use it again: autograd adds up the gradients of both uses.",
        code="y = x @ w        # once\na, b = f(y), g(y)  # both use it",
        counterfactual=None
        if toll is None
        else f"the same step without the repetition ({duration(toll)} less)",
    )
