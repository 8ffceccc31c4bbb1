"""HTA on our events: the same answers as with its own parser, and failures that cost one line each."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardtoll.analyzers.hta.hta import hta_figures
from shardtoll.analyzers.hta.hta_trace import quiet, trace_of
from shardtoll.ledger.answers.hta_figures import HtaFigures
from shardtoll.ledger.foreign.plain import from_plain, to_plain
from tests.unit.analyzers.hta_events import events_of, table_of

NVIDIA = (
    "hta_nccl_data_rank0of2.json.gz",
    "hta_negative_queue_rank0of16.json.gz",
    "hta_sampled_rank0of128.json.gz",
    "hta_sampled_rank1of128.json.gz",
    "tracelens_b200_eager_rank0of8.json.gz",
    "param_dlrm_v100_8ranks/worker0_step_12.1694128201545.pt.trace.json.gz",
)
AMD = "tracelens_mi300_resnet_rank0of8.json.gz"


def host(name: str, ts: float, dur: float, *, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def launched(
    number: int, call: float, start: float, dur: float, name: str = "gemm", stream: int = 7
) -> list[dict[str, Any]]:
    at = {"correlation": number, "External id": number}
    return [
        host("aten::mm", call - 1, 8),
        host("cudaLaunchKernel", call, 5, cat="cuda_runtime", **at),
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": stream,
            "ts": start,
            "dur": dur,
            "args": {**at, "stream": stream, "device": 0},
        },
    ]


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return host(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def small() -> pa.Table:
    """One step: two kernels that were queued, 10 us apart, then one that the host launched late."""
    events = [step(3, 0, 1000)]
    events += launched(1, 10, 20, 100) + launched(2, 30, 130, 100)
    events += launched(3, 500, 520, 3)
    return table_of(events)


def test_the_idle_time_of_a_stream_is_split_by_its_reason() -> None:
    (idle,) = hta_figures([(4, small())]).idle
    assert (idle.rank, idle.stream) == (4, 7)
    assert idle.kernel_wait_ns == 10_000
    assert idle.host_wait_ns == 290_000
    assert idle.other_ns == 0


def test_launches_are_counted_with_their_delays() -> None:
    (stats,) = hta_figures([(0, small())]).launches
    assert stats.count == 3
    assert stats.short == 1
    assert stats.slow_calls == 0
    # The calls return at 15, 35 and 505 us; the kernels begin at 20, 130 and 520 us.
    assert stats.median_delay_ns == 15_000
    assert stats.most_delay_ns == 95_000
    assert stats.delayed == 0


def test_the_queue_is_as_long_as_what_was_launched_and_not_started() -> None:
    (queue,) = hta_figures([(0, small())]).queues
    assert (queue.stream, queue.most) == (7, 1)
    assert queue.mean == 0.5


def test_the_critical_path_of_a_step_is_the_sum_of_its_kinds() -> None:
    figures = hta_figures([(0, small())])
    (path,) = figures.critical_paths
    assert path.step == 3
    parts = (path.host_ns, path.compute_ns, path.communication_ns, path.kernel_gap_ns, path.launch_ns)
    assert path.length_ns == sum(parts)
    # Operator 9 to 10, launch to 20, kernel to 120, gap to 130, kernel to 230 us. What comes after the
    # host's pause is shorter: to HTA, time between operators weighs nothing.
    assert parts == (1_000, 200_000, 0, 10_000, 10_000)
    assert "no synchronisation events" in figures.notices[0]


def test_two_steps_have_a_path_each_with_its_own_number() -> None:
    events = [step(7, 0, 100), *launched(1, 10, 20, 30), step(8, 100, 100), *launched(2, 110, 120, 60)]
    assert [path.step for path in hta_figures([(0, table_of(events))]).critical_paths] == [7, 8]


def test_the_devices_copy_of_a_step_is_no_step_and_no_kernel() -> None:
    copy = {**step(3, 20, 600), "cat": "gpu_user_annotation", "tid": 7, "args": {"stream": 7}}
    events = [step(3, 0, 1000), copy, *launched(1, 10, 20, 100), *launched(2, 30, 130, 100)]
    figures = hta_figures([(0, table_of(events))])
    assert [path.step for path in figures.critical_paths] == [3]
    assert figures.idle[0].kernel_wait_ns == 10_000


def test_a_rank_hta_cannot_take_is_a_line_and_the_others_are_reported() -> None:
    nothing = table_of([host("aten::mm", 0, 5)])
    empty = small().slice(0, 0)
    figures = hta_figures([(0, nothing), (1, empty), (2, small())])
    assert figures.notices[0] == "rank 0: no device work in the trace, nothing for HTA to look at"
    assert figures.notices[1].startswith("rank 1: HTA gave no events (ValueError: the trace has no events")
    assert {stats.rank for stats in figures.launches} == {2}
    assert all("\n" not in line for line in figures.notices)


def test_process_ids_that_are_text_are_never_evaluated() -> None:
    evil = "__import__('os').getpid()"
    events = [{**event, "pid": evil if event["pid"] == 1 else 0} for event in launched(1, 10, 20, 100)]
    frame = trace_of({0: table_of(events)}, unit_ns=1).traces[0]
    assert frame["pid"].dtype.kind == "i"
    assert hta_figures([(0, table_of(events))]).launches[0].count == 1


def test_hta_neither_prints_nor_warns_nor_leaves_a_log_handler(capfd: pytest.CaptureFixture[str]) -> None:
    before = list(logging.getLogger().handlers), logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hta_figures([(0, small())])
    assert (list(logging.getLogger().handlers), logging.root.manager.disable) == before
    assert capfd.readouterr() == ("", "")


def test_figures_survive_json() -> None:
    figures = hta_figures([(0, small())])
    assert from_plain(HtaFigures, json.loads(json.dumps(to_plain(figures)))) == figures


def test_figures_with_a_text_for_a_number_are_refused() -> None:
    data = json.loads(json.dumps(to_plain(hta_figures([(0, small())]))))
    data["idle"][0]["host_wait_ns"] = "<script>"
    with pytest.raises((TypeError, ValueError)):
        from_plain(HtaFigures, data)


def breakdown(trace: Any) -> tuple[list[Any], list[Any]]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    overlap = CommunicationAnalysis.get_comm_comp_overlap(trace, visualize=False)
    return overlap.values.tolist(), BreakdownAnalysis.get_temporal_breakdown(
        trace, visualize=False
    ).values.tolist()


def parsed_by_hta(path: Path, *, last_step: bool) -> Any:
    from hta.common.trace import Trace

    trace = Trace(trace_files={0: str(path)}, trace_dir=str(path.parent))
    trace.load_traces(include_last_profiler_step=last_step, use_multiprocessing=False)
    return trace


@pytest.mark.parametrize("name", NVIDIA)
def test_hta_says_the_same_of_our_events_as_of_its_own(real_traces: Path, name: str) -> None:
    with quiet():
        theirs = parsed_by_hta(real_traces / name, last_step=False)
        ours = trace_of({0: events_of(real_traces / name)}, unit_ns=1000)
        ours.align_and_filter_trace(False)
        assert breakdown(ours) == breakdown(theirs)


def test_where_the_device_repeats_the_steps_hta_drops_none(real_traces: Path) -> None:
    """Its parser keeps the device's copies of annotations and takes the last of them for the last step."""
    with quiet():
        theirs = parsed_by_hta(real_traces / AMD, last_step=False)
        ours = trace_of({0: events_of(real_traces / AMD)}, unit_ns=1000)
        ours.align_and_filter_trace(True)
        assert breakdown(ours) == breakdown(theirs)


