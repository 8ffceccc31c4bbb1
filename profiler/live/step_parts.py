"""A step's time cut into layers, and its exposed time divided among the collectives.

An instant belongs to one layer only, and the exposed times of collectives add up to the step's exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from shardtoll.profiler.accounting import Interval, Span, intersect, share_exposed, subtract, union
from shardtoll.profiler.live.layers import Cut, around, cut, flat
from shardtoll.profiler.live.pending import Region, Wait

_EXCLUDED, _CAPTURE, _COPIES, _OPERATORS, _EXPOSED, _ORPHANS, _COMPILED, _REST = range(8)
"""The layers of a step: an instant that several claim belongs to the first."""


class Parts:
    """A step's time, split."""

    __slots__ = (
        *("capture_ns", "compute_ns", "copy_ns", "excluded_ns", "exposed", "idle_ns", "orphan_ns"),
        "_found",
    )

    def __init__(self, found: Cut) -> None:
        excluded, capture, copies, operators, _, orphans, compiled, idle = found.totals_ns
        self._found = found
        self.exposed = found.intervals(_EXPOSED)
        self.excluded_ns = excluded
        self.capture_ns = capture
        self.copy_ns = copies
        self.compute_ns = operators + compiled
        self.idle_ns = idle
        self.orphan_ns = orphans

    def idle(self) -> list[Interval]:
        """Return the idle instants."""
        return self._found.intervals(_REST)


def split(region: Region, window: Interval, in_flight: Sequence[Span], compiled: Sequence[Interval]) -> Parts:
    """Cut the step: capture's own time, copies, operators, blocked on a collective, compiled code, the rest.

    All of it happens on one thread, so the layers hardly overlap; where they do (a wait inside compiled
    code), the earlier layer knows better. The rest is Python between operators: idle, not unknown.
    """
    flying = union([(span.start_ns, span.end_ns) for span in in_flight])
    # C++ does more in these times than wait: only instants with a collective in flight are blocked ones.
    drained = intersect(union(region.drains), flying)
    # Blocked on a collective that an earlier region issued: no record here could carry the time.
    ended = {span.key: span.end_ns for span in in_flight}
    orphans: list[Interval] = []
    blocked = drained
    for wait in region.waits:
        (orphans if _is_foreign(wait, region, ended) else blocked).append((wait.start_ns, wait.end_ns))
    layers = {
        _EXCLUDED: region.excluded,
        _CAPTURE: region.capture,
        _COPIES: region.copies,
        _EXPOSED: blocked,
        _ORPHANS: orphans,
        _COMPILED: compiled,
    }
    edges = [flat(intervals, layer) for layer, intervals in layers.items() if intervals]
    edges.append(around(region.ran, outer=_CAPTURE, inner=_OPERATORS))
    return Parts(cut(window, _REST, edges))


def _is_foreign(wait: Wait, region: Region, ended: Mapping[int, int]) -> bool:
    """Whether nothing issued in this region could have been waited for: all of it had ended before."""
    if wait.owner is not None:
        return False
    return not any(
        pending.issue_ns <= wait.end_ns and ended.get(index, wait.end_ns) >= wait.start_ns
        for index, pending in enumerate(region.collectives)
    )


def exposed_shares(region: Region, exposed: Sequence[Interval], in_flight: Sequence[Span]) -> dict[int, int]:
    """Return the exposed ns of each collective by index; they add up to the exposed time exactly.

    A blocked instant with nothing in flight (gloo has finished, the thread has not woken yet) goes to
    the collective that was waited for, else to the last one that ended before, else to the last issued.
    """
    shares, ownerless_ns = share_exposed(exposed, in_flight)
    if not ownerless_ns:
        return shares
    flying = union([(span.start_ns, span.end_ns) for span in in_flight])
    by_end = sorted((span.end_ns, span.key) for span in in_flight)
    waits = sorted(region.waits, key=lambda wait: wait.start_ns)
    starts = [wait.start_ns for wait in waits]
    for start_ns, end_ns in subtract(exposed, flying):
        owner = _owner(waits, starts, by_end, start_ns)
        if owner is None:
            issued = [i for i, c in enumerate(region.collectives) if c.issue_ns <= start_ns]
            owner = issued[-1] if issued else 0
        shares[owner] = shares.get(owner, 0) + end_ns - start_ns
    return shares


def _owner(waits: Sequence[Wait], starts: list[int], by_end: list[tuple[int, int]], at_ns: int) -> int | None:
    place = bisect_right(starts, at_ns) - 1
    if place >= 0 and waits[place].owner is not None and waits[place].end_ns > at_ns:
        return waits[place].owner
    ended = bisect_right(by_end, (at_ns, len(by_end)))
    return by_end[ended - 1][1] if ended else None
