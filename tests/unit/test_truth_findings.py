"""Reports of made-up jobs, held to what was planted: none is missed, and none is found without its cause."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from shardtoll.ledger import Finding
from tests.unit.truth import Told, found, report, tell

MS = 1_000_000
LOST = (
    "straggler", "data-stall", "host-sync", "transfer-stall", "pipeline-bubble", "recompute",
    "serialized-collectives", "clock-skew",
)  # fmt: skip

PLANTED: dict[str, dict[str, Any]] = {
    "data-stall": {"data_ns": 2 * MS},
    "host-sync": {"sync_ns": 2 * MS},
    "transfer-stall": {"copy_ns": 2 * MS},
    "recompute": {"recompute": True, "stacks": True},
    "serialized-collectives": {"serialized": 2},
    "pipeline-bubble": {"strategy": "pipeline", "transport": "host"},
    "straggler": {"straggler": 2},
    "clock-skew": {"hosts": 2, "offset_ns": 700_000, "steps": 8},
}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tp"])
@pytest.mark.parametrize("schema", ["seq", "groups", "sizes", "old"])
def test_a_clean_job_loses_no_time(strategy, schema):
    kinds = {finding.kind for finding in report(strategy=strategy, schema=schema).findings}
    assert kinds & set(LOST) == set()


@pytest.mark.parametrize("kind", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(kind):
    knobs = PLANTED[kind]
    kinds = {finding.kind for finding in report(**knobs).findings}
    assert kinds & set(LOST) == {kind}


def _worst(told: Told, part: str) -> float:
    """Return the mean of a part per step, on the rank where that is most."""
    per_rank: dict[int, int] = defaultdict(int)
    for row in told.truth["steps"]:
        per_rank[row["rank"]] += row[part]
    return max(per_rank.values()) / told.spec.steps


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("data-stall", "idle_data_ns"),
        ("host-sync", "idle_sync_ns"),
        ("transfer-stall", "exposed_copy_ns"),
        ("recompute", "recompute_ns"),
        ("pipeline-bubble", "idle_bubble_ns"),
    ],
)
def test_the_toll_of_lost_time_is_what_was_lost(kind, part):
    (finding,) = found(kind, **PLANTED[kind])
    assert finding.toll_ns == pytest.approx(_worst(tell(**PLANTED[kind]), part), rel=0.02)


def test_the_toll_of_serialized_collectives_is_the_shorter_of_each_pair():
    told = tell(**PLANTED["serialized-collectives"])
    shorter = [m["transfer_ns"] for m in told.truth["collectives"] if m["group"] == "2"]
    findings = found("serialized-collectives", **PLANTED["serialized-collectives"])
    assert sum(finding.toll_ns or 0 for finding in findings) == pytest.approx(
        sum(shorter) / told.spec.steps, rel=0.02
    )
    assert {finding.count for finding in findings} == {2}


def _rows_by_key(**knobs: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the report's collectives, each with the truth of it."""
    told = tell(**knobs)
    epoch = told.job.ledger.run.epoch_ns
    clocks = {clock["rank"]: clock for clock in told.truth["clocks"]}
    local: dict[tuple[int, str, int, int], dict[str, Any]] = {}
    for meeting in told.truth["collectives"]:
        for rank, start in meeting["start_ns"].items():
            clock = clocks[int(rank)]
            drift = clock["drift_ppm"] * 1e-6 * (start - told.truth["epoch_ns"])
            shown = start + clock["offset_ns"] + round(drift)
            op = meeting["op"]
            if op == "send" and int(rank) != int(meeting["key"].split("/")[1].split(">")[0]):
                op = "recv"
            local[int(rank), op, meeting["message_bytes"], shown] = meeting
    rows = report(**knobs).tables["collectives"].to_pylist()
    keys = [(row["rank"], row["op"], row["message_bytes"], row["start_ns"] + epoch) for row in rows]
    return [(row, local[key]) for row, key in zip(rows, keys, strict=True)]


def _waits_are_true(within_ns: int, **knobs: Any) -> None:
    pairs = _rows_by_key(**knobs)
    assert len(pairs) == len(report(**knobs).tables["collectives"])
    for row, meeting in pairs:
        assert row["wait_ns"] is not None
        assert abs(row["wait_ns"] - meeting["wait_ns"][str(row["rank"])]) <= within_ns
        assert abs(row["transfer_ns"] - meeting["transfer_ns"]) <= within_ns


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tp"])
@pytest.mark.parametrize("schema", ["seq", "groups", "sizes"])
def test_wait_and_transfer_are_exact_on_one_clock(strategy, schema):
    _waits_are_true(0, strategy=strategy, schema=schema, straggler=1)


def test_wait_and_transfer_of_messages_between_stages_are_exact():
    _waits_are_true(0, strategy="pipeline", schema="seq")


