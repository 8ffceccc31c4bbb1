"""The doors of a session: each call seen once, operators otherwise as they were."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardtoll.profiler.live.capture.entries import open_doors
from shardtoll.profiler.live.cause.methods import METHODS, MethodDecoder

RANKS = 4


class Heard:
    """Makes every call and keeps what it was."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.waits = 0
        self._inside = False

    def collective(
        self, original: Callable[..., Any], decode: MethodDecoder, args: Sequence[Any], kwargs: Any
    ) -> Any:
        if self._inside:
            return original(*args, **kwargs)
        self._inside = True
        try:
            self.calls += [call.op for call in decode(args, kwargs) or ()]
            return original(*args, **kwargs)
        finally:
            self._inside = False

    def wait(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        self.waits += 1
        return original(*args, **kwargs)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener = Heard()
    close = open_doors(listener)
    yield listener
    close()


def doors() -> dict[str, Any]:
    found = {name: vars(dist.ProcessGroup).get(name) for name in METHODS}
    for namespace in ("_c10d_functional", "_dtensor"):
        for name in dir(getattr(torch.ops, namespace)):
            packet = getattr(getattr(torch.ops, namespace), name)
            if hasattr(packet, "overloads"):
                found[f"{namespace}.{name}"] = packet._op
                for overload in packet.overloads():
                    found[f"{namespace}.{name}.{overload}"] = getattr(packet, overload)._op
    return found


def test_doors_open_and_close() -> None:
    # Operators are made when first asked for.
    open_doors(Heard())()
    before = doors()
    close = open_doors(Heard())
    inside = doors()
    close()
    assert all(doors()[name] is held for name, held in before.items())
    changed = {name for name, held in before.items() if inside.get(name) is not held}
    assert {"allreduce", "_allgather_base", "_c10d_functional.all_reduce"} <= changed
    assert "_c10d_functional.wait_tensor.default" in changed


def test_an_operator_keeps_its_hash_and_equality() -> None:
    operator = torch.ops._c10d_functional.all_reduce.default
    known, held, name = {operator: 1, operator._op: 2}, operator._op, str(operator)
    close = open_doors(Heard())
    try:
        assert operator._op is not held
        assert known[operator] == 1
        assert known[operator._op] == 2
        assert operator._op == held
        assert str(operator) == name
        assert operator is torch.ops._c10d_functional.all_reduce.default
    finally:
        close()


def test_what_an_operator_calls_can_be_copied_and_asked_for_anything(heard: Heard) -> None:
    held = torch.ops._c10d_functional.all_reduce.default._op
    bare = copy.copy(held)
    assert bare is copy.deepcopy({"held": held})["held"]
    assert bare == held
    torch.ops._c10d_functional.wait_tensor(bare(torch.ones(2), "sum", "0"))
    assert heard.calls == [], "the copy is the operator's own, not ours"
    assert refusal(held) == refusal(bare)
    assert held.__name__ == bare.__name__
    assert not hasattr(held, "__array__")
    assert not hasattr(type(held).__new__(type(held)), "__array__")
    assert weakref.ref(held)() is held


def refusal(function: Any) -> str:
    with pytest.raises((RuntimeError, TypeError), match="pickle") as refused:
        pickle.dumps(function)
    return str(refused.value).partition(" at 0x")[0]


def test_exceptions_pass(heard: Heard) -> None:
    with pytest.raises(RuntimeError):
        torch.ops._c10d_functional.all_reduce.default(torch.ones(2), "sum", "no such group")
    assert heard.calls == []


def test_methods_and_functional_collectives_are_each_seen_once(heard: Heard) -> None:
    world = dist.group.WORLD
    assert world is not None
    dist.all_reduce(torch.ones(4))
    world.broadcast(torch.ones(4), 0).wait()
    assert heard.calls == ["all_reduce", "broadcast"]
    reduced = funcol.all_reduce(torch.ones(4), "sum", world)
    assert type(reduced) is funcol.AsyncCollectiveTensor
    assert heard.waits == 0
    assert torch.equal(reduced + 1, torch.full((4,), 2.0))
    assert heard.waits == 1
    # Of an AsyncCollectiveTensor: its wait, then the collective of what it holds.
    again = funcol.all_reduce(funcol.all_reduce(torch.ones(4), "sum", world), "sum", world)
    assert torch.equal(again + 1, torch.full((4,), 2.0))
    assert heard.calls[2:] == ["all_reduce"] * 3


def test_a_redistribution_of_a_dtensor_is_seen_once(heard: Heard) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    partial = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()], run_check=False)
    heard.calls.clear()
    whole = partial.redistribute(mesh, [Replicate()]).to_local()
    assert whole.shape == (4, 4)
    assert heard.calls == ["all_reduce"]


def test_fake_tensors_pass_untouched(heard: Heard) -> None:
    world = dist.group.WORLD
    assert world is not None
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(4))
        found = torch.ops._c10d_functional.all_gather_into_tensor.default(fake, RANKS, world.group_name)
        assert type(found) is type(fake)
        assert found.shape == (16,)
    assert heard.calls == []


def test_the_compiler_traces_through_without_breaks_or_recompiling() -> None:
    torch._dynamo.reset()
    graphs = 0

    def backend(graph: Any, _: object) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    world = dist.group.WORLD
    assert world is not None

    @torch.compile(backend=backend, fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x * 2, "sum", world) + 1

    try:
        plain = step(torch.ones(4))
        assert graphs == 1
        listener = Heard()
        for _ in range(2):
            close = open_doors(listener)
            try:
                assert torch.equal(step(torch.ones(4)), plain)
                assert torch.equal(step(torch.ones(4)), plain)
            finally:
                close()
        assert torch.equal(step(torch.ones(4)), plain)
        assert graphs == 1, "compiled once, with the doors open or closed"
        assert listener.calls == ["all_reduce"] * 4
        torch._dynamo.reset()
        close = open_doors(listener)
        try:
            assert torch.equal(step(torch.ones(4)), plain)
        finally:
            close()
        assert torch.equal(step(torch.ones(4)), plain)
        assert graphs == 2, "compiled once more, as that was asked for"
    finally:
        torch._dynamo.reset()
