"""When gloo really worked on a collective: spans from torch's own profiler, joined to our records.

Gloo runs collectives on threads of its own and reports to torch's profiler when each begins and ends. We ask
for these user-scope events only (not for every operator), so the profiler stays cheap. An event carries no
group and no sequence number. Spans are joined to records by gloo's name for the op, in the order of start and
the order of issue. Each of a group's threads serves that group only, which settles ties between groups.

Private parts of torch are used here (`_enable_profiler` with scopes), and they are feature-tested. If they
are missing, or the user's own profiler runs, start and duration are unknown and reported so.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from shardtoll.profiler.live.cause.frames import in_backward
from shardtoll.profiler.live.times.patches import Patches, patched
from shardtoll.profiler.live.times.settling import settle

_GLOO: Final = "gloo:"
_NAMES: Final[dict[str, str]] = {
    "all_reduce": "all_reduce",
    "sparse_all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recvAnySource": "recv",
    "barrier": "barrier",
}
"""Gloo's name of a span -> the name the join uses."""

_GLOO_OP: Final[dict[str, str]] = {"reduce_scatter": "all_reduce"}
"""Ops that gloo runs as another one: its reduce-scatter is an all-reduce and a copy."""

_COMPILED: Final = ("Torch-Compiled Region", "## Call CompiledFxGraph")
_STOP_SLACK_NS: Final = 3_000
"""The profiler's clock and ours, read at the same moment, differ by less."""
_CLOCK_SLACK_NS: Final = 200_000
"""The profiler's clock and ours may differ by this much; a span cannot begin before its issue."""


@dataclass(frozen=True, slots=True)
class RawSpan:
    """One event of the profiler: Unix ns, and the thread it began on."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    cut: bool = False
    """It had not ended when the profiler was stopped; `end_ns` is then no more than a lower bound."""


@dataclass(frozen=True, slots=True)
class Issued:
    """The join's facts about one record."""

    op: str
    group: str
    issue_ns: int
    """Unix ns."""


_LEVEL: Final = "KINETO_LOG_LEVEL"


def quiet_kineto() -> Callable[[], None]:
    """Keep Kineto from writing its start and stop lines to stderr, unless the user set a level.

    Returns what takes the setting back.
    """
    if _LEVEL in os.environ:
        return lambda: None

    def take_back() -> None:
        os.environ.pop(_LEVEL, None)

    try:
        os.environ[_LEVEL] = "99"
        return take_back
    except BaseException:
        take_back()
        raise


class SpanRecorder:
    """Starts and stops torch's profiler around a region; `stop` returns what it saw, None if it could not."""

    def __init__(self) -> None:
        self._running = False
        self._late = False
        self._everything = False
        self._recording: Any = None
        self._ranges: weakref.WeakSet[Any] = weakref.WeakSet()
        """Named ranges of torch's profiler that began under a recording of ours and are still open."""
        self.forbidden = False
        """Set for good once the user's own profiler wants to run: there can be only one."""

    def give_way(self) -> None:
        """Stop for good, because the user's own profiler is about to start."""
        self.forbidden = True
        if self.running:
            # Once in a session, and perhaps in mid-step, where more may be under way.
            settle(0.005)
        # Even in backward: else torch refuses the user's, which is worse than a callback that does nothing.
        self._disable()
        self._recording = None

    def start(self, *, everything: bool = False, device: bool = False) -> bool:
        """Start; False if this torch cannot, or if a profiler runs already.

        `everything`: operators and shapes are recorded too, with `device` what the device does, and the
        recording is kept for `take_recording`.
        """
        profiler: Any = torch._C._profiler
        autograd: Any = torch._C._autograd
        needed = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
        if self._ranges:
            # At its end such a range writes into the recording under which it began, if any goes on then.
            return False
        if self.forbidden or in_backward() or not all(hasattr(autograd, name) for name in needed):
            return False
        if self._late:
            self.stop()
        if autograd._profiler_enabled():
            return False
        activities = {torch.profiler.ProfilerActivity.CPU}
        if device:
            activities |= torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        scopes = set() if everything else {profiler.RecordScope.USER_SCOPE}
        try:
            config = profiler.ProfilerConfig(
                profiler.ProfilerState.KINETO,
                everything,
                False,
                False,
                False,
                False,
                profiler._ExperimentalConfig(),
                "",
            )
            autograd._prepare_profiler(config, activities)
            autograd._enable_profiler(config, activities, scopes)
        except (TypeError, AttributeError, RuntimeError):
            return False
        self._running = True
        self._everything = everything
        return True

    def patch_ranges(self) -> Callable[[], None]:
        """Have named ranges noted that begin under a recording; returns what undoes that.

        A range keeps the address of its event. Once its recording is freed and another one goes on, torch
        writes there when the range ends. The process may die.
        """
        ranges = self._ranges

        def entering(original: Any) -> Callable[..., Any]:
            def __enter__(span: Any) -> Any:
                if self._running:
                    ranges.add(span)
                return original(span)

            return __enter__

        def leaving(original: Any) -> Callable[..., Any]:
            def __exit__(span: Any, *args: Any) -> Any:
                # Before it: `shardtoll run` ends a step, and begins the next one, inside `original`.
                ranges.discard(span)
                return original(span, *args)

            return __exit__

        def install(patches: Patches) -> None:
            patches.around(torch.autograd.profiler.record_function, "__enter__", entering)
            patches.around(torch.autograd.profiler.record_function, "__exit__", leaving)

        return patched(install)

    def stop(self) -> list[RawSpan] | None:
        """Stop and return the spans by start; None when it was not running, or somebody else stopped it.

        In backward it cannot be stopped: the autograd engine would put its callback back when it returns,
        for good. A recording that goes on then is stopped by the next call from elsewhere, and thrown away.
        """
        late, self._late = self._late, self._running and in_backward()
        if self._late:
            return None
        spans = self._disable()
        return None if late else spans

    def _disable(self) -> list[RawSpan] | None:
        if not self._running:
            return None
        self._running = self._late = False
        if not torch._C._autograd._profiler_enabled():
            return None
        # If it is stopped before that thread has reported an end, torch frees memory that is still written
        # to. The process may die.
        settle()
        stopped_ns = time.time_ns()
        result = torch._C._autograd._disable_profiler()
        self._recording = result if self._everything else None
        events = result.events()
        spans = [_raw(event) for event in events if event.name().startswith((_GLOO, *_COMPILED))]
        # A collective still in flight comes with an end that wraps around, or with the end of the profile.
        cut_ns = stopped_ns - _STOP_SLACK_NS
        spans = [
            span if span.end_ns < cut_ns else replace(span, end_ns=stopped_ns, cut=True) for span in spans
        ]
        spans.sort(key=lambda span: span.start_ns)
        return spans

    @property
    def running(self) -> bool:
        """Whether the recording begun by `start` still goes on, and is wanted."""
        return self._running and not self._late and bool(torch._C._autograd._profiler_enabled())

    def take_recording(self) -> Any:
        """Return torch's result of the last recording of everything, once; None if there is none."""
        recording, self._recording = self._recording, None
        return recording


