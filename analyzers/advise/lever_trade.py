"""Gain of the next lever: one change of a layout at a time, with its memory and its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.advise.search import Search
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.answers.advice import Candidate, Lever
from shardtoll.ledger.answers.training_plan import Layout

_NARROWER: Final = {"fp32": "bf16", "tf32": "bf16", "bf16": "fp8"}
"""Precision -> the next narrower one that trains with the same range of exponents, or nearly."""


def neighbours(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield (name, layout) for each single change that keeps GPUs and effective batch."""
    for level in ("none", "selective", "full"):
        if level != layout.checkpointing:
            name = "no" if level == "none" else level
            yield f"{name} checkpointing", replace(layout, checkpointing=level)
    if layout.accumulation % 2 == 0:
        yield (
            f"micro-batch {layout.micro_batch * 2}",
            replace(layout, micro_batch=layout.micro_batch * 2, accumulation=layout.accumulation // 2),
        )
    if layout.micro_batch % 2 == 0:
        yield (
            f"micro-batch {layout.micro_batch // 2}",
            replace(layout, micro_batch=layout.micro_batch // 2, accumulation=layout.accumulation * 2),
        )
    if layout.dp * layout.cp > 1:
        names = {"ddp": "DDP", "zero1": "ZeRO-1", "fsdp": "FSDP"}
        for sharding, name in names.items():
            if sharding != layout.sharding and not (sharding == "fsdp" and layout.pp > 1):
                yield name, replace(layout, sharding=sharding, shard_size=None)  # type: ignore[arg-type]
    yield from _split(layout)


def _split(layout: Layout) -> Iterator[tuple[str, Layout]]:
    if layout.dp % 2 == 0:
        more = layout.accumulation * 2
        yield (
            f"TP {layout.tp * 2}",
            replace(
                layout,
                tp=layout.tp * 2,
                sequence_parallel=True,
                dp=layout.dp // 2,
                accumulation=more,
                shard_size=None,
            ),
        )
        plain = "zero1" if layout.sharding == "fsdp" else layout.sharding
        yield (
            f"PP {layout.pp * 2}",
            replace(
                layout,
                pp=layout.pp * 2,
                dp=layout.dp // 2,
                accumulation=more,
                shard_size=None,
                sharding=plain,
            ),
        )
    if layout.tp % 2 == 0 and layout.accumulation % 2 == 0:
        yield (
            f"TP {layout.tp // 2}",
            replace(
                layout, tp=layout.tp // 2, sequence_parallel=layout.tp > 2, dp=layout.dp * 2,
                accumulation=layout.accumulation // 2, shard_size=None,
            ),
        )  # fmt: skip


def lever_trade(search: Search, best: Candidate) -> tuple[Lever, ...]:
    """Each single change of the best layout, those that fit first, then by speed."""
    made = []
    for name, layout in neighbours(best.layout):
        if not legal(search, layout):
            continue
        try:
            made.append((name, search.candidate(layout)))
        except (ShardtollError, ValueError):
            continue  # the forecast has no price of it
    made.append(("optimizer in host memory", search.candidate(best.layout, offload=True)))
    narrower = _NARROWER.get(search.question.precision)
    if narrower is not None:
        with suppress(ShardtollError):  # a GPU without such units
            made.append((f"{narrower} matmuls", search.candidate(best.layout, precision=narrower)))
    levers = [
        Lever(
            name,
            candidate,
            candidate.memory_bytes - best.memory_bytes,
            best.step_ns.expected / candidate.step_ns.expected - 1,
        )
        for name, candidate in made
    ]
    return tuple(sorted(levers, key=lambda each: (not each.candidate.fits, -each.tokens_per_s_share)))


def legal(search: Search, layout: Layout) -> bool:
    """Whether model and machine can run the layout."""
    model, question = search.question.model, search.question
    keys = model.kv_heads % layout.tp == 0 or layout.tp % model.kv_heads == 0
    return (
        layout.tp <= question.gpus_per_node
        and model.heads % layout.tp == 0
        and keys
        and layout.pp * layout.chunks <= model.layers
        and (layout.pp == 1 or layout.accumulation >= layout.pp)
        and (layout.dp * layout.cp * layout.tp) % layout.ep == 0
    )


def pareto(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those that no other beats in both memory and speed, least memory first."""
    front: list[Candidate] = []
    for each in sorted(candidates, key=lambda c: (c.memory_bytes, c.step_ns.expected)):
        if not front or each.step_ns.expected < front[-1].step_ns.expected:
            front.append(each)
    return tuple(front)
