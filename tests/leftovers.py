"""What a test may leave behind in its process, by name: modes, hooks, patches, threads, settings.

Nothing here imports torch: where the process has not, there is nothing of torch's to leave. What torch
holds is taken from the modules that are loaded; of those that a test loads itself only what is our code is
found, as nobody knows what they held before.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import is_
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Final, TypeAlias

_PATCHED: Final = (
    "torch._ops",
    "torch.amp",
    "torch.autograd",
    "torch.distributed",
    "torch.futures",
    "torch.nn.modules.module",
    "torch.nn.utils",
    "torch.optim",
    "torch.profiler",
    "torch.utils.checkpoint",
    "torch.utils.data",
)
"""Modules of torch, with those below them, whose functions and classes are compared."""
_BINDINGS: Final = (
    "torch._C.Future",
    "torch._C._distributed_c10d.ProcessGroup",
    "torch._C._distributed_c10d.Backend",
    "torch._C._distributed_c10d.Work",
    "torch.Tensor",
)
_OPERATORS: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "symm_mem")
_DESCRIPTORS: Final = (property, staticmethod, classmethod)
_OURS: Final = str(Path(__file__).resolve().parents[1] / "profiler")
_PASSING: Final = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_")
"""Variables that pytest and torch's compiler set as they go on."""
_PASSING_THREADS: Final = (
    "AsyncProcess",
    "Dask",
    "IO loop",
    "Profile",
    "QueueFeederThread",
    "TCP-Executor",
    "ThreadPoolExecutor",
    "tqdm_monitor",
)
"""Threads that torch's compiler keeps once it has run, and Dask's and a loader's that end by themselves."""
_LIBRARYS_STATES: Final = ("warnings filters", "working folder")
"""With the environment: what trainer libraries change for the whole process, and audits never."""
_KINETO_LEVEL: Final = "KINETO_LOG_LEVEL"
_Held: TypeAlias = dict[str, Any] | MappingProxyType[str, Any]
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class _Owners:
    """What each holds, one after the other in flat lists: 550 mappings took 3 ms a test to compare."""

    names: tuple[str, ...] = ()
    sizes: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def same_as(self, other: _Owners) -> bool:
        """Whether nothing was replaced, added or removed; False where that cannot be said at once."""
        if (self.names, self.sizes, self.keys) != (other.names, other.sizes, other.keys):
            return False
        try:
            # By identity first: what differs but is equal is no patch.
            return self.values == other.values
        except Exception:  # noqa: BLE001 - of what cannot be compared
            return False

    def mappings(self) -> dict[str, dict[str, Any]]:
        """Return each with what it holds."""
        pairs = zip(self.keys, self.values, strict=True)
        return {name: dict(islice(pairs, size)) for name, size in zip(self.names, self.sizes, strict=True)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The process at one moment."""

    states: dict[str, object]
    """Compared by value."""
    variables: dict[str, str]
    """The environment."""
    modules: int
    """How many modules are loaded."""
    owners: _Owners
    """Modules, classes and operators with what they hold: what can be called is compared by identity."""


def take() -> Snapshot:
    """Note how the process is now."""
    states = {**_process(), **_ours()}
    owners = _Owners()
    torch = sys.modules.get("torch")
    if torch is not None:
        states |= _torch(torch)
        owners = _owners(torch)
    return Snapshot(states, dict(os.environ), len(sys.modules), owners)


def left(before: Snapshot, after: Snapshot, *, foreign: bool = False) -> list[str]:
    """Return what is not as it was, a line each; with `foreign`, not what trainer libraries change too."""
    excused = _LIBRARYS_STATES if foreign else ()
    if before.modules != after.modules:
        # Libraries (sympy, narwhals) add filters, and torch a handler, as whoever comes first imports them.
        excused = (*excused, "warnings filters", "logging of torch")
    found = [
        f"{name}: {before.states[name]!r:.2000} became {now!r:.2000}"
        for name, now in after.states.items()
        if name in before.states and before.states[name] != now and name not in excused
    ]
    for name in before.variables.keys() | after.variables.keys():
        was, is_now = before.variables.get(name), after.variables.get(name)
        librarys = foreign and not name.startswith("SHARDTOLL")
        if was != is_now and not librarys and not name.startswith(_PASSING):
            found.append(f"environment variable {name}: {was!r} became {is_now!r}")
    if not before.owners.same_as(after.owners):
        found += _patches(before.owners.mappings(), after.owners.mappings())
    return found


def _patches(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    for owner, now in after.items():
        was = before.get(owner)
        if was is None:
            found += [f"{owner}.{name} is ours" for name, value in now.items() if _is_our_code(value)]
        elif [*was] != [*now] or not all(map(is_, was.values(), now.values())):
            found += [f"{owner}.{name} was replaced" for name in was if _replaced(was, now, name)]
            found += [
                f"{owner}.{name} was added" for name in now.keys() - was.keys() if _is_our_code(now[name])
            ]
    return found


@contextlib.contextmanager
def none_expected(*, foreign: bool = False) -> Iterator[None]:
    """Fail when what runs inside leaves something behind; an exception of its own goes first.

    `foreign` as in `left`.
    """
    before = take()
    yield
    _expect_none(left(before, take(), foreign=foreign))


def _expect_none(lines: list[str]) -> None:
    assert not lines, "left behind:\n  " + "\n  ".join(lines)


@dataclass(slots=True)
class Row:
    """Tests of one process, one after the other: how one left the process is how the next one finds it.

    A moment takes 1.2 ms to note. Each of 12 000 tests takes one in place of two.
    """

    _end: Snapshot | None = None

    def forget(self) -> None:
        """Let the next test find the process as it is then: something else than a test changes it."""
        self._end = None

    @contextlib.contextmanager
    def none_expected(self) -> Iterator[None]:
        """Fail when the test that runs inside leaves something behind."""
        before, self._end = self._end or take(), None
        # Marks give each test filters of its own.
        before.states["warnings filters"] = list(warnings.filters)
        yield
        self._end = take()
        _expect_none(left(before, self._end))


class _Threads(Counter[str]):
    """Names of threads; equal to those of a later moment unless there are more: threads may end."""

    def __ne__(self, later: object) -> bool:
        return isinstance(later, Counter) and bool(later - self)


def _process() -> dict[str, object]:
    found: dict[str, object] = {
        "gc callbacks": [callback for callback in gc.callbacks if not _is_librarys(callback)],
        "gc enabled": gc.isenabled(),
        "warnings filters": list(warnings.filters),
        "warnings.showwarning": warnings.showwarning,
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "sys.excepthook": sys.__excepthook__ if _is_librarys(sys.excepthook) else sys.excepthook,
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
        "threading.excepthook": threading.excepthook,
        "working folder": os.getcwd(),
        "threads": _Threads(
            thread.name for thread in threading.enumerate() if not thread.name.startswith(_PASSING_THREADS)
        ),
    }
    for name in (None, "shardtoll", "torch"):
        logger = logging.getLogger(name)
        kinds = [handler for handler in logger.handlers if not type(handler).__module__.startswith("_pytest")]
        found[f"logging of {logger.name}"] = (kinds, logger.level, list(logger.filters), logger.propagate)
    for number in _SIGNALS:
        found[f"handler of {number.name}"] = signal.getsignal(number)
    return found


def _ours() -> dict[str, object]:
    found: dict[str, object] = {}
    session = sys.modules.get("shardtoll.profiler.live.session.session")
    if session is not None:
        found["open session"] = session.active_session()
    pausing = sys.modules.get("shardtoll.profiler.live.session.pausing")
    if pausing is not None:
        found["pauses"] = list(pausing._pauses)
        found["sinks"] = list(pausing._sinks)
    return found


def _torch(torch: Any) -> dict[str, object]:
    modes = sys.modules["torch.utils._python_dispatch"]._get_current_dispatch_mode_stack()
    found: dict[str, object] = {
        "dispatch modes": [type(mode).__name__ for mode in modes],
        "function modes": torch._C._len_torch_function_stack(),
        "profiler runs": torch._C._autograd._profiler_enabled(),
        "profilers' callbacks": _callbacks(torch),
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads of operators": torch.get_num_threads(),
    }
    saved = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if saved is not None:
        found["saved tensor hooks"] = saved(True)
    for module in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for name, value in vars(sys.modules.get(module, ModuleType(module))).items():
            if name.startswith("_global_") and not callable(value):
                found[f"{module}.{name}"] = dict(value) if isinstance(value, dict) else value
    return found


def _callbacks(torch: Any) -> int:
    """Return how many of torch's profilers tell a recording of each event; a stopped one should not."""
    autograd, profiler = torch._C._autograd, torch._C._profiler
    if autograd._profiler_enabled():
        return 1
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO, False, False, False, False, False, profiler._ExperimentalConfig(), ""
    )
    level = os.environ.get(_KINETO_LEVEL)
    os.environ[_KINETO_LEVEL] = "99"
    try:
        activities = {torch.profiler.ProfilerActivity.CPU}
        autograd._prepare_profiler(config, activities)
        autograd._enable_profiler(config, activities, {profiler.RecordScope.USER_SCOPE})
        # No operator: a mode that was left behind is none of its business.
        with profiler._RecordFunctionFast("counted"):
            pass
        events = autograd._disable_profiler().events()
    finally:
        if level is None:
            del os.environ[_KINETO_LEVEL]
        else:
            os.environ[_KINETO_LEVEL] = level
    return sum(event.name() == "counted" for event in events)


