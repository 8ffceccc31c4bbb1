"""torch's compiler leaves our own code alone, where Python runs between two compiled parts of a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.profiler.live.capture import calls, compiler, entries, watch

SOURCE = """
def between(x):
    return x * 2
"""


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of ours with one function."""
    module = ModuleType("shardtoll.profiler.made_for_a_test")
    module.__file__ = "made_for_a_test.py"
    exec(compile(SOURCE, module.__file__, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def graphs(module: ModuleType) -> int:
    torch._dynamo.reset()
    counters.clear()

    @torch._dynamo.disable(recursive=False)
    def eager(x: torch.Tensor) -> torch.Tensor:
        return module.between(x)  # type: ignore[no-any-return]

    def model(x: torch.Tensor) -> torch.Tensor:
        return eager(x + 1) + 2

    assert torch.compile(model, backend="eager")(torch.ones(1)).item() == 6
    return counters["stats"]["unique_graphs"]


@pytest.mark.skipif(not compiler.can_skip_below(), reason="this torch marks no code")
def test_what_runs_between_two_graphs_is_not_compiled(ours: ModuleType) -> None:
    assert graphs(ours) == 3, "without a mark it is"
    torch._dynamo.reset()
    compiler.skip_ours()
    assert graphs(ours) == 2
    assert graphs(ours) == 2, "a reset of the compiler's changes nothing"


class Counting(TorchDispatchMode):
    """A mode of the user's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **kwargs or {})


def graphs_beneath_a_mode() -> tuple[int, int]:
    torch._dynamo.reset()
    counters.clear()
    x = torch.ones(1)
    with Counting() as mode:
        torch.compile(lambda x: x * 2 + 1, backend="eager")(x)
    return counters["stats"]["unique_graphs"], mode.count


def test_beneath_a_mode_of_the_users_as_much_is_compiled_as_without_us() -> None:
    bare = graphs_beneath_a_mode()
    undo = compiler.patch_compiling()
    try:
        assert graphs_beneath_a_mode() == bare
    finally:
        undo()


def test_every_way_from_a_patch_to_a_row_is_known() -> None:
    assert watch.Watch._unrecorded.__code__ in set(compiler.codes_of(watch))
    assert calls.Calls._decoded.__code__ in set(compiler.codes_of(calls))
    assert "wrapper" in {code.co_name for code in compiler.codes_of(entries)}


@contextmanager
def made_by_a_decorator() -> Iterator[None]:
    yield


class Wrapped:
    @property
    def a_property(self) -> int:
        return 1

    @classmethod
    def a_class_method(cls) -> int:
        return 2

    @staticmethod
    def a_static_method() -> int:
        return 3


def test_wrapped_functions_are_found() -> None:
    names = {code.co_name for code in compiler.codes_of(sys.modules[__name__])}
    assert made_by_a_decorator.__code__.co_name == "helper", "its code is contextlib's"
    assert names.isdisjoint({"helper", "_make", "_replace"})
    assert names >= {
        "made_by_a_decorator",
        "a_property",
        "a_class_method",
        "a_static_method",
        "graphs",
        "model",
    }
