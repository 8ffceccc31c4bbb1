"""The check after every test finds what is left behind, whatever sort it is of, and says what it was."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor._redistribute as redistribute
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.profiler import audit
from shardtoll.profiler.live.session import pausing
from tests import leftovers

Undo = Callable[[], Any]


def patched(owner: Any, name: str) -> Undo:
    original = getattr(owner, name)
    held = vars(owner)[name]

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    setattr(owner, name, wrapper)
    return lambda: setattr(owner, name, held)


def entered(context: Any) -> Undo:
    context.__enter__()
    return lambda: context.__exit__(None, None, None)


def traced() -> Undo:
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    return lambda: sys.settrace(before)


def profiled() -> Undo:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    return lambda: sys.setprofile(before)


def in_threads() -> Undo:
    threading.setprofile(lambda *_: None)
    return lambda: threading.setprofile(None)


def variable() -> Undo:
    os.environ["KINETO_LOG_LEVEL_OF_A_TEST"] = "99"
    return lambda: os.environ.pop("KINETO_LOG_LEVEL_OF_A_TEST")


def collected() -> Undo:
    gc.callbacks.append(print)
    return lambda: gc.callbacks.remove(print)


def filtered() -> Undo:
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", category=BytesWarning)
    return lambda: warnings.filters.__init__(before)  # type: ignore[attr-defined]


def handled() -> Undo:
    logger, handler = logging.getLogger("shardtoll"), logging.NullHandler()
    logger.addHandler(handler)
    return lambda: logger.removeHandler(handler)


def running() -> Undo:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-running")
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


def signalled() -> Undo:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGUSR1, before)


def backward_hooked() -> Undo:
    handle = nn_module.register_module_full_backward_hook(lambda *_: None)

    def remove() -> None:
        handle.remove()
        # torch remembers of which kind the hooks were, even when there are none.
        nn_module._global_is_full_backward_hook = None

    return remove


def optimizer_hooked() -> Undo:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(lambda *_: None).remove


class FunctionMode(TorchFunctionMode):
    """Changes nothing."""


PLANTED: dict[str, Callable[[], Undo]] = {
    "dispatch modes": lambda: entered(TorchDispatchMode()),  # type: ignore[no-untyped-call]
    "function modes": lambda: entered(FunctionMode()),  # type: ignore[no-untyped-call]
    "_global_forward_hooks": lambda: nn_module.register_module_forward_hook(lambda *_: None).remove,
    "_global_forward_pre_hooks": lambda: nn_module.register_module_forward_pre_hook(lambda *_: None).remove,
    "_global_backward_hooks": backward_hooked,
    "_global_optimizer_post_hooks": optimizer_hooked,
    "ProcessGroup.allreduce": lambda: patched(dist.ProcessGroup, "allreduce"),
    "Work.wait": lambda: patched(dist.Work, "wait"),
    "Future.wait": lambda: patched(torch._C.Future, "wait"),
    "distributed_c10d.all_reduce": lambda: patched(dist.distributed_c10d, "all_reduce"),
    "_functional_collectives.all_reduce": lambda: patched(dist._functional_collectives, "all_reduce"),
    "_redistribute.redistribute_local_tensor": lambda: patched(redistribute, "redistribute_local_tensor"),
    "_c10d_functional.all_reduce._op": lambda: patched(torch.ops._c10d_functional.all_reduce, "_op"),
    "_c10d_functional.all_reduce.default._op": lambda: patched(
        torch.ops._c10d_functional.all_reduce.default, "_op"
    ),
    "profile._start_trace": lambda: patched(torch.autograd.profiler.profile, "_start_trace"),
    "Optimizer.zero_grad": lambda: patched(torch.optim.Optimizer, "zero_grad"),
    "Tensor.backward": lambda: patched(torch.Tensor, "backward"),
    "profiler runs": lambda: entered(torch.profiler.profile(acc_events=True)),
    "saved tensor hooks": lambda: entered(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)),
    "open session": lambda: entered(audit()),
    "pauses": lambda: pausing.register(print, print),
    "sinks": lambda: pausing.register_sink(print),
    "environment variable KINETO_LOG_LEVEL_OF_A_TEST": variable,
    "gc callbacks": collected,
    "warnings filters": filtered,
    "sys.settrace": traced,
    "sys.setprofile": profiled,
    "threading.setprofile": in_threads,
    "logging of shardtoll": handled,
    "threads": running,
    "handler of SIGUSR1": signalled,
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_left_behind_is_found_and_named(name: str) -> None:
    torch.ops._c10d_functional.all_reduce.default  # noqa: B018 - loaded, so that it stands before
    with pytest.raises(AssertionError) as found, leftovers.none_expected():
        undo = PLANTED[name]()
    undo()
    assert f"{name} was replaced" in str(found.value) or f"{name}: " in str(found.value)


def test_nothing_is_found_where_everything_was_undone() -> None:
    with leftovers.none_expected():
        for plant in PLANTED.values():
            plant()()


def test_a_class_that_a_known_module_gets_later_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch.optim.of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    leftovers.look_ahead()
    late = type("Late", (), {"step": lambda self: None, "__module__": module.__name__})
    module.Late = late  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "another_of_a_test", types.ModuleType("another_of_a_test"))
    with (
        pytest.raises(AssertionError, match=r"of_a_test\.Late\.step was replaced"),
        leftovers.none_expected(),
    ):
        patched(late, "step")


LIBRARYS = {"environment variable KINETO_LOG_LEVEL_OF_A_TEST", "warnings filters"}
"""What a trainer library may leave as well."""


@pytest.mark.parametrize("name", PLANTED)
def test_what_a_trainer_library_leaves_is_told_from_what_is_ours(name: str) -> None:
    torch.ops._c10d_functional.all_reduce.default  # noqa: B018 - loaded, so that it stands before
    before = leftovers.take()
    undo = PLANTED[name]()
    lines = leftovers.left(before, leftovers.take(), foreign=True)
    undo()
    assert bool(lines) is (name not in LIBRARYS)


def test_a_variable_of_ours_is_never_a_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leftovers.take()
    monkeypatch.setenv("SHARDTOLL_OF_A_TEST", "1")
    (line,) = leftovers.left(before, leftovers.take(), foreign=True)
    monkeypatch.undo()
    assert line == "environment variable SHARDTOLL_OF_A_TEST: None became '1'"


def test_the_tests_own_error_goes_first() -> None:
    undone: list[Undo] = []

    def failing() -> None:
        with leftovers.none_expected():
            undone.append(collected())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    undone[0]()


def test_the_end_of_a_test_is_the_beginning_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[leftovers.Snapshot] = []

    def counted() -> leftovers.Snapshot:
        taken.append(take())
        return taken[-1]

    take = leftovers.take
    monkeypatch.setattr(leftovers, "take", counted)
    row = leftovers.Row()
    for number in range(3):
        with row.none_expected():
            assert len(taken) == number + 1
    assert len(taken) == 4
    row.forget()
    with row.none_expected():
        assert len(taken) == 5


@pytest.mark.parametrize("name", PLANTED)
def test_one_test_of_a_row_is_blamed_and_none_after_it(name: str) -> None:
    torch.ops._c10d_functional.all_reduce.default  # noqa: B018 - loaded, so that it stands before
    row = leftovers.Row()
    with row.none_expected():
        pass
    with pytest.raises(AssertionError) as found, row.none_expected():
        undo = PLANTED[name]()
    with row.none_expected():
        pass
    undo()
    assert f"{name} was replaced" in str(found.value) or f"{name}: " in str(found.value)


def test_what_changes_between_tests_is_no_tests_fault() -> None:
    row = leftovers.Row()
    with row.none_expected():
        pass
    undo = variable()
    row.forget()
    with row.none_expected():
        pass
    undo()
    row.forget()
    with row.none_expected():
        pass


def test_every_test_is_checked(request: pytest.FixtureRequest) -> None:
    assert "nothing_left_behind" in request.fixturenames
    (definition,) = request._fixturemanager.getfixturedefs("nothing_left_behind", request.node) or ()
    assert definition.baseid in ("", "tests")
    assert "leftovers" in definition.func.__globals__