@dataclass(slots=True)
class _Holders:
    """Modules, classes and operators by name, each with the mapping that holds its attributes now.

    To look for them takes 15 ms and is done before and after each of 12 000 tests: they are looked for again
    only once something was imported, or an operator used for the first time, and then in new modules alone.
    """

    of: object = None
    mappings: dict[str, _Held] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    of_modules: dict[str, tuple[ModuleType, int, dict[str, _Held]]] = field(default_factory=dict)
    """By name: a module, how many attributes it had, and the mappings that were found in it then."""


_holders: Final = _Holders()


def look_ahead() -> None:
    """Look for what holds attributes now; processes that are forked from this one need not."""
    torch = sys.modules.get("torch")
    if torch is not None:
        _owners(torch)


def _owners(torch: Any) -> _Owners:
    spaces = [vars(getattr(torch.ops, space)) for space in _OPERATORS]
    packets = [packet for space in spaces for packet in space.values() if hasattr(packet, "_overload_names")]
    there = (len(sys.modules), [len(vars(packet)) for packet in packets])
    if _holders.of != there:
        _holders.of, _holders.mappings = there, _mappings(torch)
        _holders.names = tuple(_holders.mappings)
    found = _Owners(_holders.names)
    for mapping in _holders.mappings.values():
        found.sizes.append(len(mapping))
        found.keys.extend(mapping)
        found.values.extend(mapping.values())
    return found


