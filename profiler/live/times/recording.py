"""The transport's spans, region by region: from a recording of their own, or from the trace of a traced step.

There is one profiler at a time in torch, so the two take turns. Also says why times are unknown if no
recording could be had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from shardtoll.profiler.live.cause.frames import in_backward
from shardtoll.profiler.live.times.device_times import DeviceReading
from shardtoll.profiler.live.times.spans import RawSpan, SpanRecorder
from shardtoll.profiler.live.times.tracing import MOST_OPERATORS, Tracer

ON_FAKE: Final = (
    "operators ran on fake tensors. Collectives and FLOPs are counted, but their times belong to no device "
    "and their values are unknown"
)


class Recording:
    """Starts and ends the recordings of a session's regions."""

    def __init__(self, *, host_times: bool) -> None:
        """`host_times`: whether operators are done when they return; else spans are of no use."""
        self._host_times = host_times
        self.spans = SpanRecorder()
        self.tracer: Tracer | None = None
        """Traces the first steps, if that was asked for."""
        self._early: list[RawSpan] = []
        """Spans of the region up to where its trace was given up."""
        self._needless = False
        """Whether the region has no spans to record: nothing in it is transferred or compiled."""

    def trace(self, steps: int, device: torch.device) -> None:
        """Have the first steps traced."""
        self.tracer = Tracer(self.spans, steps, device)

    @property
    def tracing(self) -> bool:
        """Whether a traced step runs, or a recording of several goes on."""
        return self.tracer is not None and self.tracer.recording

    def begin(self, step: int | None, is_needless: Callable[[], bool]) -> None:
        """Begin a surveyed region; `is_needless` says whether it can have any spans."""
        # Between steps the user's own profiler may start: there the transport's times stay unknown.
        if step is None or (self.tracer is not None and self.tracer.begin(step)) or not self._host_times:
            return
        # Starting and stopping the profiler is expensive, and slows every range that FSDP2 marks.
        self._needless = is_needless()
        if not self._needless:
            self.spans.start()

    def end(self, step: int | None, *, whole: bool) -> list[RawSpan] | None:
        """End a surveyed region; return its spans, None if they could not be had.

        `whole` false: it holds work that does not belong to the step, which its trace cannot know.
        """
        if self.tracer is not None and self.tracer.recording:
            return self.tracer.end(step, whole=whole)
        early, self._early = self._early, []
        if self._needless:
            self._needless = False
            return early
        late = self.spans.stop()
        return None if late is None else early + late

    def drop(self) -> None:
        """Give up the region's recording."""
        self._early = []
        self._needless = False
        if self.tracer is not None and self.tracer.recording:
            self.tracer.drop()
        else:
            self.spans.stop()

    def bound(self, step: int | None, operators: int) -> None:
        """Give up the trace of a step so long that its recording would fill the memory."""
        # In backward no recording can be ended.
        if operators <= MOST_OPERATORS or self.tracer is None or not self.tracer.recording or in_backward():
            return
        self._early = self.tracer.give_up(step) or []
        if self._host_times:
            self.spans.start()

    def keep(self) -> None:
        """See that spans are recorded, over as many watched regions as come until they are taken."""
        if not self.spans.running:
            self.spans.start()

    def take(self) -> list[RawSpan] | None:
        """End the recording that `keep` began and return its spans; None if it could not be had."""
        return None if self.tracing else self.spans.stop()


def times_unknown(host_times: bool, *, spans: bool, device: DeviceReading | None = None) -> str | None:
    """Return why times are unknown; None if they are known.

    `host_times`: whether operators are done when they return. `spans`: whether the transport's are there.
    `device`: what the device's events said.
    """
    if device is not None:
        return (
            "operators and transfers are not timed on this device without a trace (audit(trace=True)): "
            "known are the step's time and for how long its stream stood still for each collective"
        )
    if not host_times:
        return "device times are not captured live on this device: durations and exposed time are unknown"
    if not spans:
        return (
            "torch's profiler could not be used in some steps: start and duration of their collectives are "
            "unknown. Another one ran, this torch has none, or a step ended inside backward or began inside "
            "a range of record_function"
        )
    return None
