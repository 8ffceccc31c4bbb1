"""Collectives of dry runs are those that closed forms say, field by field, on jobs of 2, 4 and 8 ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.ledger import Ledger
from tests.dry_runs import sample
from tests.live import strategy_rows
from tests.live.strategy_rows import Want
from tests.live.strategy_wants_data import (
    ACCUMULATED,
    CLIPPED,
    DDP,
    FSDP1,
    FSDP2,
    ONE,
    across,
    checkpointed,
    flat,
    fsdp2_step,
    reduced,
)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def told(ledger: Ledger) -> list[Want]:
    groups = [(group.name, list(group.ranks)) for group in ledger.groups]
    rows: list[dict[str, Any]] = ledger.tables["collectives"].to_pylist()
    return [strategy_rows._told(row, groups) for row in rows]


def check(name: str, world: int, wants: Sequence[Want], rank: int = 0) -> None:
    ledger = sample(name, world, rank)
    everyone = tuple(range(world))
    wanted = [want if want.ranks is not None else replace(want, ranks=everyone) for want in wants]
    rows = told(ledger)
    if all(want.dim is None for want in wanted if want.ranks == everyone):
        rows = [replace(row, dim=None) if row.ranks == everyone else row for row in rows]
    assert rows == wanted
    run = ledger.run
    assert (run.source, run.world_size, run.ranks_seen) == ("dry", world, (rank,))


@pytest.mark.parametrize(
    ("variant", "world"),
    [("plain", 8), ("no_buffers", 2), ("buckets", 4), ("bucket_view", 2), ("bf16_hook", 4)],
)
def test_ddp(variant: str, world: int) -> None:
    check(f"ddp.{variant}", world, DDP[variant][1], rank=world - 1)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_fsdp2(world: int) -> None:
    check("fsdp2.reshard_true", world, FSDP2["reshard_true"])


@pytest.mark.parametrize("variant", ["reshard_false", "mixed_precision", "prefetch"])
def test_variants_of_fsdp2(variant: str) -> None:
    check(f"fsdp2.{variant}", 4, FSDP2[variant], rank=3)


def test_fsdp2_within_a_node_and_across() -> None:
    check("fsdp2.hsdp", 4, across(fsdp2_step(), 1), rank=1)


@pytest.mark.parametrize("variant", ["full_shard", "shard_grad_op", "mixed_precision"])
def test_fsdp1(variant: str) -> None:
    check(f"fsdp1.{variant}", 2, FSDP1[variant])


def test_zero() -> None:
    check("zero.bucketed", 4, [reduced(*ONE[0]), *flat(4)])


@pytest.mark.parametrize("variant", sorted(ACCUMULATED))
def test_accumulation(variant: str) -> None:
    check(f"accumulation.{variant}", 2, ACCUMULATED[variant])


@pytest.mark.parametrize(
    "build", ["ddp_non_reentrant", "wrapped_non_reentrant", "called_reentrant", "wrapper_reentrant"]
)
def test_checkpointing(build: str) -> None:
    kind, _, reentrant = build.partition("_")
    check(f"checkpointing.{build}", 4, checkpointed(kind, reentrant == "reentrant"))


@pytest.mark.parametrize("variant", sorted(CLIPPED))
def test_clipping(variant: str) -> None:
    check(f"clipping.{variant}", 8, CLIPPED[variant], rank=5)


def test_compute_waits_for_the_buckets_of_ddp() -> None:
    """The fake group's Work has a `wait` of its own, which DDP calls from C++ or Python."""
    made = sample("accumulation.ddp_last", 4)
    buckets = made.frame("collectives")
    waits = made.frame("dry_waits")
    awaited = waits[waits["collective"].notna() & (waits["stream"] == "compute")]
    assert len(buckets) > 0
    assert set(buckets["order"]) <= set(awaited["collective"].astype(int))