def _mappings(torch: Any) -> dict[str, _Held]:
    found: dict[str, _Held] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(_PATCHED) and isinstance(module, ModuleType):
            found |= _within(name, module)
    for path in _BINDINGS:
        value = torch
        for part in path.split(".")[1:]:
            value = getattr(value, part, None)
        if value is not None:
            found[path] = vars(value)
    for space in _OPERATORS:
        for name, packet in list(vars(getattr(torch.ops, space)).items()):
            if not hasattr(packet, "_overload_names"):
                continue
            found[f"torch.ops.{space}.{name}"] = held = vars(packet)
            for key in packet._overload_names:
                overload = held.get(key or "default")
                if overload is not None:
                    found[f"torch.ops.{space}.{name}.{key or 'default'}"] = vars(overload)
    return found


def _within(name: str, module: ModuleType) -> dict[str, _Held]:
    """Return what a module and its own classes hold."""
    known = _holders.of_modules.get(name)
    if known is not None and known[0] is module and known[1] == len(vars(module)):
        return known[2]
    found: dict[str, _Held] = {name: vars(module)}
    for key, value in vars(module).items():
        # By its type: torch.distributed holds an object that warns when it is asked for its class.
        if issubclass(type(value), type) and value.__module__ == name:
            found[f"{name}.{key}"] = vars(value)
    _holders.of_modules[name] = (module, len(vars(module)), found)
    return found


def _replaced(was: dict[str, Any], now: dict[str, Any], name: str) -> bool:
    old, new = was[name], now.get(name)
    return new is not old and (callable(old) or type(old) in _DESCRIPTORS) and not _is_librarys(new)


def _code_file(value: Any) -> str:
    inner = value.__func__ if type(value) in _DESCRIPTORS[1:] else value
    return inner.__code__.co_filename if type(inner) is FunctionType else ""


def _is_our_code(value: Any) -> bool:
    return _code_file(value).startswith(_OURS)


def _is_librarys(value: Any) -> bool:
    """Whether a library put it there: torch wraps functions of its own as it goes on, for its compiler."""
    return "site-packages" in _code_file(value)
