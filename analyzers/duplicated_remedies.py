"""What to say of work done several times: a mistake to mend, or a choice with its price and alternative."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.words import duration, size
from shardtoll.ledger import Remedy

_STATE: Final = re.compile(r"state u8\[(\d+)\]")

CHOICES: Final = ("norm", "loss", "embedding", "optimizer")
"""Work that every rank of a group is often meant to repeat."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a family of operators that several ranks repeat."""

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


def is_choice(told: Told) -> bool:
    """Whether it is intended as a rule, or told as a warning elsewhere."""
    return told.why in CHOICES or told.inputs_seen


def state_bytes(shapes: str | None) -> int | None:
    """Return the bytes of an optimizer's states, from the shapes of its record."""
    found = [int(text) for text in _STATE.findall(shapes or "")]
    return sum(found) if found else None


_SUBJECTS: Final = {
    "norm": "normalisation",
    "loss": "the loss over all classes",
    "embedding": "the embedding's gradient",
}


def title(told: Told, where: str, done: str, needed: str) -> str:
    """Return one sentence; `where` as ` in mlp at train.py:3`, `done` and `needed` as `8 MFLOP`."""
    phases = " and ".join(told.phases)
    over = f"{told.ranks} ({told.dims})" if told.dims else told.ranks
    if told.why == "data":
        return (
            f"all operators compute the same on {over}, {done} where {needed} are needed: "
            "those ranks were given the same data"
        )
    if told.why == "optimizer":
        held = "" if not told.state_bytes else f" and keeps the same {size(told.state_bytes)} of states"
        return (
            f"a choice: each of {told.ways} replicas makes the same update{held}, {duration(told.toll)} "
            f"a step that they could share, on {over}"
        )
    if told.why in _SUBJECTS:
        return (
            f"a choice: {_SUBJECTS[told.why]} is computed {told.ways} times in {phases}, on {over}: "
            f"{done} where {needed} are needed, {duration(told.toll)} a step"
        )
    return (
        f"{told.op}{where} does the same work {told.ways} times in {phases}, on {over}: "
        f"{done} where {needed} are needed"
    )


def _counterfactual(told: Told) -> str | None:
    if told.toll is None:
        return None
    return (
        f"each of {told.ways} ranks doing 1/{told.ways} of the work "
        f"({duration(told.toll)} less), whatever it takes to bring the parts together not counted"
    )


def _mesh(told: Told) -> str:
    return f'mesh["{told.dims}"]' if told.dims and "," not in told.dims else "mesh"


def remedy(told: Told) -> Remedy:
    """Return what to write instead, and at what price."""
    text, code = _written(told)
    return Remedy(text=text, code=code, counterfactual=_counterfactual(told))


def _written(told: Told) -> tuple[str, str]:
    over = f" over {told.dims}" if told.dims else ""
    name = told.module or ""
    if told.why == "data":
        return (
            "Give each data-parallel rank its own part of the data. Until then all but one of them work in "
            "vain, and the batch is as large as one rank's.",
            "sampler = DistributedSampler(dataset, num_replicas=dp_size, rank=dp_rank)\n"
            "loader = DataLoader(dataset, batch_size, sampler=sampler)  # and sampler.set_epoch(epoch)",
        )
    if told.why == "optimizer":
        spared = ""
        if told.state_bytes:
            each = told.state_bytes - told.state_bytes // told.ways
            spared = f" and {size(each)} of states on each rank"
        return (
            f"Shard the optimizer's work: that spares up to {duration(told.toll)} a step{spared}, and costs "
            "a broadcast or all_gather of the updated parameters. fully_shard does it with the parameters' "
            "memory, ZeroRedundancyOptimizer under DistributedDataParallel. Replicas are simpler: a choice.",
            f"fully_shard(model, mesh={_mesh(told)})"
            if told.dims
            else "optimizer = ZeroRedundancyOptimizer(\n"
            "    model.parameters(), optimizer_class=type(optimizer), lr=lr)  # and the arguments it had",
        )
    if told.why == "norm":
        named = ", ".join(f'"{module}": SequenceParallel()' for module in told.modules[:3] if module)
        return (
            f"Without sequence parallelism every rank{over} normalises all tokens. SequenceParallel gives "
            "each its part of the sequence, and the memory with it; its reduce_scatters and all_gathers move "
            "as many bytes as the all_reduces they replace. Where sequences are short this is a choice.",
            f"parallelize_module(model, {_mesh(told)}, {{{named or chr(34) + 'norm' + chr(34)}}})"
            if named
            else f'parallelize_module(model, {_mesh(told)}, {{"norm": SequenceParallel()}})',
        )
    if told.why == "loss":
        return (
            f"Every rank{over} holds all logits. Keep them sharded over the classes and let loss_parallel "
            "reduce two numbers a token.",
            'plan["output"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)\n'
            "with loss_parallel():\n    loss = cross_entropy(logits, labels)\n    loss.backward()",
        )
    if told.why == "embedding":
        table = told.modules[0] if told.modules else "tok_embeddings"
        return (
            f"Every rank{over} adds up the gradient of the whole table. ColwiseParallel gives each its own "
            "channels, in backward too. RowwiseParallel shards the table only: torch 2.13 adds up all rows "
            "on every rank and then keeps its own.",
            f"parallelize_module(model, {_mesh(told)}, "
            f'{{"{table}": ColwiseParallel(output_layouts=Replicate())}})',
        )
    text = (
        f"Give each rank its share{over}: shard one operand, or slice the input before the operator and "
        "reduce or gather the smaller result. Where every rank is meant to hold the result, replicas spare "
        "a collective: that is a choice, and this is its price."
    )
    if "backward" in told.phases:
        text += " The gradient of a weight is then a part on each rank, to be summed by one all_reduce."
    if told.dims and name and told.parameter:
        return text, (
            f'parallelize_module(model, {_mesh(told)}, {{"{name}": ColwiseParallel()}})  # if an nn.Linear\n'
            f"x = x.redistribute(placements=[Shard(0)])  # else, before {told.op}: each rank its own rows"
        )
    if told.dims:
        dim = "" if "," in told.dims else f"{_mesh(told)}, "
        return text, f"x = x.redistribute({dim}placements=[Shard(0)])  # before {told.op}, on {told.dims}"
    return text, (
        f"x = x.chunk({told.ways})[rank]  # before {told.op}: each rank its own rows\n"
        "dist.all_reduce(weight.grad)      # after backward, where a weight is shared"
    )


def keep_result(toll: int | None) -> Remedy:
    """Return what to write where one rank multiplies the same twice."""
    return Remedy(
        text="Keep the first result and use it again: autograd adds up the gradients of both uses.",
        code="y = x @ w        # once\na, b = f(y), g(y)  # both use it",
        counterfactual=None
        if toll is None
        else f"the same step without the repetition ({duration(toll)} less)",
    )
