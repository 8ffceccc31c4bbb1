"""The tools that overhead.py compares: each runs a block of steps and says how long it took."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from overheads.cases import Program
from shardtoll.profiler import Session, audit
from shardtoll.profiler.live.session.schedule import Level

Turn = Callable[[], dict[str, float]]
"""Runs its steps and returns seconds a step, by the name of what was timed."""

CPU_TIME: Final = "OVERHEAD_CPU_TIME"
"""Set, times are those that the training thread ran: for a machine in use, where waiting says nothing."""
WATCHED: Final = ("watch", "schedule")
FIRST: Final = 4
"""Steps of a session whose rows are made at once, for a job that dies young."""
ROWS_EVERY: Final = 64
"""Watched steps at least, at the end of which their rows are made."""
NAMES: Final = (
    "watch",
    "survey_first",
    "survey",
    "commdebug",
    "debugmode",
    "profiler",
    "dispatch_mode",
    "sequence_reads",
    "wrappers",
)
FUNCTIONAL: Final = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
    "wait_tensor",
)
METHODS: Final = (
    "allreduce",
    "allgather",
    "_allgather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "broadcast",
    "alltoall_base",
    "send",
    "recv",
    "barrier",
)


def session(program: Program, level: Level) -> Session:
    """Return a session at that level."""
    return audit(program.model, level=level)


def timed(
    work: Callable[[], None],
    steps: int,
    *,
    collect: bool = True,
    finish: Callable[[], None] | None = None,
) -> float:
    """Return seconds a step; all ranks begin together, and garbage of earlier turns is not in it.

    `finish` is done after the steps, in their time: what they left to be done later.

    The one step after a collection finds caches and free lists empty, which slows a bare one by half too:
    who times a single step collects beforehand and runs a bare one first.
    """
    if collect:
        gc.collect()
    dist.barrier()
    clock = time.thread_time if CPU_TIME in os.environ else time.perf_counter
    begun = clock()
    for _ in range(steps):
        work()
    if finish is not None:
        finish()
    return (clock() - begun) / steps


def rows_made(opened: Session) -> Callable[[], None]:
    """Return what makes the rows of all steps that still wait for theirs: a job makes them less often."""
    return opened._capture.flush


def within(opened: Any, step: Callable[[], None]) -> Callable[[], None]:
    """Return the step as a session's, with all that its beginning and end cost."""

    def one() -> None:
        with opened.step():
            step()

    return one


class _Nothing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass the operator through."""
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented
        return func(*args, **(kwargs or {}))


def _empty(inner: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def wrappers() -> Iterator[None]:
    """Put a Python function that does nothing around the entry points of collectives."""
    operators = [getattr(torch.ops._c10d_functional, name).default for name in FUNCTIONAL]
    methods = [name for name in METHODS if hasattr(dist.ProcessGroup, name)]
    places = [(operator, "_op") for operator in operators] + [(dist.ProcessGroup, name) for name in methods]
    # What getattr returns of a class is not what it holds: put back, it would not bind to its instance.
    before = [inspect.getattr_static(owner, name) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, _empty(getattr(owner, name)))
    try:
        yield
    finally:
        for (owner, name), inner in zip(places, before, strict=True):
            setattr(owner, name, inner)


def _is_counted(group: Any) -> bool:
    try:
        group._get_sequence_number_for_group()
    except RuntimeError:
        # As the fake process group.
        return False
    return True


def _debug_mode() -> Callable[[], Any] | None:
    try:
        from torch.utils._debug_mode import DebugMode
    except ImportError:
        return None
    return DebugMode


def turns(program: Program, block: int) -> list[Turn]:
    """Return one turn for each tool; cheap ones run `block` steps, dear ones a quarter of that."""
    step, few = program.step, max(1, block // 4)
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)

    def each(make: Callable[[], Any]) -> Callable[[], None]:
        def one() -> None:
            with make():
                step()

        return one

    def reads() -> None:
        for group in groups:
            group._get_sequence_number_for_group()
        step()
        for group in groups:
            group._get_sequence_number_for_group()

    def watch() -> dict[str, float]:
        with session(program, "watch") as opened:
            one = within(opened, step)
            for _ in range(FIRST):
                one()
            return {"watch": timed(one, max(block, ROWS_EVERY), finish=rows_made(opened))}

    def survey() -> dict[str, float]:
        gc.collect()
        step()
        with session(program, "survey") as opened:
            one = within(opened, step)
            first = timed(one, 1, collect=False)
            for _ in range(FIRST - 1):
                one()
            return {"survey_first": first, "survey": timed(one, block, finish=rows_made(opened))}

    def profiled() -> dict[str, float]:
        with profile(activities=[ProfilerActivity.CPU]):
            return {"profiler": timed(step, few)}

    def wrapped() -> dict[str, float]:
        with wrappers():
            return {"wrappers": timed(step, block)}

    found: list[Turn] = [
        lambda: {"bare": timed(step, block)},
        survey,
        lambda: {"commdebug": timed(each(CommDebugMode), few)},
        profiled,
        lambda: {"dispatch_mode": timed(each(_Nothing), few)},
        wrapped,
    ]
    if all(_is_counted(group) for group in groups):
        found.append(lambda: {"sequence_reads": timed(reads, block)})
    found.append(watch)
    debug = _debug_mode()
    if debug is not None:
        found.append(lambda: {"debugmode": timed(each(debug), few)})
    return found


def schedule(program: Program, steps: int, watched_first: bool) -> dict[str, float]:
    """Time as many bare steps as steps of one open session at the default level, in either order."""
    times: dict[str, float] = {}

    def bare() -> None:
        times["schedule_bare"] = timed(program.step, steps)

    def under() -> None:
        with session(program, "schedule") as opened:
            one = within(opened, program.step)
            times["schedule"] = timed(one, steps, finish=rows_made(opened))

    for work in (under, bare) if watched_first else (bare, under):
        work()
    return times
