"""HTA's figures as tables of text, for both the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from shardtoll.dashboards.facts import step_times
from shardtoll.ledger import Report
from shardtoll.ledger.answers.hta_figures import (
    CriticalPath,
    HtaFigures,
    LaunchStats,
    QueueLength,
    StreamIdle,
)
from shardtoll.ledger.words import human

LEAST_SHARE: Final = 0.02
"""Share of a step below which the bill's exposed communication contradicts nothing."""


class HtaTable(Struct, frozen=True):
    """One of HTA's answers, the rows that matter most."""

    title: str
    lead: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    """Plain text; none of it comes from a trace but numbers."""
    left_out: int


def hta_tables(figures: HtaFigures, most: int, named: Collection[int] = ()) -> list[HtaTable]:
    """Return the answers that have rows, at most `most` of each.

    Ranks in `named` are those a reader looks for: each has its heaviest row, as far as there is room.
    """
    made = [
        _table(
            "critical path",
            "the longest chain of dependent work in a step, by what bounds it",
            ("rank", "step", "length", "host", "compute", "communication", "kernel gaps", "launches"),
            figures.critical_paths,
            lambda path: path.length_ns,
            _path,
            most,
            named,
        ),
        _table(
            "idle time of streams",
            "host: the next kernel was not launched yet; kernel: short gaps; other: something else held it",
            ("rank", "stream", "host wait", "kernel wait", "other"),
            figures.idle,
            lambda idle: idle.host_wait_ns + idle.kernel_wait_ns + idle.other_ns,
            _idle,
            most,
            named,
        ),
        _table(
            "launches",
            "short: work shorter than its call; slow: calls over 50 µs; delayed: begun over 100 µs later",
            ("rank", "launches", "short", "slow", "delayed", "median delay", "longest delay"),
            figures.launches,
            lambda stats: stats.delayed + stats.short + stats.slow_calls,
            _launches,
            most,
            named,
        ),
        _table(
            "queue length",
            "work launched and not begun, over the moments of change",
            ("rank", "stream", "mean", "longest"),
            figures.queues,
            lambda queue: queue.most,
            _queue,
            most,
            named,
        ),
    ]
    return [table for table in made if table.rows]


def named_ranks(report: Report) -> tuple[int, ...]:
    """Return the ranks that findings point at alone, and the slowest: those a reader looks for."""
    alone = [finding.ranks[0] for finding in report.findings if len(finding.ranks) == 1]
    worst = step_times.slowest(step_times.rank_times(report))
    return tuple(dict.fromkeys([*alone, *(worst.ranks if worst else ())]))


def contradiction(report: Report) -> str | None:
    """Return why HTA's critical paths hold less communication than the bill, if they plainly do."""
    paths = [] if report.hta is None else report.hta.critical_paths
    paths_of: dict[int, list[CriticalPath]] = {}
    for path in paths:
        paths_of.setdefault(path.rank, []).append(path)
    worst: tuple[float, int, float, float] | None = None
    for time in step_times.rank_times(report):
        seen = paths_of.get(time.ranks[0])
        exposed_ns = time.parts_ns[1]
        if not seen or exposed_ns is None or exposed_ns < LEAST_SHARE * time.total_ns:
            continue
        by_hta = sum(path.communication_ns for path in seen) / len(seen)
        gaps = sum(path.kernel_gap_ns for path in seen) / len(seen)
        if by_hta < exposed_ns / 2 and (worst is None or exposed_ns > worst[0]):
            worst = (exposed_ns, time.ranks[0], by_hta, gaps)
    if worst is None:
        return None
    exposed_ns, rank, by_hta, gaps = worst
    return (
        f"The bill has {human.duration(exposed_ns)} of exposed communication per step on rank {rank}, "
        f"HTA's critical path {human.duration(by_hta)}, and {human.duration(gaps)} of kernel gaps. They "
        "measure different things. HTA follows one chain of work. It follows a wait from a collective to "
        "compute only if the trace holds synchronisation events; otherwise the wait is a gap. The bill "
        "has the cost of waiting for communication."
    )


def _table(
    title: str,
    lead: str,
    heads: tuple[str, ...],
    records: Sequence[Any],
    weight: Callable[[Any], float],
    cells: Callable[[Any], Iterable[str]],
    most: int,
    named: Collection[int],
) -> HtaTable:
    heaviest = sorted(range(len(records)), key=lambda number: -weight(records[number]))
    first: dict[int, int] = {}
    for number in heaviest:
        if records[number].rank in named:
            first.setdefault(records[number].rank, number)
    chosen = list(dict.fromkeys([*first.values(), *heaviest]))[:most]
    rows = [tuple(cells(records[number])) for number in sorted(chosen)]
    return HtaTable(title, lead, heads, rows, len(records) - len(rows))


def _path(path: CriticalPath) -> tuple[str, ...]:
    parts = (path.length_ns, path.host_ns, path.compute_ns, path.communication_ns)
    step = "all" if path.step is None else str(path.step)
    return (
        str(path.rank),
        step,
        *map(human.duration, (*parts, path.kernel_gap_ns, path.launch_ns)),
    )


def _idle(idle: StreamIdle) -> tuple[str, ...]:
    parts = (idle.host_wait_ns, idle.kernel_wait_ns, idle.other_ns)
    return (str(idle.rank), str(idle.stream), *map(human.duration, parts))


def _launches(stats: LaunchStats) -> tuple[str, ...]:
    counts = (stats.count, stats.short, stats.slow_calls, stats.delayed)
    delays = (stats.median_delay_ns, stats.most_delay_ns)
    return (str(stats.rank), *map(human.number, counts), *map(human.duration, delays))


def _queue(queue: QueueLength) -> tuple[str, ...]:
    return (str(queue.rank), str(queue.stream), f"{queue.mean:.1f}", human.number(queue.most))
