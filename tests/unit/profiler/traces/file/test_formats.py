"""Files of other formats are refused in one line that names the format and what to export instead."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import TraceFile, find
from tests.shared_inputs import shared

Write = Callable[..., TraceFile]


def number(value: int) -> bytes:
    """Return a protobuf number."""
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def field(place: int, content: bytes) -> bytes:
    return bytes([place << 3 | 2]) + number(len(content)) + content


def xplane(name: bytes, *, numbered: bool) -> bytes:
    plane = (b"\x08\x01" if numbered else b"") + field(2, name) + field(4, b"x" * 300)
    return field(1, plane) + field(1, field(2, b"/device:GPU:0"))


def tar() -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as packed:
        info = tarfile.TarInfo("rank0.json")
        info.size = 2
        packed.addfile(info, io.BytesIO(b"{}"))
    return whole.getvalue()


def database(folder: Path, table: str) -> bytes:
    path = folder / "made.sqlite"
    with sqlite3.connect(path) as made:
        made.execute(f"CREATE TABLE {table} (start INTEGER)")
    return path.read_bytes()


NODE = {"name": "aten::mm", "id": 5, "rf_id": 3, "parent": 4}
BINARY = {
    "xplane": (xplane(b"/host:metadata", numbered=False), "is an XPlane profile"),
    "numbered xplane": (xplane(b"/device:TPU:0", numbered=True), "is an XPlane profile"),
    "perfetto": (field(1, b"\x40\x01\x00\x00" * 30), "is a binary file (a protobuf trace of Perfetto?)"),
    "chakra": (
        b"".join(number(len(each)) + each for each in (field(1, b"0.0.4"), b"\x08\x01" + field(2, b"node"))),
        "is a Chakra execution trace (protobuf)",
    ),
    "zip": (b"PK\x03\x04abc", "is a zip archive"),
    "tar": (tar(), "is a tar archive"),
    "packed tar": (gzip.compress(tar()), "is a tar archive"),
    "xz": (b"\xfd7zXZ\0abc", "is packed with xz"),
    "parquet": (b"PAR1abc", "is a Parquet file"),
    "page": (b"<!DOCTYPE html>\n<html></html>", "is an HTML or XML page"),
    "page after a blank line": (b"\n <html></html>", "is an HTML or XML page"),
    "log": (b'V0128 10:11:12.123456 1234 torch/_dynamo.py:9] {"a": 1}', "is a log of torch"),
    "table": (b"Index,KernelName,gpu-id\n0,mm,1\n", "is a table of comma-separated values"),
}
OBJECTS: dict[str, tuple[Any, str]] = {
    "execution trace": (
        {"schema": "1.1", "pid": 1, "start_ts": 5, "nodes": [NODE]},
        "ExecutionTraceObserver",
    ),
    "memory snapshot": ({"segments": [], "device_traces": []}, "is a memory snapshot"),
    "rocprofv3": ({"rocprofiler-sdk-tool": []}, "is the JSON of rocprofv3"),
    "speedscope": ({"$schema": "x", "shared": {}, "profiles": []}, "is a speedscope profile"),
}
LEGACY = {"name": "aten::mm", "ph": "X", "ts": 1, "dur": 1, "tid": 1, "pid": "CPU functions", "args": {}}
DYNAMO = {"cat": "dynamo_timed", "name": "dynamo", "ph": "B", "pid": 0, "tid": 0, "ts": 1}
PLANNED = {"name": "F0", "cat": "computation", "ph": "X", "pid": 0, "tid": 0, "ts": 1, "dur": 1}
ROCPROF = {"args": {"name": "CPU HIP API"}, "ph": "M", "pid": 2, "name": "process_name"}
XLA = {"args": {"name": "/device:TPU:0"}, "ph": "M", "pid": 2, "name": "process_name"}
ASCEND = {"args": {"name": "Ascend Hardware"}, "ph": "M", "pid": 2, "name": "process_name"}
OTHER = {"name": "x", "ph": "B", "pid": 0, "tid": 1, "ts": 2.5}
EVENTS: dict[str, tuple[Any, str]] = {
    "old profiler": ([LEGACY, LEGACY], "is an event list of the old torch.autograd.profiler"),
    "compile": ([DYNAMO], "is a trace of torch.compile's own phases"),
    "schedule": ({"traceEvents": [PLANNED]}, "is a pipeline schedule, planned and not measured"),
    "rocprof": ({"traceEvents": [{}, ROCPROF]}, "is a trace of rocprof"),
    "xla": ({"traceEvents": [XLA, OTHER]}, "is a trace of XLA"),
    "ascend": ([ASCEND, OTHER], "is a trace of Ascend"),
    "another": ([OTHER, OTHER], "is an event list of another program: 2 events with no category"),
    "categories": (
        {"traceEvents": [{**OTHER, "cat": "PERF"}]},
        "is an event list of another program: 1 event with categories PERF",
    ),
    "lists": ([[1, 2], [3]], "is a list of lists"),
    "nothing recorded": (
        {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "Trace", "name": "x", "ts": 1, "dur": 1}]},
        "is an empty trace of torch.profiler",
    ),
}


def refused(file: TraceFile) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{file.address} ")
    # What is wrong, then what to do instead.
    assert caught.value.hint
    assert caught.value.hint != "name a trace that torch.profiler exported"
    return text


@pytest.mark.parametrize("kind", BINARY)
def test_what_is_not_json(written: Write, kind: str) -> None:
    content, what = BINARY[kind]
    assert what in refused(written(content))


@pytest.mark.parametrize("kind", OBJECTS | EVENTS)
def test_json_of_other_programs(written: Write, kind: str) -> None:
    content, what = (OBJECTS | EVENTS)[kind]
    assert what in refused(written(json.dumps(content)))
    assert what in refused(written(json.dumps(content, indent=4)))


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "is an export of Nsight Systems (SQLite)"),
        ("rocpd_kernelapi", "is a database of rocprof"),
        ("anything", "is an SQLite database"),
    ],
)
def test_databases(written: Write, tmp_path: Path, table: str, what: str) -> None:
    assert what in refused(written(database(tmp_path, table)))


def test_one_event_of_torch_makes_a_trace(written: Write) -> None:
    known = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    assert read_trace(written(json.dumps([OTHER, known]))).events == 2


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("HIP_results.json", "is a trace of rocprof"),
        ("allreduce_tp4.json", "is an event list of another program"),
        ("benchmark_simple_add_et.json.gz", "is a PyTorch execution trace"),
        ("chromium_events.json", "is a trace of torch.compile's own phases"),
        ("legacy_event_list.json.gz", "is an event list of the old torch.autograd.profiler"),
        ("local_test_forward_hf_gpt2.json", "is an event list of the old torch.autograd.profiler"),
        ("tf_viewer.json.gz", "is an event list of another program"),
        ("tw003.xplane.pb", "is an XPlane profile"),
    ],
)
def test_files_found_elsewhere(name: str, what: str) -> None:
    assert what in refused(find([str(shared("traces", "outside", "refuse", name))])[0])
