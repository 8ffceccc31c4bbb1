from __future__ import annotations

import pytest

from shardtoll.profiler.traces.collectives.comms import (
    dtype_in,
    dtype_of,
    message_bytes,
    op_of,
    peer_of,
    ranks_in,
)
from shardtoll.profiler.traces.file.trace_columns import CommArgs


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("allreduce", "all_reduce"),
        ("nccl:all_reduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("nccl:allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("_broadcast_oop", "broadcast"),
        ("nccl:_reduce_oop", "reduce"),
        ("all_to_allv", "all_to_all"),
        ("nccl:all_to_all", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::recv_any_source_", "recv"),
        ("nccl:send 0->1", "send"),
        ("gloo:recv", "recv"),
        ("gloo:reduce_scatter", "reduce_scatter"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("barrier", "barrier"),
        ("wait", None),
        ("nccl:coalesced", None),
        ("c10d::monitored_barrier_", None),
        ("", None),
        (None, None),
    ],
)
def test_op(name, op):
    assert op_of(name) == op


@pytest.mark.parametrize(
    ("word", "dtype", "width"),
    [
        ("Float", "float32", 4),
        ("BFloat16", "bfloat16", 2),
        ("c10::BFloat16", "bfloat16", 2),
        ("c10::Half", "float16", 2),
        ("Char", "int8", 1),
        ("Byte", "uint8", 1),
        ("Long", "int64", 8),
        ("long int", "int64", 8),
        ("Float8_e4m3fn", "float8_e4m3fn", 1),
        ("c10::Float8_e5m2fnuz", "float8_e5m2fnuz", 1),
        ("c10::complex<float>", "complex64", 8),
        ("Float4_e2m1fn_x2", "Float4_e2m1fn_x2", None),
        ("torch.uint16", "uint16", 2),
        (None, None, None),
    ],
)
def test_dtype(word, dtype, width):
    assert dtype_of(word) == (dtype, width)


def sized(into=None, out=None, dtype="Float", **more):
    return CommArgs(dtype=dtype, in_elements=into, out_elements=out, **more)


@pytest.mark.parametrize(
    ("op", "args", "size"),
    [
        ("all_reduce", sized(100, 100), 400),
        ("all_gather", sized(100, 800), 3200),
        ("all_gather", sized(100), None),
        ("reduce_scatter", sized(800, 100), 3200),
        ("all_to_all", sized(60, 90), 240),
        ("all_to_all", sized(0, 1000), 0),
        ("all_to_all", sized(None, 90), 360),
        ("all_reduce", sized(2**61, 2**61, dtype="Double"), None),
        ("all_reduce", CommArgs(dims=((2**61, 2**61),), types=("float",)), None),
        ("broadcast", sized(5, 5), 20),
        ("gather", sized(5, 40), 160),
        ("gather", sized(5, 0), None),
        ("scatter", sized(40, 5), 160),
        ("send", sized(7, 7), 28),
        ("recv", sized(0, 7), 28),
        ("barrier", sized(1, 1), 0),
        ("all_reduce", sized(100, 100, dtype="Odd"), None),
        ("all_reduce", CommArgs(), None),
        # `Input Dims` are inputs: the shard of an all_gather, the whole of a reduce_scatter.
        ("all_gather", CommArgs(dims=((1, 25136),), types=("c10::BFloat16",)), 25136 * 2 * 8),
        ("reduce_scatter", CommArgs(dims=((64, 8),), types=("float",)), 2048),
        ("all_reduce", CommArgs(dims=((3, 4), (5,)), types=("float", "float")), 68),
        ("all_reduce", CommArgs(dims=((3, 4), (5,)), types=("float", "long")), None),
        ("all_reduce", CommArgs(dims=((3, 4),), types=("float",), in_elements=0, out_elements=0), 48),
    ],
)
def test_message_bytes(op, args, size):
    assert message_bytes(op, args, 8) == size


def test_an_all_gathers_size_needs_the_group_where_only_shapes_are_known():
    args = CommArgs(dims=((4,),), types=("float",))
    assert message_bytes("all_gather", args, None) is None


def test_dtype_of_mixed_tensors_is_unknown():
    assert dtype_in(CommArgs(dims=((1,), (2,)), types=("float", "long"))) == (None, None)


def test_peer_of_point_to_point():
    assert peer_of("send", CommArgs(target_rank=3, source_rank=0), 0) == 3
    assert peer_of("recv", CommArgs(target_rank=0, source_rank=2), 0) == 2
    assert peer_of("send", CommArgs(), 0, "nccl:send 0->1") == 1
    assert peer_of("recv", CommArgs(), 0, "nccl:recv 0<-1") == 1
    assert peer_of("recv", CommArgs(), 5, "nccl:recv 0<-1") is None
    assert peer_of("send", CommArgs(), 4, "nccl:send 0->1", (4, 6)) == 6
    assert peer_of("broadcast", CommArgs(root=4), 0) == 4
    assert peer_of("all_reduce", CommArgs(), 0) is None


def test_long_names_cost_no_time():
    """Patterns that backtrack get the start of a name only: each of these took seconds."""
    for letter in "abcdefgh":
        assert op_of(f"nccl:{letter}{'_' * 16_000}x") is None
        assert peer_of("send", CommArgs(), 0, "send" * 20_000 + letter) is None


def test_ranks():
    assert ranks_in(CommArgs(ranks=(4, 2), group_size=2, rank_start=0, rank_stride=1)) == (4, 2)
    assert ranks_in(CommArgs(group_size=3, rank_start=1, rank_stride=4)) == (1, 5, 9)
    assert ranks_in(CommArgs(group_size=3, rank_start=1)) == ()
    assert ranks_in(CommArgs(group_size=3, rank_start=1, rank_stride=0)) == ()
    assert ranks_in(CommArgs(group_size=1, rank_start=6)) == (6,)
    assert ranks_in(CommArgs()) == ()
