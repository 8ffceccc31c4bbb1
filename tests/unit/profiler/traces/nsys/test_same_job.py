"""The same made-up jobs as exports of Nsight Systems: what is read is what the Kineto traces say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.truth import Told, report, tell

JOBS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"strategy": "fsdp", "collectives": None},
    "tp": {"strategy": "tp"},
    "pipeline": {"strategy": "pipeline"},
    "pipelines side by side": {"strategy": "pipeline", "ranks": 4, "replicas": 2},
    "chain": {"strategy": "chain"},
    "slow data": {"straggler": 1, "cause": "data"},
    "slow sync": {"straggler": 1, "cause": "sync"},
    "slow copy, lookalike": {"straggler": 1, "cause": "copy", "lookalike_ns": 1_000_000},
    "two groups": {"serialized": 2},
    "no communicators": {"schema": "sizes"},
    "payloads as JSON": {"schema": "groups"},
    "clocks that are off": {"hosts": 2, "offset_ns": 3_000_000, "drift_ppm": 20.0},
}
EQUAL = (
    *("step", "rank", "group_size", "op", "message_bytes", "wire_bytes", "start_ns", "duration_ns"),
    *("exposed_ns", "phase", "caused_by_op", "module", "root", "stream", "kernel"),
)


def rows(told: Told) -> list[dict[str, Any]]:
    return [{name: row[name] for name in EQUAL} for row in told.rows]


@pytest.mark.parametrize("name", JOBS)
def test_steps_collectives_and_stalls_are_equal(name: str) -> None:
    knobs = {"steps": 2, **JOBS[name]}
    export, kineto = tell(format="sqlite", **knobs), tell(**knobs)
    assert export.steps == kineto.steps
    assert rows(export) == rows(kineto)
    for table in ("stalls", "leadups", "device_ops"):
        of_export, of_kineto = (told.job.ledger.tables[table] for told in (export, kineto))
        assert of_export.to_pylist() == of_kineto.to_pylist()
    # NCCL's payload has no type; kernels that reduce are named after theirs.
    for row, other in zip(export.rows, kineto.rows, strict=True):
        assert row["dtype"] == (other["dtype"] if "reduce" in row["op"] else None)


def test_the_run_is_described() -> None:
    run = tell(format="sqlite", steps=2).job.ledger.run
    assert (run.world_size, run.ranks_seen, run.backend) == (4, (0, 1, 2, 3), "nccl")
    assert (run.device, run.device_memory_bytes) == ("NVIDIA H100 80GB HBM3", 85_029_158_912)
    assert (run.device_sms, run.device_capability, run.devices_per_host) == (132, "9.0", 8)
    assert run.hosts == ("node0",)
    assert tell(format="sqlite", steps=2).job.ledger.tables["notices"].num_rows == 0


def test_the_straggler_is_found() -> None:
    knobs = {"straggler": 2, "cause": "data"}
    (found,) = [each for each in report(format="sqlite", **knobs).findings if each.kind == "straggler"]
    (other,) = [each for each in report(**knobs).findings if each.kind == "straggler"]
    assert (found.ranks, found.toll_ns, found.title) == (other.ranks, other.toll_ns, other.title)


def test_the_oldest_exports_keep_all_times() -> None:
    """No payloads, no processes, no session's start, no devices: the file's name gives the rank."""
    told, kineto = tell(format="sqlite", schema="old", steps=2), tell(steps=2)
    assert told.steps == kineto.steps
    assert {row["op"] for row in told.rows} == {"all_reduce"}
    assert {row["message_bytes"] for row in told.rows} == {None}
    kinds = {row["kind"] for row in told.job.ledger.tables["notices"].to_pylist()}
    wanted = {"rank-from-name", "clock-unknown", "groups-unknown", "sizes-unknown", "world-size-unknown"}
    assert kinds == wanted


@pytest.mark.parametrize("hosts", [1, 2])
def test_processes_in_one_file_are_ranks(hosts: int) -> None:
    told = tell(format="sqlite", one_file=True, hosts=hosts, steps=2)
    kineto = tell(hosts=hosts, steps=2)
    assert [file.address.rpartition("/")[2] for file in told.job.files] == [
        f"host{rank * hosts // 4}.sqlite" for rank in range(4)
    ]
    assert told.steps == kineto.steps
    assert rows(told) == rows(kineto)
    assert len(told.notices("devices-as-ranks")) == 4


def test_ranks_come_from_communicators_where_nothing_else_says_them() -> None:
    knobs = {"damage": tuple((rank, "no-rank") for rank in range(4)), "prefix": "x", "steps": 2}
    told = tell(format="sqlite", **knobs)
    assert told.job.ledger.run.ranks_seen == (0, 1, 2, 3)
    assert told.notices("rank-from-name") == []
    assert told.steps == tell(steps=2).steps


def test_windows_cut_differently_are_read() -> None:
    told, kineto = tell(format="sqlite", trim=True), tell(trim=True)
    assert told.steps == kineto.steps
    assert len(told.notices("launches-unseen")) == len(kineto.notices("launches-unseen"))
