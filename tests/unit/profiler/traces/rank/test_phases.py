from __future__ import annotations

import numpy as np
import pytest

from shardtoll.ledger.records.record import PHASES
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.trace_columns import CommArgs
from shardtoll.profiler.traces.rank.causes import Stacks, causes, source_of
from shardtoll.profiler.traces.rank.facts import work_out
from shardtoll.profiler.traces.rank.phases import ENGINE, Phases
from tests.unit.profiler.traces.build import ALL_REDUCE, GEMM, Build

TABLE = load_table()


def phases_at(build, *places):
    facts = work_out(build.trace(), TABLE)
    threads, times = np.array(places, np.int64).T
    return [PHASES[at] for at in Phases(facts).at(threads, times)]


def training():
    """Forward on thread 0 until 40, backward on thread 1 until 70, then the optimizer."""
    build = Build().note("ProfilerStep#0", 0, 100).note("enumerate(DataLoader)#_Iter.__next__", 1, 9)
    build.work(GEMM, 20, 30, launch=11).op(f"{ENGINE}: AddmmBackward0", 40, 50, 1).op(
        f"{ENGINE}: Relu0", 55, 70, 1
    )
    return build.note("Optimizer.step#SGD.step", 80, 90).call("cudaLaunchKernel", 81, 82)


def test_a_plain_step():
    found = phases_at(
        training(), (0, 5), (0, 20), (1, 45), (1, 52), (0, 52), (0, 75), (0, 85), (0, 95), (3, 50)
    )
    assert found == [
        "other",
        "forward",
        "backward",
        "backward",
        "backward",
        "other",
        "optimizer",
        "other",
        "other",
    ]


def test_forward_between_two_backwards():
    build = training().op(f"{ENGINE}: AddmmBackward0", 93, 96, 1).call("cudaLaunchKernel", 91, 92)
    assert phases_at(build, (0, 75), (0, 92), (0, 98)) == ["forward", "forward", "other"]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("DistributedDataParallel.forward", "forward"),
        ("FSDP::pre_forward (layers.0)", "forward"),
        ("FSDP::post_backward_reduce (layers.0)", "backward"),
        ("FSDP::root_post_backward_callback", "backward"),
        ("FullyShardedDataParallel._pre_backward_hook", "backward"),
        ("Forward 3", "forward"),
        ("Backward 3", "backward"),
        ("PP:0F1", "forward"),
        ("PP:1SEND_B0", "backward"),
        ("PP:1I0", "backward"),
        ("## forward ##", "forward"),
        ("Optimizer.zero_grad#Adam.zero_grad", "optimizer"),
        ("my forward pass", "other"),
    ],
)
def test_annotations(name, phase):
    assert phases_at(Build().note("ProfilerStep#0", 0, 100).note(name, 10, 20), (0, 15)) == [phase]


def test_the_innermost_marker_wins():
    build = Build().note("ProfilerStep#0", 0, 99).note("Optimizer.step#LBFGS.step", 10, 60)
    build.op(f"{ENGINE}: AddmmBackward0", 20, 50).note("Optimizer.step#SGD.step", 30, 40)
    assert phases_at(build, (0, 15), (0, 25), (0, 35)) == ["optimizer", "backward", "optimizer"]


def test_recomputation_of_a_reentrant_checkpoint():
    build = Build().note("ProfilerStep#0", 0, 99).op(f"{ENGINE}: CheckpointFunctionBackward", 10, 50, 1)
    build.op(f"{ENGINE}: AddmmBackward0", 30, 40, 1)
    assert phases_at(build, (1, 20), (1, 35), (1, 45)) == ["recompute", "backward", "recompute"]


@pytest.mark.parametrize(
    "frame",
    [
        "torch/utils/checkpoint.py(1500): recompute_fn",
        "torch/utils/checkpoint.py(1111): unpack_hook",
        "nn.Module: Block_0",
    ],
)
def test_recomputation_by_frames(frame):
    build = Build().note("ProfilerStep#0", 0, 99).op(f"{ENGINE}: AddmmBackward0", 10, 50, 1)
    build.frame(frame, 15, 25, 1).frame(frame, 2, 8)
    assert phases_at(build, (1, 20), (1, 30), (0, 5)) == ["recompute", "backward", "forward"]


def test_recomputation_between_fsdp_hooks_inside_backward():
    build = Build().note("ProfilerStep#0", 0, 99).op(f"{ENGINE}: AddmmBackward0", 10, 50, 1)
    build.note("FSDP::pre_forward (layers.1)", 12, 14, 1).note("FSDP::post_forward (layers.1)", 30, 32, 1)
    assert phases_at(build, (1, 11), (1, 20), (1, 40)) == ["backward", "recompute", "backward"]


def cause(build, launch=15, thread=0, name=ALL_REDUCE):
    facts = work_out(build.work(name, 50, 60, launch=launch, thread=thread).trace(), TABLE)
    (row,) = causes(facts.rows, Phases(facts), Stacks(facts.trace))
    return row


