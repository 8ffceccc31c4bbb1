"""A GPU rank's records and its trace, through the reader that reads every trace, into one ledger.

The job is made up and small enough for the answers to be known: one step of 1000 us in which a matmul
runs 100 to 400, an all_gather 300 to 500 and an all_reduce 600 to 700 us, from the step's start.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shardtoll.ledger import Collective, Group, Ledger, Notice, Run, Step, analyze
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import to_records, to_table
from shardtoll.profiler.live.session.joining import with_trace
from shardtoll.profiler.live.times.tracing import Tracer

US = 1_000
BASE_NS = 1_790_000_000_000_000_000
STEP_AT = 5_000
"""Where the step begins in the trace, us."""
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(cat: str, name: str, at: float, dur: float, *, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": STEP_AT + at,
        "dur": dur,
        "args": args,
    }


def kernel(name: str, at: float, dur: float, number: int, stream: int, **args: Any) -> list[dict[str, Any]]:
    tie = {"correlation": number, "External id": number}
    return [
        event("cuda_runtime", "cudaLaunchKernel", number * 5, 3, **tie),
        event("kernel", name, at, dur, tid=stream, device=0, stream=stream, **tie, **args),
    ]


def of(collective: str, seq: int, elements_in: int, elements_out: int) -> dict[str, Any]:
    return {
        "Collective name": collective,
        "dtype": "Float",
        "In msg nelems": elements_in,
        "Out msg nelems": elements_out,
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": seq,
    }


def recording() -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [
            event("user_annotation", "ProfilerStep#0", 0, 1000),
            *kernel("sm90_xmma_gemm_f32", 100, 300, 1, 7),
            *kernel(GATHER, 300, 200, 2, 20, **of("_allgather_base", 11, 512, 1024)),
            *kernel(REDUCE, 600, 100, 3, 24, **of("allreduce", 12, 256, 256)),
        ],
    }


def collective(op: str, seq: int, message_bytes: int, at_us: int, **cause: Any) -> Collective:
    values: dict[str, Any] = {
        "step": 0,
        "rank": 0,
        "group": "0",
        "group_size": 2,
        "mesh_dim": "dp",
        "seq": seq,
        "op": op,
        "dtype": "float32",
        "message_bytes": message_bytes,
        "wire_bytes": message_bytes,
        "issue_ns": at_us * US,
        "start_ns": None,
        "duration_ns": None,
        "exposed_ns": None,
        "phase": "forward",
        "implicit": True,
        "placements_from": "(Shard(0),)",
        "placements_to": "(Replicate(),)",
        "caused_by_op": "aten.mm.default",
        "source": "train.py:7 (step)",
    } | cause
    return Collective(**values)


def live() -> Ledger:
    """What live capture has on a GPU: causes, and a step nothing is known of but its length."""
    run = Run(2, "nccl", "NVIDIA H200", "2.13", ("a",), {"dp": 2}, "live", (0,), BASE_NS + 4_900 * US)
    rows: dict[str, list[Any]] = {
        "steps": [Step(0, 0, 100 * US, 1000 * US, 0, 0, 0, 0, 1000 * US)],
        "collectives": [
            collective("all_gather", 11, 4096, 110, module="blocks.0", parameter="blocks.0.weight"),
            collective("all_reduce", 12, 1024, 115, module="blocks.1"),
        ],
        "notices": [Notice(0, "times-unknown", "device times are not captured live", 0)],
    }
    tables = {**empty_tables(), **{name: to_table(name, found) for name, found in rows.items()}}
    return Ledger(run, (Group("0", (0, 1), "dp", "nccl", "mesh_dp"),), tables)


class Recorded:
    """Stands for torch's result of a recording."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def save(self, path: str) -> None:
        Path(path).write_text(json.dumps(self._document), encoding="utf-8")


