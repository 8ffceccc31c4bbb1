"""Measures the mode's cost per operator: see `slowdown`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import thread_time_ns
from typing import Final

import numpy as np
import torch

from shardtoll.profiler.live.capture.mode import SurveyMode, put_on, take_off
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.capture.slowdown import Slowing
from shardtoll.profiler.live.cause.pending import Region
from shardtoll.profiler.live.values.values import unseen

_ROUNDS: Final = 9
_OPERATORS: Final = 48
"""In a round; all rounds together take some milliseconds."""


def measure(recorder: Recorder, mode: SurveyMode) -> Slowing | None:
    """Return the time that the mode adds to an operator, in the thread's own time; None if it cannot be
    measured.

    No region may be open. It draws no random number and gives the recorder nothing that lasts.
    """
    # No mode of the user's sees these operators: they do not belong to the program.
    with unseen():
        first, second = torch.zeros(1, device="cpu"), torch.zeros(1, device="cpu")

        def work() -> None:
            for _ in range(_OPERATORS):
                first.add_(second)

        def nothing() -> None:
            for _ in range(_OPERATORS):
                pass

        work()
        loops, bare, whole, inside, booked = [], [], [], [], []
        try:
            for _ in range(_ROUNDS):
                loops.append(_took(nothing))
                bare.append(_took(work))
                recorder.region = region = Region(None, 0, {})
                put_on(mode)
                whole.append(_took(work))
                take_off(mode)
                recorder.region = None
                entered, begun, ended, left = np.array(region.ran, np.int64).reshape(-1, 4).T
                inside += (ended - begun).tolist()
                booked += (left - ended + begun - entered).tolist()
        finally:
            recorder.region = None
            take_off(mode)
    if not inside:
        # The mode is muted, or a mode of the user's keeps operators from it.
        return None
    of_loop, alone, under = (median(times) / _OPERATORS for times in (loops, bare, whole))
    ran = median(inside)
    within = max(0.0, ran - (alone - of_loop))
    around = max(0.0, under - of_loop - ran - median(booked))
    return Slowing(round(within), round(around))


def _took(work: Callable[[], None]) -> int:
    begun_ns = thread_time_ns()
    work()
    return thread_time_ns() - begun_ns