def test_fsdp_names_the_module():
    build = (
        Build()
        .note("FSDP::backward_prefetch for layers.1", 8, 30)
        .note("FSDP::all_gather (layers.0)", 10, 20)
    )
    row = cause(build)
    assert (row.op, row.module) == ("FSDP.all_gather", "layers.0")
    assert cause(Build().note("FSDP::root_pre_forward", 10, 20)).module is None
    assert cause(Build().note("FSDP::backward_prefetch for layers.1", 8, 30)).module == "layers.1"
    assert cause(Build().note("FSDP::post_backward_reduce (a.b) [pg=4]", 8, 30)).module == "a.b"


def test_ddps_reducer():
    build = (
        Build().op(f"{ENGINE}: torch::autograd::AccumulateGrad", 8, 30, 1).op("c10d::allreduce_", 10, 20, 1)
    )
    assert cause(build, thread=1).op == "DistributedDataParallel"


def ddp(dtype, *, steps=2, op="broadcast"):
    """Return what DDP's messages are for, one in each forward (broadcast) or backward (all_reduce)."""
    build, name = Build(), "allreduce" if op == "all_reduce" else op
    args = CommArgs(name=name, dtype=dtype, in_elements=53, out_elements=53)
    for step in range(2):
        at = 100 * step
        build.note(f"ProfilerStep#{step}", at, at + 99).note(
            "DistributedDataParallel.forward", at + 5, at + 40
        )
        if step >= steps:
            continue
        if op == "all_reduce":
            build.op(f"{ENGINE}: torch::autograd::AccumulateGrad", at + 50, at + 70, 1)
        thread, launch = (1, at + 55) if op == "all_reduce" else (0, at + 15)
        build.work("ncclDevKernel_Generic", at + 60, at + 80, launch=launch, thread=thread, args=args)
    facts = work_out(build.trace(), TABLE)
    return {row.op for row in causes(facts.rows, Phases(facts), Stacks(facts.trace))}


def test_what_ddp_sends_is_told_apart_as_in_live_capture():
    assert ddp("Float") == {"DistributedDataParallel.buffers"}
    assert ddp("Long") == {"DistributedDataParallel.buffers"}
    assert ddp("Int") == {"DistributedDataParallel.buffers"}
    assert ddp("Int", steps=1) == {"DistributedDataParallel.bucket_order"}
    assert ddp("Float", steps=1) == {"DistributedDataParallel.buffers"}
    assert ddp("Float", op="all_reduce") == {"DistributedDataParallel.reducer"}
    assert ddp("Int", op="all_reduce") == {"DistributedDataParallel.used_parameters"}


def test_an_autograd_node():
    build = (
        Build().op(f"{ENGINE}: All2All_Pooled_WaitBackward", 8, 30, 1).op("c10d::alltoall_base_", 10, 20, 1)
    )
    assert cause(build, thread=1).op == "All2All_Pooled_WaitBackward"


def test_a_call_of_the_users_own():
    build = (
        Build()
        .frame("train.py(3): main", 0, 40)
        .frame("nn.Module: Net_0", 1, 40)
        .frame("net.py(12): forward", 2, 40)
    )
    build.frame("torch/distributed/distributed_c10d.py(99): all_reduce", 5, 40).op("c10d::allreduce_", 10, 20)
    row = cause(build)
    assert (row.op, row.module, row.source) == ("c10d::allreduce_", "Net_0", "net.py:12 (forward)")


def test_a_kernel_without_a_launch_has_no_cause():
    facts = work_out(Build().note("FSDP::all_gather (x)", 0, 99).work(ALL_REDUCE, 5, 6).trace(), TABLE)
    (row,) = causes(facts.rows, Phases(facts), Stacks(facts.trace))
    assert (row.phase, row.op, row.module, row.source) == ("other", None, None, None)


@pytest.mark.parametrize(
    ("frame", "source"),
    [
        ("train.py(12): step", "train.py:12 (step)"),
        ("/home/me/my project/train.py(12): step", "/home/me/my project/train.py:12 (step)"),
        ("torch/nn/modules/linear.py(120): forward", None),
        ("/opt/env/lib/python3.11/site-packages/foo/bar.py(1): f", None),
        ("contextlib.py(132): __enter__", None),
        ("torchvision/models/resnet.py(89): forward", None),
        ("<built-in method item of Tensor object at 0x7f>", None),
        ("<string>(2): __init__", None),
        ("train.py(1): <module>", "train.py:1 (<module>)"),
        ("nn.Module: Linear_0", None),
    ],
)
def test_source_lines(frame, source):
    assert source_of(frame) == source


def test_args_of_a_collective_do_not_change_its_cause():
    build = (
        Build()
        .note("nccl:all_reduce", 10, 20, args=CommArgs(dims=((1,),)))
        .note("FSDP::all_gather (a)", 5, 30)
    )
    assert cause(build).module == "a"
