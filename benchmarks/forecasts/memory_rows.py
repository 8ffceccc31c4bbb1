"""Published peak memory of torchtitan: reserved GiB of the rank that needs most.

Source: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 to 6 (H100 with 96 GB). The
sequence is 8,192 tokens where the tables do not state one, as in the configurations of that release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardtoll.ledger.answers.training_plan import Checkpointing, Layout, ModelShape, TrainingPlan

LLAMA_8B: Final = ModelShape(32, 4096, 32, 8, 14336, 128256, gated=True, name="Llama-3.1-8B")
LLAMA_70B: Final = ModelShape(80, 8192, 64, 8, 28672, 128256, gated=True, name="Llama-3.1-70B")
LLAMA_405B: Final = ModelShape(126, 16384, 128, 8, 53248, 128256, gated=True, name="Llama-3.1-405B")


def _plan(
    model: ModelShape,
    *,
    dp: int,
    micro_batch: int,
    checkpointing: Checkpointing,
    compiled: bool,
    fp8: bool,
    sequence: int = 8192,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    chunks: int = 1,
    accumulation: int = 1,
) -> TrainingPlan:
    layout = Layout(
        dp=dp, sharding="fsdp", tp=tp, sequence_parallel=tp > 1, pp=pp, chunks=chunks, cp=cp,
        micro_batch=micro_batch, accumulation=accumulation, checkpointing=checkpointing,
    )  # fmt: skip
    precision = "fp8" if fp8 else "bf16"
    return TrainingPlan(
        model, layout, sequence, "h100-sxm", precision=precision, framework="torchtitan", compiled=compiled
    )


def torchtitan_rows() -> Iterator[tuple[str, TrainingPlan, float]]:
    """(table, plan, reserved GiB) of each published row whose plan is stated."""
    for table, dp, values in (("1", 8, (82.4, 77.0, 76.8)), ("3", 128, (67.0, 62.0, 61.8))):
        for (compiled, fp8), gib in zip(((False, False), (True, False), (True, True)), values, strict=True):
            plan = _plan(
                LLAMA_8B, dp=dp, micro_batch=2, checkpointing="selective", compiled=compiled, fp8=fp8
            )
            yield table, plan, gib
    for cp, gib in ((1, 83.9), (2, 84.2), (4, 84.0), (8, 84.5)):
        plan = _plan(
            LLAMA_8B, dp=8 // cp, cp=cp, sequence=32768 * cp, micro_batch=1, checkpointing="full",
            compiled=True, fp8=True,
        )  # fmt: skip
        yield "2", plan, gib
    for gib in (71.9, 67.6):
        plan = _plan(LLAMA_70B, dp=32, tp=8, micro_batch=16, checkpointing="full", compiled=True, fp8=True)
        yield "4", plan, gib
    for chunks, gib in ((1, 82.5), (2, 72.7)):
        plan = _plan(
            LLAMA_405B, dp=8, tp=8, pp=8, chunks=chunks, micro_batch=4 // chunks, accumulation=8 * chunks,
            checkpointing="full", compiled=True, fp8=True,
        )  # fmt: skip
        yield "5", plan, gib
    for cp, gib in ((1, 75.3), (2, 75.9), (4, 77.1), (8, 84.9)):
        plan = _plan(
            LLAMA_405B, dp=8 // cp, cp=cp, tp=8, pp=8, sequence=32768 * cp, micro_batch=1, accumulation=8,
            checkpointing="full", compiled=True, fp8=True,
        )  # fmt: skip
        yield "6", plan, gib
