"""Several devices in one file are several ranks, never one timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import Ledger, TraceError
from shardtoll.profiler.traces import Job, read_traces
from tests.shared_inputs import shared
from tests.small_traces import trace, write


def fused(ranks: int = 2, *, own_ids: bool = True, told: bool = False) -> dict[str, Any]:
    """Return the traces of several ranks as one file; with `own_ids` each keeps its own correlation ids."""
    made = trace(0, ranks, told_rank=told)
    made["traceEvents"] = []
    for rank in range(ranks):
        for event in trace(rank, ranks)["traceEvents"]:
            args = dict(event["args"])
            if event["cat"] == "kernel":
                args["device"] = 4 + rank
            if not own_ids and "correlation" in args:
                args["correlation"] += 1000 * rank
            pid = 4 + rank if event["cat"] == "kernel" else 100 + rank
            made["traceEvents"].append({**event, "pid": pid, "args": args})
    return made


def read(path: Path) -> Job:
    (job,) = read_traces([str(path)], jobs=1, cache=False)
    return job


def steps(ledger: Ledger) -> dict[tuple[int, int], tuple[int, ...]]:
    names = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns", "duration_ns")
    rows = ledger.tables["steps"].to_pylist()
    return {(row["rank"], row["step"]): tuple(row[name] for name in names) for row in rows}


@pytest.mark.parametrize("own_ids", [True, False])
def test_each_process_and_its_device_is_a_rank(tmp_path: Path, own_ids: bool) -> None:
    job = read(write(tmp_path / "fused.json", fused(3, own_ids=own_ids)))
    for rank in range(3):
        write(tmp_path / "apart" / f"rank{rank}.json", trace(rank, 3))
    apart = read(tmp_path / "apart")
    assert job.ledger.run.ranks_seen == (0, 1, 2)
    assert job.ledger.run.world_size == 3
    assert steps(job.ledger) == steps(apart.ledger)
    assert job.ledger.tables["collectives"].num_rows == apart.ledger.tables["collectives"].num_rows
    texts = [row["text"] for row in job.ledger.tables["notices"].to_pylist()]
    assert any(text.endswith("holds 3 devices: device 5 counts as rank 1") for text in texts)


def test_the_cache_keeps_every_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTOLL_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "fused.json", fused())
    read_traces([str(path)], jobs=1)

    def refuse(_task: Any) -> Any:
        raise AssertionError("read again")

    (job,) = read_traces([str(path)], jobs=1, work=refuse)
    assert job.ledger.run.ranks_seen == (0, 1)


def one_process(made: dict[str, Any]) -> dict[str, Any]:
    for event in made["traceEvents"]:
        event["pid"] = event["pid"] if event["cat"] == "kernel" else 100
    return made


def test_one_process_with_two_devices_is_two_ranks(tmp_path: Path) -> None:
    made = one_process(fused(own_ids=False))
    job = read(write(tmp_path / "t.json", made))
    assert job.ledger.run.ranks_seen == (0, 1)
    computes = {rank: parts[0] for (rank, step), parts in steps(job.ledger).items() if step == 3}
    assert computes == {0: 300_000, 1: 310_000}


def test_a_process_that_states_its_rank_keeps_one_device_and_says_so(tmp_path: Path) -> None:
    made = one_process(fused(own_ids=False, told=True))
    made["distributedInfo"] = {"backend": "nccl", "rank": 1, "world_size": 4}
    more = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 4, "tid": 7, "dur": 1}
    made["traceEvents"].append({**more, "ts": made["traceEvents"][0]["ts"] + 20, "args": {"device": 4}})
    job = read(write(tmp_path / "t.json", made))
    assert job.ledger.run.ranks_seen == (1,)
    assert {parts[0] for parts in steps(job.ledger).values()} == {300_000}
    texts = [row["text"] for row in job.ledger.tables["notices"].to_pylist()]
    assert any("drives several devices, device 4 stands for it" in text for text in texts)


@pytest.mark.parametrize("told", [True, False])
def test_two_ranks_of_two_devices_each_are_two_ranks(tmp_path: Path, told: bool) -> None:
    for rank in range(2):
        made = one_process(fused(own_ids=False, told=told))
        if told:
            made["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        else:
            made.pop("distributedInfo", None)
        path = write(tmp_path / f"rank{rank}.json", made)
    job = read(path.parent)
    assert job.ledger.run.ranks_seen == (0, 1)
    assert [Path(file.address).name for file in job.files] == ["rank0.json", "rank1.json"]
    assert job.set_aside == ()


def test_a_file_of_more_devices_than_a_job_has_is_refused(tmp_path: Path) -> None:
    made = trace(0, 1)
    kernel = {**next(event for event in made["traceEvents"] if event["cat"] == "kernel")}
    made["traceEvents"] += [{**kernel, "pid": at, "args": {"device": at, "stream": 7}} for at in range(300)]
    path = write(tmp_path / "t.json", made)
    with pytest.raises(TraceError, match=r"t\.json holds 300 devices, more than 256"):
        read(path)


def test_what_strayed_to_another_device_makes_no_rank(tmp_path: Path) -> None:
    made = trace(0, 1, steps=tuple(range(60)))
    stray = {"ph": "X", "cat": "kernel", "name": "fill", "pid": 1, "tid": 7, "dur": 1}
    stray["ts"], stray["args"] = made["traceEvents"][0]["ts"] + 1, {"device": 1, "stream": 7}
    made["traceEvents"].append(stray)
    job = read(write(tmp_path / "t.json", made))
    assert job.ledger.run.ranks_seen == (0,)


def test_a_fused_file_found_elsewhere() -> None:
    job = read(shared("traces", "outside", "single", "fused_4_devices_mi300x.json.gz"))
    assert job.ledger.run.ranks_seen == (0, 1, 2, 3)
    first = [parts for (rank, _), parts in steps(job.ledger).items() if rank == 0]
    assert round(sum(parts[0] for parts in first) / len(first) / 1e6, 1) == 15.9
    assert round(sum(parts[1] for parts in first) / len(first) / 1e6, 1) == 13.7
    rows = job.ledger.tables["collectives"].to_pylist()
    reduces = sum(row["op"] == "all_reduce" and row["step"] is not None for row in rows)
    assert reduces == 4 * 5 * len(first)
