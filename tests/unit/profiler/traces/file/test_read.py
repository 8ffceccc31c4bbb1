"""One trace file becomes columns: compared with the plainest way to read it, and on small files by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.events import read_events
from shardtoll.profiler.traces.file.meta import host_from_name, rank_from_name, read_meta
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import TraceFile, find
from shardtoll.profiler.traces.file.trace_columns import COPY, KERNEL, SET, CommArgs, HostWork, Trace

KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": SET}
Write = Callable[..., TraceFile]


def ns(microseconds: Any) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value())


def plain(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return document, document["traceEvents"]


def spans(work: Any, trace: Trace) -> list[tuple[int, int, str]]:
    names = [trace.names[number] for number in work.name.tolist()]
    return list(zip(work.start_ns.tolist(), work.end_ns.tolist(), names, strict=True))


def of(events: list[dict[str, Any]], base_ns: int, *categories: str) -> list[tuple[int, int, str]]:
    return [
        (base_ns + ns(event["ts"]), base_ns + ns(event["ts"]) + ns(event["dur"]), event["name"])
        for event in events
        if event.get("ph") == "X" and event.get("cat") in categories
    ]


def test_a_real_trace_reads_as_the_plainest_reader_reads_it(real: Path) -> None:
    document, events = plain(real)
    trace = read_trace(find([str(real)])[0])
    base_ns = document.get("baseTimeNanoseconds", 0)
    assert (trace.events, trace.notices) == (len(events), [])
    device = [event for event in events if event.get("ph") == "X" and event.get("cat") in KINDS]
    by_start = sorted(of(device, base_ns, *KINDS))
    assert sorted(spans(trace.device, trace)) == by_start
    assert sorted(trace.device.correlation.tolist()) == sorted(e["args"]["correlation"] for e in device)
    assert sorted(trace.device.stream.tolist()) == sorted(e["args"]["stream"] for e in device)
    assert sorted(trace.device.bytes.tolist()) == sorted(e["args"].get("bytes", -1) for e in device)
    assert np.bincount(trace.device.kind, minlength=3).tolist() == [
        sum(event["cat"] == category for event in device) for category in KINDS
    ]
    assert spans(trace.annotations, trace) == of(events, base_ns, "user_annotation")
    assert spans(trace.frames, trace) == of(events, base_ns, "python_function")
    assert set(spans(trace.ops, trace)) <= set(of(events, base_ns, "cpu_op"))
    assert set(spans(trace.calls, trace)) <= set(of(events, base_ns, "cuda_runtime", "cuda_driver"))
    launched = set(trace.device.correlation.tolist())
    calls = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and e.get("ph") == "X"]
    launching = [e["args"]["correlation"] for e in calls if e["args"]["correlation"] in launched]
    assert sorted(set(launching)) == sorted(launched & set(trace.calls.correlation.tolist()))
    comms = [e for e in events if e.get("name") == "record_param_comms" and e.get("ph") == "X"]
    is_comm = np.array([name == "record_param_comms" for name in trace.names])
    assert trace.ops.external[is_comm[trace.ops.name]].tolist() == [e["args"]["External id"] for e in comms]
    assert trace.meta.rank == document["distributedInfo"]["rank"]
    assert trace.meta.world_size == document["distributedInfo"]["world_size"]


def test_a_real_trace_gives_all_its_events_as_a_table(real: Path) -> None:
    document, events = plain(real)
    table = read_events(find([str(real)])[0])
    base_ns = document.get("baseTimeNanoseconds", 0)
    assert [tuple(row.values())[:7] for row in table.to_pylist()] == [
        (place, e["cat"], e["name"], str(e["pid"]), str(e["tid"]), base_ns + ns(e["ts"]), ns(e["dur"]))
        for place, e in enumerate(events)
        if e.get("ph") == "X"
    ]


def test_compression_does_not_matter(traces: Path, tmp_path: Path) -> None:
    packed = traces / "hta_sampled_rank0of128.json.gz"
    content = gzip.decompress(packed.read_bytes())
    first = read_trace(find([str(packed)])[0])
    for name, made in {
        "rank0.json": content,
        "rank0.zst": zstandard.compress(content),
        "rank0.gz": content,
    }.items():
        (tmp_path / name).write_bytes(made)
        again = read_trace(find([str(tmp_path / name)])[0])
        assert again.names == first.names
        assert again.device.start_ns.tolist() == first.device.start_ns.tolist()


def event(category: str, name: str, ts: Any, dur: Any, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 9,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def trace_of(write: Write, events: list[dict[str, Any]], name: str = "rank0.json", **top: Any) -> Trace:
    return read_trace(write(json.dumps({**top, "traceEvents": events}), name))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5_000),
        ("4458676522690.655", 4458676522690655),
        ("8796093022207.999", 8796093022207999),
        ("8796093022208.001", 8796093022208001),
        ("1694128201426556.123", 1694128201426556123),
        ("1694128201426556", 1694128201426556000),
        ("1.5e3", 1_500_000),
        ("-0.001", -1),
        ("0.0004", 0),
    ],
)
def test_nanoseconds_are_exact(written: Write, text: str, expected: int) -> None:
    line = f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {text}, "dur": 0.001}}'
    other = line.replace(text, "7.5")
    for content in (f"[{line}]", f"[{other}, {line}]"):
        trace = read_trace(written(content))
        assert trace.device.start_ns[-1] == expected
        assert trace.device.end_ns[-1] == expected + 1


def test_the_base_time_is_added_and_the_display_unit_changes_nothing(written: Write) -> None:
    trace = trace_of(
        written,
        [event("kernel", "k", 1.5, 2)],
        baseTimeNanoseconds=1_700_000_000_000_000_000,
        displayTimeUnit="ms",
    )
    assert trace.device.start_ns.tolist() == [1_700_000_000_000_001_500]
    assert (trace.start_ns, trace.end_ns) == (1_700_000_000_000_001_500, 1_700_000_000_000_003_500)
    assert trace.meta.base_ns == 1_700_000_000_000_000_000


def test_what_a_device_makes_needless_is_dropped_even_if_the_device_shows_late(written: Write) -> None:
    ops = [
        event("cpu_op", name, 1, 1) for name in ("aten::mm", "aten::item", "record_param_comms", "c10d::send")
    ]
    calls = [
        event("cuda_runtime", name, 1, 1, correlation=5)
        for name in (
            "cudaLaunchKernel",
            "cudaGetDevice",
            "cudaEventQuery",
            "cudaStreamSynchronize",
            "hipMemcpyAsync",
        )
    ]
    for events in (ops + calls + [event("kernel", "k", 5, 1)], [event("kernel", "k", 5, 1), *ops, *calls]):
        trace = trace_of(written, events)
        assert [name for _, _, name in spans(trace.ops, trace)] == [
            "aten::item",
            "record_param_comms",
            "c10d::send",
        ]
        assert [name for _, _, name in spans(trace.calls, trace)] == [
            "cudaLaunchKernel",
            "cudaStreamSynchronize",
            "hipMemcpyAsync",
        ]
    alone = trace_of(written, ops)
    assert len(alone.ops.name) == 4


def test_device_and_stream_are_those_of_the_args_or_else_of_the_event(written: Write) -> None:
    trace = trace_of(
        written,
        [event("kernel", "a", 1, 1, tid=7, device=2, stream=40), event("gpu_memset", "b", 1, 1, tid="8")],
    )
    assert trace.device.device.tolist() == [2, 9]
    assert trace.device.stream.tolist() == [40, 8]


def test_ids_may_be_texts_or_of_an_old_name(written: Write) -> None:
    trace = trace_of(
        written,
        [
            event("kernel", "a", 1, 1, **{"External id": "12", "correlation": "34"}),
            event("kernel", "b", 1, 1, **{"external id": 56}),
            event("kernel", "c", 1, 1, **{"External id": "x", "correlation": 1e30}),
            event("kernel", "d", 1, 1, **{"External id": None, "correlation": 2**70}),
        ],
    )
    assert trace.device.external.tolist() == [12, 56, -1, -1]
    assert trace.device.correlation.tolist() == [34, -1, -1, -1]


def test_what_an_event_says_of_its_collective(written: Write) -> None:
    full = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "In msg nelems": 10,
        "Out msg nelems": "10",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "Global rank start": 0,
        "Global rank stride": 1,
        "Seq": 7,
        "Is asynchronized op": True,
        "In split size": "[]",
        "Out split size": [4, 6],
        "Input Dims": [[[5, 2], [3]], [], [], [4]],
        "Input type": ["TensorList", "Scalar", "", "float"],
    }
    trace = trace_of(
        written,
        [
            event("cpu_op", "record_param_comms", 1, 1, **full),
            event("cpu_op", "record_param_comms", 1, 1, **{"Process Group Ranks": "[0, 1, ...]"}),
            event(
                "user_annotation", "gloo:broadcast", 1, 1, **{"Input Dims": [[3]], "Input type": ["float"]}
            ),
            event("user_annotation", "mine", 1, 1, **{"Input Dims": [[3]]}),
            event("kernel", "nccl", 1, 1, **full),
        ],
    )
    said = CommArgs(
        name="allreduce",
        dtype="BFloat16",
        in_elements=10,
        out_elements=10,
        group="0",
        group_description="default_pg",
        group_size=2,
        ranks=(0, 1),
        rank_start=0,
        rank_stride=1,
        seq=7,
        is_async=True,
        in_splits=(),
        out_splits=(4, 6),
        dims=((5, 2), (3,), (4,)),
        types=("TensorList", "TensorList", "float"),
    )
    numbers = [*trace.ops.comm.tolist(), *trace.device.comm.tolist(), *trace.annotations.comm.tolist()]
    assert [None if number < 0 else trace.comm_args[number] for number in numbers] == [
        said,
        CommArgs(),
        said,
        CommArgs(dims=((3,),), types=("float",)),
        None,
    ]


def test_async_spans_are_annotations(written: Write) -> None:
    def half(ph: str, ts: float, **more: Any) -> dict[str, Any]:
        return {
            "ph": ph,
            "cat": "user_annotation",
            "id": 3,
            "name": "gloo:send",
            "pid": 9,
            "tid": 4,
            "ts": ts,
            **more,
        }

    trace = trace_of(
        written,
        [
            half("e", 0.5),
            half("b", 1.5, args={"Input Dims": [[2]]}),
            event("user_annotation", "x", 1, 1),
            half("e", 4),
        ],
    )
    assert sorted(spans(trace.annotations, trace)) == [(1000, 2000, "x"), (1500, 4000, "gloo:send")]
    assert trace.comm_args == [CommArgs(dims=((2,),))]


def test_columns_that_do_not_apply_are_there_and_say_so(written: Write) -> None:
    trace = trace_of(written, [event("python_function", "f", 1, 1), event("python_function", "g", 1, 1)])
    frames: HostWork = trace.frames
    assert frames.correlation.tolist() == frames.external.tolist() == frames.comm.tolist() == [-1, -1]
    assert trace.threads == [("9", "1")]


def test_what_a_trace_says_of_its_job(written: Write) -> None:
    info = {
        "backend": "nccl",
        "rank": 1,
        "world_size": 4,
        "nccl_version": "2.27",
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
            {"pg_name": "1", "pg_size": 2, "ranks": "odd"},
            "odd",
        ],
    }
    meta = trace_of(
        written,
        [event("kernel", "k", 1, 1)],
        distributedInfo=info,
        deviceProperties=[{"id": 0, "name": "NVIDIA H200"}],
        with_stack=1,
        host_name="n1",
    ).meta
    assert (meta.rank, meta.world_size, meta.backend, meta.nccl) == (1, 4, "nccl", "2.27")
    assert (meta.device, meta.host, meta.with_stack) == ("NVIDIA H200", "n1", True)
    assert [(group.name, group.ranks, group.size) for group in meta.groups] == [
        ("0", (0, 1, 2, 3), 4),
        ("1", (), 2),
    ]


@pytest.mark.parametrize(
    ("address", "rank", "host"),
    [
        ("a/rank3.json", 3, None),
        ("a/worker3_step_12.1694128201545.pt.trace.json.gz", 3, None),
        ("a/trace_rank-12.json.zst", 12, None),
        ("rank5/trace.json", 5, None),
        ("a/trace_3.json", 3, None),
        ("a/step_100.json", None, None),
        ("a/trace_iter-20.pt.trace.json.gz", None, None),
        ("a/gpu-node7_4711.1694128201545.pt.trace.json", None, "gpu-node7"),
        ("a/hta_nccl_data_rank0of2.json.gz", 0, None),
        ("a/frank3x.json", None, None),
        ("a/trace.json", None, None),
    ],
)
def test_rank_and_host_from_names(address: str, rank: int | None, host: str | None) -> None:
    assert (rank_from_name(address), host_from_name(address)) == (rank, host)


def test_a_rank_from_the_name_is_told(written: Write) -> None:
    trace = trace_of(written, [event("kernel", "k", 1, 1)], "worker2.json")
    assert trace.meta.rank == 2
    assert [kind for kind, _ in trace.notices] == ["rank-from-name"]


@pytest.mark.parametrize(("name", "rank"), [("t_9.json", None), ("t_3.json", 3), ("rank9.json", None)])
def test_a_rank_from_the_name_must_be_in_the_groups(written: Write, name: str, rank: int | None) -> None:
    args = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1, 2, 3]"}
    trace = trace_of(written, [event("kernel", "ncclDevKernel_AllReduce", 1, 1, **args)], name)
    assert trace.meta.rank == rank
    assert [kind for kind, _ in trace.notices] == (["rank-from-name"] if rank else [])


def test_rows_are_limited(written: Write) -> None:
    file = written(json.dumps([event("kernel", "k", 1, 1)] * 11))
    assert len(read_trace(file, row_limit=11).device.name) == 11
    with pytest.raises(TraceError, match="holds more than 10 events of interest: record fewer steps"):
        read_trace(file, row_limit=10)


def test_all_that_the_driver_reports_of_devices_is_kept(written: Write) -> None:
    device = {"name": "", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "numSms": 304}
    meta = read_meta({"deviceProperties": [device, device]}, "trace.json")[0]
    assert (meta.device, meta.device_memory_bytes, meta.device_sms) == (None, 206141652992, 304)
    assert (meta.device_capability, meta.devices) == ("9.4", 2)
    odd = {"name": 5.5, "totalGlobalMem": True, "computeMajor": "9", "numSms": 0}
    meta = read_meta({"deviceProperties": [odd, None]}, "trace.json")[0]
    assert (meta.device_memory_bytes, meta.device_sms, meta.device_capability, meta.devices) == (
        None,
        None,
        None,
        1,
    )


def test_mtia_is_named_with_its_chip() -> None:
    device = {"id": 17, "name": "ARTEMIS", "maxGridHeight": 8, "maxGridWidth": 8}
    assert read_meta({"deviceProperties": [device]}, "trace.json")[0].device == "MTIA ARTEMIS"
