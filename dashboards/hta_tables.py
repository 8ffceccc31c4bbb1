"""HTA's figures as tables of text, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardtoll.dashboards import human
from shardtoll.ledger.hta_figures import CriticalPath, HtaFigures, LaunchStats, QueueLength, StreamIdle


@dataclass(frozen=True, slots=True)
class HtaTable:
    """One of HTA's answers, the rows that matter most."""

    title: str
    lead: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    """Plain text; none of it comes from a trace but numbers."""
    left_out: int


def hta_tables(figures: HtaFigures, most: int) -> list[HtaTable]:
    """Return the answers that have rows, at most `most` of each."""
    made = [
        _table(
            "critical path",
            "the longest chain of dependent work in a step, by what bounds it",
            ("rank", "step", "length", "host", "compute", "communication", "kernel gaps", "launches"),
            figures.critical_paths,
            lambda path: path.length_ns,
            _path,
            most,
        ),
        _table(
            "idle time of streams",
            "host: the next kernel was not launched yet; kernel: short gaps; other: something else held it",
            ("rank", "stream", "host wait", "kernel wait", "other"),
            figures.idle,
            lambda idle: idle.host_wait_ns + idle.kernel_wait_ns + idle.other_ns,
            _idle,
            most,
        ),
        _table(
            "launches",
            "short: work shorter than its call; slow: calls over 50 µs; delayed: begun over 100 µs later",
            ("rank", "launches", "short", "slow", "delayed", "median delay", "longest delay"),
            figures.launches,
            lambda stats: stats.delayed + stats.short + stats.slow_calls,
            _launches,
            most,
        ),
        _table(
            "queue length",
            "work launched and not begun, over the moments of change",
            ("rank", "stream", "mean", "longest"),
            figures.queues,
            lambda queue: queue.most,
            _queue,
            most,
        ),
    ]
    return [table for table in made if table.rows]


def _table(
    title: str,
    lead: str,
    heads: tuple[str, ...],
    records: Sequence[Any],
    weight: Callable[[Any], float],
    cells: Callable[[Any], Iterable[str]],
    most: int,
) -> HtaTable:
    heaviest = sorted(range(len(records)), key=lambda at: -weight(records[at]))[:most]
    rows = [tuple(cells(records[at])) for at in sorted(heaviest)]
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
