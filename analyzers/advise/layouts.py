"""Legal layouts of a model on a number of GPUs: what divides, and what frameworks can run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from shardtoll.ledger.answers.advice import Question
from shardtoll.ledger.answers.training_plan import Layout, Sharding

_LONG_SEQUENCE: Final = 16384
"""Below this many tokens context parallel only adds messages."""
_LEAST_CONTEXT: Final = 4096
"""Tokens of a sequence that each context-parallel rank keeps at least."""
_MOST_MICRO_BATCH: Final = 64


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    return [each for each in range(1, number + 1) if number % each == 0]


def legal_layouts(question: Question) -> Iterator[Layout]:
    """Yield every legal layout without checkpointing; `lighter` adds it where memory asks for it."""
    model = question.model
    for tp in divisors(question.gpus):
        if tp > question.gpus_per_node or model.heads % tp or not _keys_divide(model.kv_heads, tp):
            continue
        for pp in divisors(question.gpus // tp):
            if pp > model.layers:
                continue
            for cp in divisors(question.gpus // tp // pp):
                if cp > 1 and (
                    question.sequence < _LONG_SEQUENCE or question.sequence // cp < _LEAST_CONTEXT
                ):
                    break
                yield from _with_batch(question, tp, pp, cp, question.gpus // tp // pp // cp)


def _keys_divide(kv_heads: int, tp: int) -> bool:
    return kv_heads % tp == 0 or tp % kv_heads == 0


def _with_batch(question: Question, tp: int, pp: int, cp: int, dp: int) -> Iterator[Layout]:
    if question.sequences % dp:
        return
    replica = question.sequences // dp
    for micro_batch in divisors(replica):
        accumulation = replica // micro_batch
        if micro_batch > _MOST_MICRO_BATCH or (pp > 1 and accumulation < pp):
            break
        base = Layout(
            dp=dp, tp=tp, sequence_parallel=tp > 1, pp=pp, cp=cp, micro_batch=micro_batch,
            accumulation=accumulation,
        )  # fmt: skip
        for experts in _expert_sizes(question, base):
            for chunks in _chunks(question, base):
                yield from _sharded(question, replace(base, ep=experts, chunks=chunks))


def _expert_sizes(question: Question, layout: Layout) -> list[int]:
    experts = question.model.experts
    if experts == 1:
        return [1]
    ranks = layout.dp * layout.cp * layout.tp
    return [each for each in divisors(experts) if ranks % each == 0]


def _chunks(question: Question, layout: Layout) -> list[int]:
    if layout.pp == 1 or layout.accumulation % layout.pp:
        return [1]
    layers = question.model.layers
    return [
        each
        for each in (1, 2, 4)
        if layout.pp * each <= layers and (each == 1 or layers % (layout.pp * each) == 0)
    ]


def _sharded(question: Question, layout: Layout) -> Iterator[Layout]:
    if layout.dp * layout.cp == 1:
        yield layout
        return
    kinds: list[Sharding] = ["ddp", "zero1"]
    if layout.pp == 1:
        kinds.append("fsdp")
    for sharding in kinds:
        yield replace(layout, sharding=sharding)
    node = question.gpus_per_node // layout.tp
    if layout.pp == 1 and layout.cp == 1 and 1 < node < layout.dp and layout.dp % node == 0:
        yield replace(layout, sharding="fsdp", shard_size=node)


def lighter(layout: Layout) -> list[Layout]:
    """The layout without, with selective and with full checkpointing: less memory, more time."""
    return [
        replace(layout, checkpointing="none"),
        replace(layout, checkpointing="selective"),
        replace(layout, checkpointing="full"),
    ]


def levers(layout: Layout) -> int:
    """Count mechanisms beyond plain data parallel: the measure of simplicity."""
    used = [
        layout.sharding != "ddp",
        layout.sharding == "fsdp",
        layout.shard_size is not None,
        layout.tp > 1,
        layout.pp > 1,
        layout.pp > 1,
        layout.chunks > 1,
        layout.cp > 1,
        layout.ep > 1,
        layout.checkpointing != "none",
    ]
    return sum(used)


_SHARDING: Final = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "fsdp": "FSDP"}


def words(layout: Layout) -> str:
    """The layout in words, as `FSDP 8 x TP 2, micro-batch 1 x 4, full checkpointing`."""
    parts = []
    if layout.dp * layout.cp > 1 or layout.tp * layout.pp == 1:
        name = _SHARDING[layout.sharding]
        if layout.shard_size not in (None, layout.dp):
            name = f"HSDP {layout.dp // (layout.shard_size or 1)} x {layout.shard_size}"
        else:
            name = f"{name} {layout.dp}" if layout.dp > 1 or layout.cp == 1 else name
        parts.append(name if layout.world_size > 1 else "one GPU")
    if layout.tp > 1:
        parts.append(f"TP {layout.tp}")
    if layout.pp > 1:
        parts.append(f"PP {layout.pp}" + (f" ({layout.chunks} chunks)" if layout.chunks > 1 else ""))
    if layout.cp > 1:
        parts.append(f"CP {layout.cp}")
    if layout.ep > 1:
        parts.append(f"EP {layout.ep}")
    text = " x ".join(parts) + f", micro-batch {layout.micro_batch}"
    if layout.accumulation > 1:
        text += f" x {layout.accumulation}"
    if layout.checkpointing != "none":
        text += f", {layout.checkpointing} checkpointing"
    return text