class Spans:
    """Stands for the profiler on a machine with a GPU: says what was asked of it, gives a recording."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.asked: list[str] = []
        self.running = False
        self._documents = list(documents)

    def start(self, *, everything: bool, device: bool) -> bool:
        assert everything
        assert device
        self.asked.append("start")
        self.running = True
        return True

    def stop(self) -> list[Any]:
        self.asked.append("stop")
        self.running = False
        return []

    def take_recording(self) -> Recorded | None:
        return Recorded(self._documents.pop(0)) if self._documents else None


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    found = Spans(recording())
    quiet = SimpleNamespace(__enter__=lambda: None, __exit__=lambda *_: None)
    monkeypatch.setattr(torch.profiler, "record_function", lambda name: quiet)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: found.asked.append("synchronize"))
    return found


def traced(spans: Any, steps: int, most: int) -> Tracer:
    tracer = Tracer(spans, most, torch.device("cuda"))
    for step in range(steps):
        tracer.begin(step)
        tracer.end(step, whole=True)
        tracer.end(None, whole=True)
    return tracer


def joined(spans: Any, folder: Path) -> Ledger:
    return with_trace(live(), traced(spans, 1, 1), folder)


def test_records_of_a_gpu_rank_get_kernel_times_and_keep_their_causes(spans: Spans, tmp_path: Path) -> None:
    ledger = joined(spans, tmp_path)
    assert to_records("notices", ledger.tables["notices"]) == []
    gather, reduce = to_records("collectives", ledger.tables["collectives"])
    # The trace's clock stands 100 us behind the run's epoch when the step begins.
    assert (gather.start_ns, gather.duration_ns, gather.exposed_ns) == (400 * US, 200 * US, 100 * US)
    assert (reduce.start_ns, reduce.duration_ns, reduce.exposed_ns) == (700 * US, 100 * US, 100 * US)
    assert (gather.kernel, gather.stream) == (GATHER, 20)
    assert (gather.caused_by_op, gather.module, gather.parameter) == (
        "aten.mm.default",
        "blocks.0",
        "blocks.0.weight",
    )
    assert (gather.implicit, gather.placements_to, gather.mesh_dim) == (True, "(Replicate(),)", "dp")
    (step,) = to_records("steps", ledger.tables["steps"])
    assert (step.compute_ns, step.exposed_comm_ns) == (300 * US, 200 * US)
    assert step.idle_ns + step.compute_ns + step.exposed_comm_ns == step.duration_ns
    assert step.unattributed_ns == 0


def test_the_joined_ledger_makes_findings_with_tolls_and_causes(spans: Spans, tmp_path: Path) -> None:
    report = analyze(joined(spans, tmp_path))
    (found,) = [
        f for f in report.findings if f.kind == "implicit-redistribute" and f.where.module == "blocks.0"
    ]
    assert found.toll_ns == 100 * US
    assert found.where.op == "aten.mm.default"


def test_on_a_gpu_one_recording_goes_over_all_traced_steps(spans: Spans) -> None:
    tracer = traced(spans, 5, 3)
    # The device is waited for once, after the last traced step, and never in one.
    assert spans.asked == ["start", "synchronize", "stop"]
    assert tracer.steps == {0, 1, 2}
    assert not tracer.recording


def test_a_session_with_fewer_steps_ends_its_recording_when_it_closes(spans: Spans, tmp_path: Path) -> None:
    tracer = traced(spans, 1, 3)
    assert tracer.recording
    ledger = with_trace(live(), tracer, tmp_path)
    assert spans.asked == ["start", "synchronize", "stop"]
    assert to_records("collectives", ledger.tables["collectives"])[0].duration_ns == 200 * US


def test_a_recording_taken_away_by_another_profiler_is_a_line(spans: Spans, tmp_path: Path) -> None:
    tracer = Tracer(Spans(), 1, torch.device("cuda"))  # type: ignore[arg-type]
    tracer.begin(0)
    tracer.end(0, whole=True)
    ledger = with_trace(live(), tracer, tmp_path)
    kinds = [notice.kind for notice in to_records("notices", ledger.tables["notices"])]
    assert kinds == ["times-unknown", "trace-missing"]
    assert list(tmp_path.glob("trace.*")) == []


def test_what_was_no_step_is_thrown_away(spans: Spans) -> None:
    tracer = Tracer(spans, 1, torch.device("cuda"))  # type: ignore[arg-type]
    tracer.begin(0)
    tracer.end(None, whole=True)
    assert tracer.steps == set()
    assert spans.asked == ["start", "stop"]
    assert tracer.begin(0)
