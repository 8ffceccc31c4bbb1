"""What the operators of batches and of symmetric memory mean as collectives; no rank and no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.decode import DECODERS, arguments_of, decoder_of
from shardtoll.profiler.live.cause.symmetric import SYMMETRIC

RANKS = 4
ONE_SIDED = {
    "_async_input_mm",
    "_barrier",
    "_rendezvous",
    "get_remote_tensors",
    "memset32_",
    "stream_write_value32_",
}
"""Operators of symm_mem that are no collectives, beside puts, gets, waits and signals."""


@pytest.fixture
def group() -> Iterator[str]:
    dist.init_process_group("fake", rank=1, world_size=RANKS, store=FakeStore())
    yield str(dist.group.WORLD.group_name)
    dist.destroy_process_group()


def decode(func: Any, *args: Any, **kwargs: Any) -> tuple[Call, ...]:
    found = decoder_of(func)
    assert found is not None
    return found(arguments_of(func, args, kwargs))


NEWER = hasattr(torch.ops._c10d_functional, "batch_p2p_ops")
"""Operators of torch 2.13 are there; what it has, an older one may lack."""


@pytest.mark.skipif(not NEWER, reason="this torch has no batches of functional messages")
def test_a_batch_is_one_call_for_each_message_in_order(group: str) -> None:
    small, large = torch.ones(4), torch.ones(8, dtype=torch.bfloat16)
    calls = decode(
        torch.ops._c10d_functional.batch_p2p_ops.default,
        ["isend", "irecv", "isend"],
        [2, 0, 3],
        [0, 0, 0],
        [small, large, large],
        group,
    )
    assert [(c.op, c.root, c.message_bytes, c.dtype) for c in calls] == [
        ("send", 2, 16, "float32"),
        ("recv", 0, 16, "bfloat16"),
        ("send", 3, 16, "bfloat16"),
    ]
    assert [len(c.inputs) for c in calls] == [1, 0, 1], "a receiver contributes nothing"
    assert [c.wire_bytes(RANKS, 1) for c in calls] == [16, 0, 16]
    assert {c.group.size() for c in calls} == {RANKS}


def test_collectives_of_symmetric_memory(group: str) -> None:
    ops = torch.ops.symm_mem
    x, out = torch.ones(8), torch.empty(8)
    a, b = torch.ones(6, 8, dtype=torch.bfloat16), torch.ones(8, 16, dtype=torch.bfloat16)
    cases: list[tuple[Any, tuple[Any, ...], tuple[str, int | None, str | None, int | None]]] = [
        (ops.one_shot_all_reduce.default, (x, "sum", group), ("all_reduce", 32, "SUM", None)),
        (ops.two_shot_all_reduce_.default, (x, "avg", group), ("all_reduce", 32, "AVG", None)),
        (
            ops.one_shot_all_reduce_copy.default,
            (torch.empty(64), x, "sum", group),
            ("all_reduce", 32, "SUM", None),
        ),
        (
            ops.multimem_one_shot_reduce_out.default,
            (x, "sum", 3, group, out),
            ("reduce", 32, "SUM", 3),
        ),
        (
            ops.multimem_all_gather_out.default,
            (x, group, torch.empty(32)),
            ("all_gather", 128, None, None),
        ),
        (ops._low_contention_all_gather.default, (x, group), ("all_gather", 128, None, None)),
        (
            ops._low_contention_reduce_scatter.default,
            (x, "sum", group),
            ("reduce_scatter", 32, "SUM", None),
        ),
        (ops.nvshmem_all_to_all.default, (x, out, group), ("all_to_all", 32, None, None)),
        (ops.nvshmem_broadcast.default, (x, 2, group), ("broadcast", 32, None, 2)),
        (ops.all_to_all_vdev.default, (x, out, x, x, group), ("all_to_all", None, None, None)),
        # A is this rank's shard; the product A @ B is what is reduced and scattered.
        (ops.fused_all_gather_matmul.default, (a, [b], 0, group), ("all_gather", 4 * 6 * 8 * 2, None, None)),
        (
            ops.fused_matmul_reduce_scatter.default,
            (a, b, "sum", 0, group),
            ("reduce_scatter", 6 * 16 * 2, "SUM", None),
        ),
    ]
    tiles = decode(ops.multi_root_tile_reduce.default, [x, x], out, [2, 1], group)
    assert [(c.op, c.message_bytes, c.reduce_op, c.root) for c in tiles] == [
        ("reduce", 32, "SUM", 2),
        ("reduce", 32, "SUM", 1),
    ]
    for func, args, expected in cases:
        (call,) = decode(func, *args)
        assert (call.op, call.message_bytes, call.reduce_op, call.root) == expected, func
        assert call.group.size() == RANKS


def test_every_collective_of_this_torch_has_a_decoder() -> None:
    not_collectives = {
        "c10d": {"check_for_nan"},
        "_c10d_functional": {"wait_tensor", "_wrap_tensor_autograd"},
        "symm_mem": ONE_SIDED,
    }
    one_sided = ("put", "get", "signal")
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace not in not_collectives or name in not_collectives[namespace]:
            continue
        if namespace == "symm_mem" and any(word in name for word in one_sided):
            continue
        assert name in DECODERS[namespace], f"{schema.name} is new: decode it, or say why not"


def test_every_decoder_of_symmetric_memory_names_arguments_that_exist(group: str) -> None:
    for name, decoder in SYMMETRIC.items():
        if not NEWER and not hasattr(torch.ops.symm_mem, name):
            continue
        overload = getattr(torch.ops.symm_mem, name).default
        arguments = {a.name: _stand_in(a, group) for a in overload._schema.arguments}
        calls = decoder(arguments)
        assert {call.group.size() for call in calls} == {RANKS}, name


def _stand_in(argument: Any, group: str) -> Any:
    if argument.name == "group_name":
        return group
    if argument.name == "out_dtype":
        return None
    kind = str(argument.type)
    stand_ins = {"Tensor": torch.ones(4, 4), "str": "sum", "int": 0, "List[int]": [1]}
    return stand_ins.get(kind, [torch.ones(4, 4)])


UNEVEN = {
    "splits": (
        "_c10d_functional.all_to_all_single",
        lambda: (torch.ones(10, 3), [1, 2, 0, 3], [4, 2, 2, 2]),
        72,
    ),
    "no splits": ("_c10d_functional.all_to_all_single", lambda: (torch.ones(8, 3), [], []), 96),
    "no rows to send": (
        "_c10d_functional.all_to_all_single",
        lambda: (torch.ones(0, 3), [1, 2, 0, 3], [0, 0, 0, 0]),
        72,
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_what_a_rank_receives_is_what_its_splits_say(group: str, name: str) -> None:
    operator, arguments, received_bytes = UNEVEN[name]
    namespace, plain = operator.split(".")
    (call,) = decode(getattr(getattr(torch.ops, namespace), plain).default, *arguments(), group)
    assert call.received_bytes == received_bytes


def test_nothing_else_says_what_it_receives(group: str) -> None:
    (call,) = decode(torch.ops._c10d_functional.all_reduce.default, torch.ones(4), "sum", group)
    assert call.received_bytes is None