def test_the_bubble_of_a_pipeline_that_waits_on_the_device_is_its_waiting():
    knobs = {"strategy": "pipeline"}
    told = tell(**knobs)
    waited: dict[int, int] = defaultdict(int)
    for meeting in told.truth["collectives"]:
        for rank, ns in meeting["exposed_wait_ns"].items():
            waited[int(rank)] += ns
    (finding,) = found("pipeline-bubble", **knobs)
    assert finding.toll_ns == pytest.approx(max(waited.values()) / told.spec.steps, rel=0.02)
    kinds = {one.kind for one in report(**knobs).findings}
    assert kinds & set(LOST) == {"pipeline-bubble"}


def test_wait_and_transfer_across_clocks_are_right_within_what_clocks_can_tell():
    """Ranks leave together in truth too, so what is left is how well drift is fitted: 2 us here."""
    _waits_are_true(2_000, hosts=2, offset_ns=700_000, drift_ppm=20.0, steps=8, straggler=1)


@pytest.mark.parametrize("offset", [300_000, 700_000, 30 * MS])
def test_the_clocks_offset_is_found(offset):
    (finding,) = found("clock-skew", hosts=2, offset_ns=offset, steps=8)
    told = tell(hosts=2, offset_ns=offset, steps=8)
    true = told.truth["clocks"][3]["offset_ns"]
    values = [item.value for item in finding.evidence if item.unit == "ns" and isinstance(item.value, int)]
    assert any(abs(abs(value) - abs(true)) <= 2_000 for value in values), (true, finding.evidence)
    assert finding.ranks == (2, 3)


STRAGGLERS = {
    "backward": ("computing", "backward"),
    "forward": ("computing", "forward"),
    "data": ("batch is fetched", None),
    "host": ("host had launched nothing", None),
    "sync": ("waited for the device", None),
    "copy": ("memory copies", None),
}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("cause", STRAGGLERS)
def test_the_straggler_is_named_with_its_cause(cause, rank):
    words, phase = STRAGGLERS[cause]
    (finding,) = found("straggler", straggler=rank, cause=cause)
    assert finding.ranks == (rank,)
    assert words in finding.title
    assert phase is None or finding.where.phase == phase


@pytest.mark.parametrize("strategy", ["fsdp", "tp"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_the_straggler_is_named_in_other_jobs(strategy, ranks):
    finding = _one(found("straggler", straggler=1, strategy=strategy, ranks=ranks))
    assert finding.ranks == (1,)
    assert finding.where.phase == "backward"


def _one(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    return findings[0]


@pytest.mark.parametrize("cause", ["backward", "data"])
def test_what_the_straggler_costs_is_what_the_others_waited(cause):
    """The exposed wait per step of the rank that waits longest, on the matched collectives."""
    told = tell(straggler=2, cause=cause)
    finding = _one(found("straggler", straggler=2, cause=cause))
    waited: dict[str, int] = defaultdict(int)
    for meeting in told.truth["collectives"]:
        for rank, wait in meeting["exposed_wait_ns"].items():
            if meeting["late_rank"] == 2:
                waited[rank] += wait
    assert finding.toll_ns == pytest.approx(max(waited.values()) / told.spec.steps, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "cause"), [("data-stall", "data"), ("host-sync", "sync"), ("transfer-stall", "copy")]
)
def test_lost_time_of_one_rank_names_that_rank_only(kind, cause):
    finding = _one(found(kind, straggler=2, cause=cause))
    assert finding.ranks == (2,)


def test_missing_ranks_are_named():
    texts = [finding.title for finding in found("incomplete-input", missing=(1, 3))]
    assert any("1, 3" in text for text in texts)


@pytest.mark.parametrize("schema", ["seq", "groups", "sizes"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tp"])
def test_trimmed_windows_match_no_two_collectives_that_are_not_one(schema, strategy):
    """A wrong match would show as a wait that is not true; a missed one is only unknown."""
    knobs = {"trim": True, "steps": 8, "schema": schema, "strategy": strategy}
    known = 0
    for row, meeting in _rows_by_key(**knobs):
        if row["wait_ns"] is not None:
            known += 1
            assert row["transfer_ns"] == meeting["transfer_ns"]
            assert row["wait_ns"] == meeting["wait_ns"][str(row["rank"])]
    assert known > len(tell(**knobs).rows) / 3


def test_two_jobs_in_one_folder_are_not_mixed(tmp_path):
    from shardtoll.profiler.traces.job.job import read_traces
    from tests.unit.truth import write

    write(tmp_path / "job", ranks=4)
    write(tmp_path / "job", ranks=3, prefix="other", port=7, seed=5)
    (job,) = read_traces([str(tmp_path / "job")], jobs=1, cache=False)
    assert job.ledger.run.world_size == 4
    assert job.ledger.run.ranks_seen == (0, 1, 2, 3)
    assert len(job.set_aside) == 3
    whole = tell()
    assert job.ledger.tables["steps"].to_pylist() == whole.steps
