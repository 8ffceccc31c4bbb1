"""From the notes about a step to its rows of lost time: waiting for data, reads of values, gaps.

A loop waits for its batch *before* the step that uses it. The waiting time belongs to the step that follows:
the row has that step's number. Its `before_ns` is excluded from the step's duration, so that the parts of a
step still add up to it. Batches fetched after the last step belong to no step and are not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.ledger.records.stall import BETWEEN_STEPS, BLOCKED, Stall
from shardtoll.profiler.live.cause.accounting import Interval, intersect, subtract, total_ns, union
from shardtoll.profiler.live.cause.pending import Before, Fetch, Reads, Region

LEAST_BETWEEN_NS: Final = 1_000_000
"""A loop takes some time from step to step; less is not reported."""


class Between:
    """Collects what happens between steps, for the step that follows."""

    def __init__(self) -> None:
        self._before = Before()
        self._stepped = False

    def ended(self, region: Region, end_ns: int) -> None:
        """Take in a region that has ended: a step, or time between steps."""
        if region.step is not None:
            self._before, self._stepped = Before(), True
            return
        before = self._before
        before.fetches += [*region.before.fetches, *region.fetches]
        before.other_ns += region.before.other_ns
        if self._stepped and not (region.fetches or region.excluded or region.drains or region.waits):
            before.other_ns += end_ns - region.start_ns
        elif self._stepped:
            explained = [*spans(region.fetches), *region.excluded, *region.drains]
            explained += [(wait.start_ns, wait.end_ns) for wait in region.waits]
            before.other_ns += total_ns(subtract([(region.start_ns, end_ns)], union(explained)))

    def take(self) -> Before:
        """Return what happened since the last step, and forget it."""
        before, self._before = self._before, Before()
        return before


def spans(fetches: Sequence[Fetch]) -> list[Interval]:
    """Return the times in which something was fetched."""
    return [(fetch.start_ns, fetch.end_ns) for fetch in fetches]


def blocked(region: Region) -> list[Interval]:
    """Return the times of a region that are known to be something else than fetching."""
    return union([(wait.start_ns, wait.end_ns) for wait in region.waits] + region.excluded + region.capture)


def lost_rows(region: Region, rank: int, idle: Sequence[Interval] | None) -> tuple[Stall, ...]:
    """Return the rows of lost time of a step; a region that is no step has none.

    `idle` holds the instants in which a fetch lost the step time: of a surveyed step its idle time. None: the
    device is an accelerator, whose own time is unknown here, so no time of the step is reported as lost.
    """
    if region.step is None:
        return ()
    rows = _data(region, rank, idle)
    other_ns = region.before.other_ns
    if other_ns >= LEAST_BETWEEN_NS:
        between = Stall(region.step, rank, "host", BETWEEN_STEPS, "other", 1, other_ns, 0)
        rows.append(replace(between, before_ns=other_ns))
    rows += [row for reads in region.reads.values() for row in _reads(region.step, rank, reads)]
    return tuple(rows)


def _data(region: Region, rank: int, idle: Sequence[Interval] | None) -> list[Stall]:
    inside, before = region.fetches, region.before.fetches
    rows = []
    for name, source in dict.fromkeys((fetch.name, fetch.source) for fetch in (*before, *inside)):
        mine = [fetch for fetch in inside if (fetch.name, fetch.source) == (name, source)]
        earlier = [fetch for fetch in before if (fetch.name, fetch.source) == (name, source)]
        times = union(spans(mine))
        batches = [fetch.batch for fetch in (*earlier, *mine) if fetch.batch is not None]
        saves = [fetch.bytes for fetch in (*earlier, *mine) if fetch.kind == "checkpoint"]
        before_ns = total_ns(union(spans(earlier)))
        rows.append(
            Stall(
                step=region.step,
                rank=rank,
                kind="checkpoint" if saves else "data",
                name=name,
                phase="other",
                count=len(saves) or len(batches),
                total_ns=before_ns + total_ns(times),
                lost_ns=0 if idle is None else total_ns(intersect(times, idle)),
                source=source,
                bytes=_sum(saves),
                before_ns=before_ns,
                samples=_sum([batch.samples for batch in batches]),
                tokens=_sum([batch.tokens for batch in batches]),
                data_ranks=batches[0].data_ranks if batches else None,
            )
        )
    return rows


def _sum(sizes: Sequence[int | None]) -> int | None:
    """Return the sum; None if there is none to add, or one is unknown."""
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _reads(step: int | None, rank: int, reads: Reads) -> list[Stall]:
    """Return the reads at one place, and apart from them what they were blocked on collectives.

    The latter is exposed communication, and a row of its own so that nothing bills it twice.
    """
    read = Stall(
        step=step,
        rank=rank,
        kind="host-sync",
        name=reads.name,
        phase=reads.phase,
        count=reads.count,
        total_ns=reads.read_ns,
        lost_ns=0,
        module=reads.module,
        source=reads.source,
        library=reads.library,
    )
    if not reads.blocked_ns:
        return [read]
    return [read, replace(read, name=f"{reads.name}{BLOCKED}", count=0, total_ns=reads.blocked_ns)]