def compiles() -> bool:
    """Whether this process has had torch compile anything: only the profiler knows when that ran."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", None)
    # Code that is kept from the compiler is listed too, as None.
    return backends is None or any(backend is not None for backend in backends.values())


def _raw(event: Any) -> RawSpan:
    start_ns = int(event.start_ns())
    return RawSpan(event.name(), start_ns, start_ns + int(event.duration_ns()), int(event.start_thread_id()))


def compiled_regions(spans: Sequence[RawSpan]) -> list[tuple[int, int]]:
    """Return the Unix intervals in which compiled code ran."""
    return [(span.start_ns, span.end_ns) for span in spans if span.name.startswith(_COMPILED)]


def patch_user_profiler(give_way: Callable[[], None]) -> Callable[[], None]:
    """Have `give_way` called before a profiler of the user's prepares or starts; returns what undoes that.

    Those that only emit ranges for other tools, `emit_nvtx` and `emit_itt`, are profilers to torch too.
    """

    def giving_way(original: Any) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self, "enabled", True):
                give_way()
            return original(self, *args, **kwargs)

        return wrapper

    profilers: Any = torch.autograd.profiler

    def install(patches: Patches) -> None:
        patches.around(profilers.profile, "_prepare_trace", giving_way)
        patches.around(profilers.profile, "_start_trace", giving_way)
        patches.around(getattr(profilers, "emit_nvtx", None), "__enter__", giving_way)
        patches.around(getattr(profilers, "emit_itt", None), "__enter__", giving_way)

    return patched(install)


def join(
    spans: Sequence[RawSpan], issued: Sequence[Issued], threads: dict[int, str] | None = None
) -> list[RawSpan | None]:
    """Return for each record, in order of issue, its span; None for a record without one.

    `threads` maps known threads to the groups they serve. It is added to, and should be kept for the whole
    session. If two groups could own a span and its thread is not known yet, neither gets one: unknown rather
    than swapped.
    """
    group_of_thread = {} if threads is None else threads
    while True:
        before = len(group_of_thread)
        joined, unsure = _join_once(spans, issued, group_of_thread)
        # Threads learnt later in the region may settle what was unsure at first.
        if not unsure or len(group_of_thread) == before:
            return joined


def _join_once(
    spans: Sequence[RawSpan], issued: Sequence[Issued], group_of_thread: dict[int, str]
) -> tuple[list[RawSpan | None], bool]:
    waiting: dict[tuple[str, str], deque[int]] = {}
    for index, record in enumerate(issued):
        runs_as = _GLOO_OP.get(record.op, record.op)
        waiting.setdefault((runs_as, record.group), deque()).append(index)
    joined: list[RawSpan | None] = [None] * len(issued)
    lost: set[tuple[str, str]] = set()
    for span in spans:
        kind = _NAMES.get(span.name.removeprefix(_GLOO), "") if span.name.startswith(_GLOO) else ""
        heads = [
            queue[0]
            for (op, _), queue in waiting.items()
            if op == kind and queue and issued[queue[0]].issue_ns <= span.start_ns + _CLOCK_SLACK_NS
        ]
        if not heads:
            continue
        group = group_of_thread.get(span.thread)
        of_thread = [head for head in heads if issued[head].group == group]
        if not of_thread and len(heads) > 1:
            lost.update((kind, issued[head].group) for head in heads)
            continue
        index = of_thread[0] if of_thread else heads[0]
        if len(heads) == 1 and not lost and kind not in ("send", "recv"):
            # Sends and receives run on the caller's thread, which serves every group.
            group_of_thread[span.thread] = issued[index].group
        waiting[(kind, issued[index].group)].popleft()
        joined[index] = span
    for index, record in enumerate(issued):
        if (_GLOO_OP.get(record.op, record.op), record.group) in lost:
            joined[index] = None
    return joined, bool(lost)
