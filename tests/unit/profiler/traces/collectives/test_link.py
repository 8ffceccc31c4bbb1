from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardtoll.profiler.traces.collectives.gloo import spans
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.collectives.launches import launches
from shardtoll.profiler.traces.collectives.link import Linker
from shardtoll.profiler.traces.collectives.steps import find_steps
from shardtoll.profiler.traces.file.trace_columns import CommArgs
from shardtoll.profiler.traces.rank.facts import layers_of
from shardtoll.profiler.traces.rank.split import COMM, COMPUTE, LOOKALIKE, MOVE
from tests.unit.profiler.traces.build import ALL_REDUCE, GEMM, SEND_RECV, Build

TABLE = load_table()
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = CommArgs(name="allreduce", dtype="Float", in_elements=10, out_elements=10, group="1", group_size=2)
GATHER = replace(REDUCE, name="_allgather_base", out_elements=20)


def linked(build):
    trace = build.trace()
    works = np.flatnonzero(layers_of(trace, TABLE) == COMM)
    launch = launches(trace.device, trace.calls)[works]
    return Linker(trace, TABLE).link(works.tolist(), launch.tolist(), [0] * len(works))


def only(build):
    (row,) = linked(build)
    return row


def test_layers():
    build = (
        Build()
        .work(ALL_REDUCE, 0, 1)
        .work(GEMM, 1, 2)
        .work("my_all_gather", 2, 3)
        .copy("Memcpy HtoD", 3, 4)
        .memset(4, 5)
    )
    assert layers_of(build.trace(), TABLE).tolist() == [COMM, COMPUTE, LOOKALIKE, MOVE, MOVE]


def test_the_kernels_own_args_come_first():
    build = Build().op("record_param_comms", 0, 9, external=5, args=replace(REDUCE, in_elements=99, seq=4))
    row = only(build.work(ALL_REDUCE, 20, 30, launch=5, external=5, args=REDUCE))
    assert (row.how, row.op, row.args.in_elements, row.args.seq) == ("args", "all_reduce", 10, 4)
    assert (row.issue_ns, row.thread) == (0, 0)


def test_external_id():
    build = Build().op("record_param_comms", 0, 9, thread=2, external=5, args=REDUCE)
    row = only(build.work(GENERIC, 20, 30, external=5))
    assert (row.how, row.op, row.args, row.issue_ns, row.thread) == ("external", "all_reduce", REDUCE, 0, 2)


def test_the_launch_inside_an_annotation():
    """As in traces of old: the operator says nothing, the annotation has name and shapes."""
    shapes = CommArgs(dims=((8, 4),), types=("float",))
    build = Build().op("record_param_comms", 0, 9).note("nccl:all_to_all", 1, 8, args=shapes)
    row = only(build.work(SEND_RECV, 20, 30, launch=5))
    assert (row.how, row.op, row.args, row.label, row.issue_ns) == (
        "launch",
        "all_to_all",
        shapes,
        "nccl:all_to_all",
        1,
    )


def test_an_annotation_of_another_thread_does_not_count():
    row = only(Build().note("nccl:all_to_all", 0, 9, thread=1).work(SEND_RECV, 20, 30, launch=5))
    assert (row.how, row.op) == ("name", None)


def test_later_sources_fill_and_never_contradict():
    build = Build().op("record_param_comms", 0, 9, external=5, args=GATHER)
    build.note("nccl:all_reduce", 1, 8, args=CommArgs(dims=((7,),), types=("float",)))
    row = only(build.work(GENERIC, 20, 30, launch=5, external=5))
    assert (row.op, row.args) == ("all_gather", GATHER)


def test_wait_is_no_collective():
    build = Build().op("record_param_comms", 0, 9, external=5, args=replace(REDUCE, name="wait", group="77"))
    row = only(build.work(ALL_REDUCE, 20, 30, launch=5, external=5))
    assert (row.how, row.op, row.args.group) == ("name", "all_reduce", None)


def test_only_the_name_is_left():
    row = only(Build().work(ALL_REDUCE, 20, 30))
    assert (row.how, row.op, row.issue_ns, row.thread, row.args) == (
        "name",
        "all_reduce",
        None,
        -1,
        CommArgs(),
    )
    assert only(Build().work(GENERIC, 20, 30)).op is None


def test_several_kernels_of_one_collective_do_not_each_have_its_size():
    build = Build().op("record_param_comms", 0, 9, args=replace(REDUCE, name="all_to_allv"))
    rows = linked(build.work(SEND_RECV, 20, 30, launch=5).work(SEND_RECV, 30, 40, launch=6))
    assert [(row.op, row.shared) for row in rows] == [("all_to_all", True)] * 2