def test_every_real_trace_gets_its_answers(real_traces: Path) -> None:
    for name in NVIDIA:
        figures = hta_figures([(0, events_of(real_traces / name))])
        assert figures.critical_paths, name
        assert figures.idle, name
        assert figures.launches[0].count > 0, name
        assert [line for line in figures.notices if "gave no" in line] == []


def two_streams() -> list[dict[str, Any]]:
    """A kernel on stream 7, 20 to 120 us, for which one on stream 20, 125 to 225 us, waits by an event."""
    wait = {"correlation": 51, "stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 50}
    return [
        step(3, 0, 1000),
        *launched(1, 10, 20, 100),
        host("cudaEventRecord", 22, 1, cat="cuda_runtime", correlation=50),
        host("cudaStreamWaitEvent", 24, 1, cat="cuda_runtime", correlation=51),
        {
            **host("Stream Wait Event", 26, 94, cat="cuda_sync", **wait),
            "pid": 0,
            "tid": 20,
        },
        *launched(2, 30, 125, 100, stream=20),
    ]


def test_a_wait_of_one_stream_for_another_is_on_the_critical_path(tmp_path: Path) -> None:
    from shardtoll.profiler.traces.file.events import read_events
    from shardtoll.profiler.traces.file.sources import find

    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": two_streams()}), encoding="utf-8")
    (file,) = find([str(path)])
    events = read_events(file)
    (found,) = hta_figures([(0, events)]).critical_paths
    assert found.compute_ns == 200_000
    blind = events.drop_columns(["wait_on_stream", "wait_on_cuda_event_record_corr_id"])
    (without,) = hta_figures([(0, blind)]).critical_paths
    assert without.compute_ns == 100_000
