"""The phase of a pipeline's messages: what was computed before a send, or after a receive.

A schedule sends gradients from the training thread, between two calls of backward, so that thread and
instant show nothing. The compute does: a send carries what its rank computed last, and a receive brings
what it computes next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger.records.record import PHASES
from shardtoll.profiler.traces.file.trace_columns import I64, Trace
from shardtoll.profiler.traces.rank.causes import Cause, Work
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.phases import BACKWARD, FORWARD, OTHER, RECOMPUTE, Phases, matching
from shardtoll.profiler.traces.rank.split import COMPUTE

MESSAGES: Final = ("send", "recv")

LEAST_RUN: Final = 0.1
"""Part of the compute between two messages that a run of one phase must have: copies are shorter."""

_BACKWARD_KERNEL: Final = re.compile(r"(?<![a-z])(backward|bwd|dgrad|wgrad)(?![a-z])", re.IGNORECASE)
_FORWARD_KERNEL: Final = re.compile(r"(?<![a-z])(forward|fwd|fprop)(?![a-z])", re.IGNORECASE)

I8 = npt.NDArray[np.int8]


def with_message_phases(facts: Facts, phases: Phases, work: Work, causes: list[Cause]) -> list[Cause]:
    """Return the causes with the phases of sends and receives by what was computed.

    Unchanged where an annotation names the phase, and where no compute is known to be a backward.
    """
    places = [place for place, row in enumerate(facts.rows) if row.op in MESSAGES and row.timed]
    compute = np.flatnonzero(facts.layer == COMPUTE)
    if not places or not len(compute):
        return causes
    phase = _of_kernels(facts.trace, compute, work.phase[compute])
    if not (phase == BACKWARD).any():
        return causes
    rows = [facts.rows[place] for place in places]
    issued = np.array([-1 if row.issue_ns is None else row.issue_ns for row in rows], np.int64)
    named = phases.named(np.array([row.thread for row in rows], np.int64), issued)
    device = facts.trace.device
    found = _by_compute(
        np.array([row.start_ns for row in rows], np.int64),
        np.array([row.end_ns for row in rows], np.int64),
        [row.op == "send" for row in rows],
        device.start_ns[compute],
        device.end_ns[compute],
        phase,
    )
    made = list(causes)
    for place, is_named, number in zip(places, named.tolist(), found, strict=True):
        if not is_named and number != OTHER:
            made[place] = replace(made[place], phase=PHASES[number])
    return made


def _of_kernels(trace: Trace, compute: I64, phase: I8) -> I8:
    """Return forward, backward or other for each piece of compute; by names without autograd."""
    if (phase == BACKWARD).any():
        return np.where(phase == RECOMPUTE, BACKWARD, phase).astype(np.int8)
    names = trace.device.name[compute]
    back, ahead = (matching(trace, pattern)[names] for pattern in (_BACKWARD_KERNEL, _FORWARD_KERNEL))
    return np.where(back, BACKWARD, np.where(ahead, FORWARD, OTHER)).astype(np.int8)


def _by_compute(
    start: I64, end: I64, is_send: Sequence[bool], begins: I64, ends: I64, phase: I8
) -> list[int]:
    """Return the phase of each message; `OTHER` if no compute of a known phase is next to it."""
    # Measured ends overlap by microseconds with what begins then: the middle says what came first.
    middle = begins + (ends - begins) // 2
    order = np.argsort(middle, kind="stable")
    begins, ends, middle, phase = begins[order], ends[order], middle[order], phase[order]
    starts = np.sort(start)
    found = []
    for at, until, sent in zip(start.tolist(), end.tolist(), is_send, strict=True):
        if sent:
            high = int(np.searchsorted(middle, at, "right"))
            before = int(np.searchsorted(starts, middle[high - 1])) if high else 0
            low = int(np.searchsorted(middle, starts[before - 1])) if before else 0
            rows = np.arange(low, high)[::-1]
        else:
            low = int(np.searchsorted(middle, until))
            after = int(np.searchsorted(starts, middle[low])) if low < len(middle) else len(starts)
            high = int(np.searchsorted(middle, starts[after])) if after < len(starts) else len(middle)
            rows = np.arange(low, high)
        found.append(_first_run(phase[rows], (ends - begins)[rows]))
    return found


def _first_run(phase: I8, lasted: I64) -> int:
    """Return the phase of the first run of one phase that has enough of the time."""
    known = np.isin(phase, (FORWARD, BACKWARD))
    phase, lasted = phase[known], lasted[known]
    if not len(phase):
        return OTHER
    cuts = np.flatnonzero(np.diff(phase)) + 1
    sums = np.add.reduceat(lasted, np.concatenate([[0], cuts]))
    long = np.flatnonzero(sums >= LEAST_RUN * lasted.sum())
    return int(phase[np.concatenate([[0], cuts])[long[0]]])
