"""Gathered logits in closed form: what they cost, what would be left, and gathers that are needed."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Group
from tests.unit.analyzers.ledgers import MS, ledger, on_ranks, run_of, step

KIND = "gathered-logits"
CLASSES = 32_000
TOKENS = 256
GATHER = {
    "op": "all_gather",
    "phase": "forward",
    "message_bytes": 4 * TOKENS * CLASSES,
    "module": "head",
    "source": "t.py:5 (f)",
    "caused_by_op": "ColwiseParallel",
    "placements_from": "(Shard(dim=2),)",
    "placements_to": "(Replicate(),)",
    "loss_classes": CLASSES,
    "duration_ns": 20 * MS,
    "exposed_ns": 20 * MS,
}


def found(rows, **given):
    groups = (Group("pg", (0, 1), "tp"),)
    timed = [step(0, rank) for rank in (0, 1)]
    report = run(ledger(list(rows), run=run_of(2, **given), groups=groups, steps=timed))
    return [finding for finding in report.findings if finding.kind == KIND], report


def test_the_gather_of_large_logits_is_worth_a_warning():
    (finding,), report = found(on_ranks((0, 1), **GATHER, mesh_dim="tp"))
    assert (finding.severity, finding.confidence, finding.count) == ("warning", "likely", 1)
    assert (finding.toll_ns, finding.bytes) == (20 * MS, GATHER["message_bytes"])
    # Three all_reduces cost latency: some of the toll is left, but hardly any.
    assert 19 * MS < finding.saving_ns < 20 * MS
    assert finding.figure("classes") == CLASSES
    assert "32,000 classes" in finding.title
    assert (
        'plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)'
        in finding.remedy.code
    )
    assert [each.kind for each in report.findings if each.kind == "exposed-communication"] == []


def test_waiting_for_a_late_rank_is_no_saving():
    early, late = on_ranks((0, 1), **GATHER)
    waiting = on_ranks((0,), **GATHER | {"group_size": 2, "duration_ns": 25 * MS, "exposed_ns": 25 * MS})
    shifted = on_ranks((1,), **GATHER | {"group_size": 2, "start_ns": 6 * MS, "issue_ns": 6 * MS})
    del early, late
    (finding,), _ = found([*waiting, *shifted])
    assert finding.toll_ns == 25 * MS
    assert finding.saving_ns < 20 * MS


def test_small_logits_are_information():
    (finding,), _ = found(on_ranks((0, 1), **GATHER | {"message_bytes": 8192, "loss_classes": 64}))
    assert finding.severity == "info"


def test_a_gather_by_hand_is_told_what_to_do_with_its_part():
    (finding,), _ = found(
        on_ranks((0, 1), **GATHER | {"caused_by_op": "all_gather", "module": None}, mesh_dim="tp")
    )
    assert finding.remedy.code.startswith('logits = DTensor.from_local(part, mesh["tp"], [Shard(-1)])')


@pytest.mark.parametrize(
    "rows",
    [
        on_ranks((0, 1), **GATHER | {"loss_classes": None}),
        on_ranks((0, 1), **GATHER | {"implicit": True, "caused_by_op": "aten._log_softmax.default"}),
        [
            *on_ranks((0,), **GATHER | {"group_size": 2}),
            *on_ranks((1,), **GATHER | {"group_size": 2, "loss_classes": None}),
        ],
        on_ranks((0, 1), **GATHER | {"op": "all_reduce"}),
    ],
    ids=["not read by a loss", "told as implicit", "one rank has no loss", "no gather"],
)
def test_silent(rows):
    assert found(rows)[0] == []
