"""Which work of a stream waits for which of another: from recorded wait calls, checked against the times.

A trace records that the host made a stream wait (`cudaStreamWaitEvent`), and when, but usually not for what.
The event can only be of work launched before. So the candidates are the last work of each other stream before
the call. A candidate that ended after the waiting work began is refuted. A pair of streams with refuted
candidates is not trusted. There a wait counts only if the work began as the other ended, and neither its
stream nor its launch held it up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.file.trace_columns import I64
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.phases import matching
from shardtoll.profiler.traces.rank.split import COMM

WAIT: Final = re.compile(r"StreamWait(Event|Value)")
NEAR_NS: Final = 20_000
"""Work that begins within this after something ended may have waited for it."""
MOST_STREAMS: Final = 256
"""Other streams that one wait may be for; of more, those that were last launched on."""
_SLACK_NS: Final = 1_000
"""Old traces cut times to whole microseconds."""
_TRUSTED: Final = 0.02
"""Share of refuted candidates up to which a pair of streams is trusted."""

_NEVER_NS: Final = -(2**62)

Pairs = list[tuple[int, int]]


def stream_waits(facts: Facts, rows: I64, launch: I64) -> Pairs:
    """Return (row that waits, row waited for) of device work; `launch` is the call of each, -1 unknown."""
    device, calls = facts.trace.device, facts.trace.calls
    seen = rows[launch >= 0]
    if not len(seen):
        return []
    when = calls.start_ns[launch[launch >= 0]]
    order = np.lexsort((device.start_ns[seen], when))
    told = _wait_calls(facts)
    # The last wait before each launch, taken or not.
    last_told = (np.searchsorted(np.array(told, np.int64), when) - 1).tolist()
    stream = device.stream[seen].tolist()
    start, end = device.start_ns[seen].tolist(), device.end_ns[seen].tolist()
    called, number = when.tolist(), seen.tolist()
    comm = (facts.layer[seen] == COMM).tolist()
    work: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))  # calls, places
    many = len(set(stream)) > MOST_STREAMS
    recent: dict[int, None] = {}  # if there are many: the one that was last launched on at the end
    since: dict[int, int] = {}
    taken: dict[int, int] = {}
    candidates: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for place in order.tolist():
        here, at_ns = stream[place], called[place]
        call = last_told[place]
        launched_ns = since.get(here, _NEVER_NS)
        if call in taken and told[call] > launched_ns:
            call = _last_free(taken, call)
        wait_ns = told[call] if call >= 0 and told[call] > launched_ns else None
        if comm[place]:
            # NCCL lets its stream wait for the one that it was called on. The wait before its launch is its
            # own, and stands for no other work. The stream waits whether that call is on record or not.
            if wait_ns is not None:
                taken[call] = call - 1
            wait_ns = at_ns
        if wait_ns is not None:
            for other in work if len(work) <= MOST_STREAMS else islice(reversed(recent), MOST_STREAMS):
                calls_ns, places = work[other]
                nth = bisect_right(calls_ns, wait_ns) - 1
                if other != here and nth >= 0:
                    candidates[here, other].append((place, places[nth], at_ns))
        since[here] = at_ns
        if many:
            recent.pop(here, None)
            recent[here] = None
        work[here][0].append(at_ns)
        work[here][1].append(place)
    free = _free_ns(device.start_ns[seen], device.end_ns[seen], device.stream[seen]).tolist()
    made: Pairs = []
    for pair in candidates.values():
        sound = [each for each in pair if end[each[1]] <= start[each[0]] + _SLACK_NS]
        trusted = len(pair) - len(sound) <= _TRUSTED * len(pair)
        for place, theirs, at_ns in sound:
            binds = start[place] - end[theirs] <= NEAR_NS and end[theirs] >= max(free[place], at_ns)
            if trusted or binds:
                made.append((number[place], number[theirs]))
    return made


def _wait_calls(facts: Facts) -> list[int]:
    calls = facts.trace.calls
    if not len(calls.name):
        return []
    rows = np.flatnonzero(matching(facts.trace, WAIT)[calls.name])
    return sorted(calls.start_ns[rows].tolist())


def _last_free(taken: dict[int, int], place: int) -> int:
    """Return the last place up to this one that is not taken; -1 if all are.

    `taken`: an earlier place for each that is taken, with none between that is not.
    """
    passed = []
    while place in taken:
        passed.append(place)
        place = taken[place]
    # Who comes this way again takes one step.
    taken.update(dict.fromkeys(passed, place))
    return place


def _free_ns(start: I64, end: I64, stream: npt.NDArray[np.integer]) -> I64:
    """Return for each work when its stream had done all before it."""
    made = np.full(len(start), -(2**62), dtype=np.int64)
    order = np.lexsort((end, start, stream))
    ends, place = np.unique(end[order], return_inverse=True)
    here = stream[order]
    begins = np.append(True, here[1:] != here[:-1])
    # The latest end so far of each stream, of all streams at once: those of a later stream count more.
    above = (np.cumsum(begins) - 1) * len(ends)
    latest = ends[np.maximum.accumulate(above + place) - above]
    follows = np.flatnonzero(~begins)
    made[order[follows]] = latest[follows - 1]
    return made
