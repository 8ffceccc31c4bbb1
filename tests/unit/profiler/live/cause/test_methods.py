"""What a method of ProcessGroup issues, against what the operator behind it is decoded as."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardtoll.profiler.live.capture.threads import CallMode
from shardtoll.profiler.live.cause.call import Call
from shardtoll.profiler.live.cause.methods import METHODS, method_decoder

RANKS = 4
COMPARED = [field.name for field in fields(Call) if field.name not in ("group", "inputs")]


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("fake", rank=1, world_size=RANKS, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def ones(count: int = 8) -> torch.Tensor:
    return torch.ones(count, dtype=torch.bfloat16)


def parts() -> list[torch.Tensor]:
    return [ones() for _ in range(RANKS)]


def options(kind: str, **said: Any) -> Any:
    made = getattr(torch._C._distributed_c10d, kind)()
    for name, value in said.items():
        setattr(made, name, value)
    return made


MAX = dist.ReduceOp.MAX
CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "_allgather_base": lambda: (ones(32), ones(), options("AllgatherOptions")),
    "_reduce_scatter_base": lambda: (ones(), ones(32), options("ReduceScatterOptions", reduceOp=MAX)),
    "all_gather_single": lambda: (ones(32), ones(), options("AllgatherOptions")),
    "all_to_all_single": lambda: (ones(10), ones(8), [1, 2, 3, 4], [2] * 4, options("AllToAllOptions")),
    "all_gather_single_coalesced": lambda: ([ones(32)] * 2, [ones()] * 2, options("AllgatherOptions")),
    "allgather": lambda: ([parts()], [ones()], options("AllgatherOptions")),
    "allgather_coalesced": lambda: (
        [[ones()] for _ in range(RANKS)],
        [ones()],
        options("AllgatherOptions"),
    ),
    "allgather_into_tensor_coalesced": lambda: ([ones(32)] * 2, [ones()] * 2, options("AllgatherOptions")),
    "allreduce": lambda: ([ones()], options("AllreduceOptions", reduceOp=MAX)),
    "allreduce_coalesced": lambda: ([ones(), ones(3)], options("AllreduceCoalescedOptions", reduceOp=MAX)),
    "alltoall": lambda: (parts(), parts(), options("AllToAllOptions")),
    "alltoall_base": lambda: (ones(10), ones(8), [1, 2, 3, 4], [2] * 4, options("AllToAllOptions")),
    "barrier": lambda: (options("BarrierOptions"),),
    "broadcast": lambda: ([ones()], options("BroadcastOptions", rootRank=2, rootTensor=0)),
    "gather": lambda: ([], [ones()], options("GatherOptions", rootRank=2)),
    "recv": lambda: ([ones()], 3, 0),
    "recv_anysource": lambda: ([ones()], 0),
    "reduce": lambda: ([ones()], options("ReduceOptions", rootRank=2, reduceOp=MAX)),
    "reduce_scatter": lambda: ([ones()], [parts()], options("ReduceScatterOptions", reduceOp=MAX)),
    "reduce_scatter_single": lambda: (ones(), ones(32), options("ReduceScatterOptions", reduceOp=MAX)),
    "reduce_scatter_single_coalesced": lambda: (
        [ones()] * 2,
        [ones(32)] * 2,
        options("ReduceScatterOptions", reduceOp=MAX),
    ),
    "reduce_scatter_tensor_coalesced": lambda: (
        [ones()] * 2,
        [ones(32)] * 2,
        options("ReduceScatterOptions", reduceOp=MAX),
    ),
    "scatter": lambda: ([ones()], [], options("ScatterOptions", rootRank=2)),
    "send": lambda: ([ones()], 3, 0),
}
HERE = [name for name in METHODS if name in vars(dist.ProcessGroup)]


def behind(call: Callable[[], Any]) -> list[Call]:
    """What the operators that the call runs are decoded as."""
    seen: list[Call] = []

    def failed(error: Exception) -> None:
        raise error

    def issue(call: Call, _frame: object) -> None:
        seen.append(call)

    with CallMode(issue, lambda _: None, failed):
        call()
    return seen


def told(calls: list[Call]) -> list[dict[str, Any]]:
    return [{name: getattr(call, name) for name in COMPARED} for call in calls]


def test_every_method_of_this_torch_is_tried() -> None:
    assert set(HERE) - {"monitored_barrier"} <= set(CALLS)
    assert len(HERE) > 15


@pytest.mark.parametrize("name", sorted(set(HERE) & set(CALLS)))
def test_a_method_means_what_the_operator_behind_it_means(group: Any, name: str) -> None:
    args = CALLS[name]()
    decoded = method_decoder(name)((group, *args), {})
    assert decoded is not None
    assert told(list(decoded)) == told(behind(lambda: getattr(group, name)(*args)))
    assert [call.group.group_name for call in decoded] == [group.group_name] * len(decoded)
    assert len(decoded) > 0


@pytest.mark.parametrize("name", sorted(set(HERE) & set(CALLS)))
def test_options_may_come_by_keyword(group: Any, name: str) -> None:
    args = CALLS[name]()
    if not type(args[-1]).__name__.endswith("Options"):
        pytest.skip("takes no options")
    assert "opts" in str(getattr(dist.ProcessGroup, name).__doc__)
    decoded = method_decoder(name)((group, *args[:-1]), {"opts": args[-1]})
    assert decoded is not None
    assert told(list(decoded)) == told(behind(lambda: getattr(group, name)(*args[:-1], opts=args[-1])))


def test_tensors_by_keyword_are_left_to_the_operator(group: Any) -> None:
    assert method_decoder("allreduce")((group,), {"tensors": [ones()]}) is None


def test_a_bare_reduction_or_root_in_place_of_options(group: Any) -> None:
    for name, args in {
        "allreduce": (ones(), dist.ReduceOp.PRODUCT),
        "broadcast": (ones(), 2),
        "reduce": (ones(), 2, dist.ReduceOp.MIN),
        "gather": ([], ones(), 2),
        "scatter": (ones(), [], 2),
        "reduce_scatter": (ones(), parts(), dist.ReduceOp.MIN),
        "allgather": (parts(), ones()),
    }.items():
        decoded = method_decoder(name)((group, *args), {})
        expected = told(behind(lambda name=name, args=args: getattr(group, name)(*args)))  # type: ignore[misc]
        assert decoded is not None, name
        assert told(list(decoded)) == expected, name


@pytest.mark.parametrize(
    ("name", "received_bytes"), [("all_to_all_single", 20), ("alltoall_base", 20), ("alltoall", 64)]
)
def test_an_all_to_all_receives_what_it_fills(group: Any, name: str, received_bytes: int) -> None:
    if name not in HERE:
        pytest.skip("not in this torch")
    decoded = method_decoder(name)((group, *CALLS[name]()), {})
    assert decoded is not None
    assert [call.received_bytes for call in decoded] == [received_bytes]
