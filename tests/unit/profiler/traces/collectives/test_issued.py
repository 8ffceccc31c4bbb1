"""Traces without a device timeline: its times are unknown, and annotations tell of collectives; MTIA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import Ledger, analyze
from shardtoll.profiler.traces import read_traces
from tests.shared_inputs import shared
from tests.small_traces import trace, write

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")


def read(path: Path) -> Ledger:
    (job,) = read_traces([str(path)], jobs=1, cache=False)
    return job.ledger


def host_only(prefix: str = "nccl", **head: Any) -> dict[str, Any]:
    """Return a trace of two operators and two collectives of one step, as its host saw them."""
    made = trace(0, 2, steps=(3,))
    (step,) = (event for event in made["traceEvents"] if event["cat"] == "user_annotation")
    at = step["ts"]

    def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        return {**step, "cat": cat, "name": name, "ts": at + ts, "dur": dur, "args": args}

    size = {"Collective name": "all_to_allv", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Float"}
    events = [step]
    for ts in (100, 300):
        events += [
            event("cpu_op", "aten::mm", ts, 50),
            event("cpu_op", "record_param_comms", ts + 61, 20, **size, **{"Group size": 2}),
            event("user_annotation", f"{prefix}:all_to_all", ts + 60, 30),
        ]
    return {"traceEvents": events, **head}


@pytest.mark.parametrize(
    "made",
    [
        host_only(),
        host_only("hccl"),
        host_only("x", distributedInfo={"backend": "cpu:gloo,cuda:nccl", "rank": 0, "world_size": 2}),
        host_only("x", deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]),
    ],
)
def test_without_a_device_timeline_its_times_are_unknown(tmp_path: Path, made: dict[str, Any]) -> None:
    ledger = read(write(tmp_path / "t.json", made))
    (step,) = ledger.tables["steps"].to_pylist()
    assert [step[name] for name in PARTS] == [0, 0, 0, 0, step["duration_ns"]]
    assert step["level"] == "watch"
    assert ledger.run.device != "cpu"
    rows = ledger.tables["collectives"].to_pylist()
    assert [row["op"] for row in rows] == ["all_to_all"] * 2
    assert [row["message_bytes"] for row in rows] == [256, 256]
    assert {row[name] for row in rows for name in ("start_ns", "duration_ns", "exposed_ns")} == {None}
    assert all(row["issue_ns"] is not None for row in rows)
    report = analyze(ledger)
    assert report.headline is not None
    assert report.headline.startswith(
        "There is no device timeline, so compute, exposed communication and idle"
    )
    assert "no-device-timeline" in {notice.kind for notice in report.notices}


def test_a_job_on_cpus_keeps_its_operators_as_compute(tmp_path: Path) -> None:
    made = host_only("gloo")
    (step,) = read(write(tmp_path / "t.json", made)).tables["steps"].to_pylist()
    assert step["compute_ns"] == 100_000
    assert step["level"] == "survey"


def test_annotations_tell_of_collectives_beside_a_device_without_their_kernels(tmp_path: Path) -> None:
    made = host_only("hccl")
    kernel = {**made["traceEvents"][0], "cat": "kernel", "name": "gemm", "args": {"device": 0, "stream": 7}}
    kernel["dur"] = 50
    made["traceEvents"].append(kernel)
    ledger = read(write(tmp_path / "t.json", made))
    rows = ledger.tables["collectives"].to_pylist()
    assert [(row["op"], row["exposed_ns"]) for row in rows] == [("all_to_all", None)] * 2
    (step,) = {row["level"] for row in ledger.tables["steps"].to_pylist()}
    assert step == "survey"
    analyze(ledger)


def test_events_of_mtia_are_device_work(tmp_path: Path) -> None:
    made = host_only("hccl", deviceProperties=[{"id": 17, "name": "ARTEMIS", "maxGridHeight": 8}])
    base = made["traceEvents"][0]
    for name, ts, dur, args in (
        ("merge", 400, 100, {"stream": 101, "correlation": 5}),
        ("event_wait", 500, 300, {"stream": 101}),
        ("dma_request", 800, 40, {"stream": 102, "size": 1024}),
        ("hccl_all_gather", 850, 30, {"stream": 103}),
    ):
        event = {**base, "cat": "mtia_ccp_events", "name": name, "pid": 17, "dur": dur, "args": args}
        made["traceEvents"].append({**event, "ts": base["ts"] + ts})
    call = {**base, "cat": "mtia_runtime", "name": "runFunction", "dur": 5, "args": {"correlation": 5}}
    made["traceEvents"].append({**call, "ts": base["ts"] + 350})
    del made["traceEvents"][0]
    ledger = read(write(tmp_path / "t.json", made))
    (step,) = ledger.tables["steps"].to_pylist()
    assert [step[name] for name in PARTS[:3]] == [100_000, 30_000, 40_000]
    (row,) = ledger.tables["collectives"].to_pylist()
    assert (row["op"], row["duration_ns"]) == ("all_gather", 30_000)
    assert ledger.run.device == "MTIA ARTEMIS"


def test_files_found_elsewhere() -> None:
    folder = shared("traces", "outside", "single")
    for name in ("distributed_info_not_found", "rank_not_found"):
        ledger = read(folder / f"{name}.json.gz")
        (step,) = ledger.tables["steps"].to_pylist()
        assert [step[part] for part in PARTS[:4]] == [0, 0, 0, 0]
        ops = ledger.tables["collectives"].column("op").to_pylist()
        assert ops == ["all_to_all"] * 6
    ledger = read(folder / "mtia_inference_rank_0.json.gz")
    (step,) = ledger.tables["steps"].to_pylist()
    assert step["compute_ns"] > 400_000_000
    assert ledger.run.device == "MTIA ARTEMIS"