def test_one_kernel_for_several_collectives_of_a_coalescing_block():
    build = Build().work(ALL_REDUCE, 1, 2, launch=0)
    build.op("record_param_comms", 10, 12, args=REDUCE).op(
        "record_param_comms", 13, 15, args=replace(REDUCE, in_elements=5)
    )
    row = linked(build.work(ALL_REDUCE, 40, 50, launch=20))[1]
    assert (row.how, row.op, row.args.in_elements, row.issue_ns) == ("coalesced", "all_reduce", 15, 10)


def test_what_was_captured_is_not_billed_to_a_graphs_kernels():
    build = Build().call("cudaGraphLaunch", 50, 51, correlation=900)
    for at in (10, 13, 16):
        build.op("record_param_comms", at, at + 2, args=REDUCE)
    build.work(ALL_REDUCE, 60, 70).work(ALL_REDUCE, 70, 80)
    build.rows["device"] = [(*row[:6], 900, *row[7:]) for row in build.rows["device"]]
    rows = linked(build)
    assert [(row.how, row.args.in_elements) for row in rows] == [("name", None)] * 2


def test_what_was_captured_is_not_billed_to_a_later_kernel():
    build = Build().call("cudaStreamBeginCapture", 8, 9).call("cudaStreamEndCapture", 20, 21)
    for at in (10, 13, 24):
        build.op("record_param_comms", at, at + 2, args=REDUCE)
    row = only(build.work(ALL_REDUCE, 60, 70, launch=30))
    assert (row.how, row.args.in_elements) == ("coalesced", 10)


def test_batched_sends_and_receives_get_a_row_each():
    send = CommArgs(name="send", dtype="Float", in_elements=4, target_rank=1, source_rank=0)
    recv = CommArgs(name="recv", dtype="Float", out_elements=6, target_rank=0, source_rank=1)
    build = Build().op("record_param_comms", 0, 2, args=send).op("record_param_comms", 3, 5, args=recv)
    rows = linked(build.work(SEND_RECV, 40, 50, launch=20))
    assert [(row.op, row.start_ns, row.end_ns) for row in rows] == [("send", 40, 50), ("recv", 40, 50)]


def test_an_operator_with_a_kernel_of_its_own_is_not_coalesced():
    build = Build().op("record_param_comms", 10, 12, args=REDUCE)
    rows = linked(build.work(ALL_REDUCE, 15, 18, launch=11).work(ALL_REDUCE, 40, 50, launch=20))
    assert [row.how for row in rows] == ["launch", "name"]


def test_gloo_spans_take_the_earliest_open_request():
    build = Build().op("c10d::allreduce_", 0, 1).op("c10d::send", 2, 3).op("c10d::allreduce_", 4, 5)
    shapes = CommArgs(dims=((8,),), types=("float",))
    build.note("gloo:all_reduce", 10, 20, thread=1, args=shapes).note(
        "gloo:all_reduce", 20, 30, thread=2, args=shapes
    )
    build.note("gloo:send", 3, 9, thread=1, args=shapes)
    trace = build.trace()
    rows = spans(trace, find_steps(trace))
    assert [(row.op, row.issue_ns, row.start_ns, row.how) for row in rows] == [
        ("send", 2, 3, "span"), ("all_reduce", 0, 10, "span"), ("all_reduce", 4, 20, "span"),
    ]  # fmt: skip


def test_gloo_spans_that_begin_in_another_order_than_asked_for_are_told_apart_by_their_shapes():
    large, small = (CommArgs(dims=((size,),), types=("float",)) for size in (4096, 4))
    build = Build().op("c10d::allreduce_", 0, 1, args=large).op("c10d::allreduce_", 2, 3, args=small)
    build.note("gloo:all_reduce", 10, 20, thread=1, args=small)
    build.note("gloo:all_reduce", 11, 30, thread=2, args=large)
    trace = build.trace()
    rows = spans(trace, find_steps(trace))
    assert [(row.issue_ns, row.start_ns, row.args.dims) for row in rows] == [
        (2, 10, ((4,),)), (0, 11, ((4096,),)),
    ]  # fmt: skip


def test_a_gloo_span_whose_request_was_not_recorded():
    build = Build().note("gloo:all_reduce", 1, 3, thread=1).op("c10d::allreduce_", 4, 5)
    trace = build.note("gloo:all_reduce", 6, 8, thread=1).trace()
    assert [(row.issue_ns, row.thread) for row in spans(trace, find_steps(trace))] == [(1, 1), (4, 0)]
