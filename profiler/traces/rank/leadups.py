"""A rank's work between one collective of a group and the next: see `ledger.records.stall.Leadup`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.records.stall import Leadup
from shardtoll.profiler.traces.file.trace_columns import I64
from shardtoll.profiler.traces.rank.causes import Work
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.idle import BUBBLE, DATA, HOST, LAUNCH, SYNC, Pieces
from shardtoll.profiler.traces.rank.split import COMM, COMPUTE, LOOKALIKE, MOVE

_PARTS: Final = ((COMPUTE,), (COMM, LOOKALIKE), (MOVE,), (DATA,), (SYNC,), (BUBBLE, LAUNCH, HOST))
"""Layers that make up compute, other collectives, copies, data, sync and host of a lead-up."""


class Most(Struct, frozen=True):
    """The module or operator with the most kernel time in a lead-up."""

    phase: str
    module: str | None = None
    op: str | None = None
    op_ns: int | None = None


def leadups(
    facts: Facts,
    parts: Pieces,
    groups: Sequence[str],
    row_phases: Sequence[str],
    work: Work,
    rank: int,
    epoch_ns: int,
) -> list[Leadup]:
    """Return one record for each of `facts.rows`; `groups` and `row_phases` are those of the rows."""
    if not facts.rows:
        return []
    start = np.array([row.start_ns for row in facts.rows], np.int64)
    since = _since(facts, start, groups)
    sums = [_between(parts, layers, since, start).tolist() for layers in _PARTS]
    most = _most(facts, since, start, row_phases, work)
    return [
        Leadup(
            step=None if row.owner == facts.steps.none else facts.steps.numbers[row.owner],
            rank=rank,
            index=index,
            since_ns=int(since[index]) - epoch_ns,
            compute_ns=sums[0][index],
            comm_ns=sums[1][index],
            copy_ns=sums[2][index],
            data_ns=sums[3][index],
            sync_ns=sums[4][index],
            host_ns=sums[5][index],
            phase=most[index].phase,
            module=most[index].module,
            op=most[index].op,
            op_ns=most[index].op_ns,
        )
        for index, row in enumerate(facts.rows)
    ]


def _since(facts: Facts, start: I64, groups: Sequence[str]) -> I64:
    """Return the end of the group's collective before each, else its step's start; never after `start`."""
    first = np.minimum(facts.split.first_ns, facts.split.edges_ns[-1])
    first[facts.steps.none] = facts.split.edges_ns[0]
    last: dict[str, int] = {}
    since = []
    for row, group in zip(facts.rows, groups, strict=True):
        since.append(last.get(group, int(first[row.owner])))
        last[group] = max(row.end_ns, last.get(group, row.end_ns))
    return np.minimum(np.array(since, np.int64), start)


def _between(parts: Pieces, layers: tuple[int, ...], since: I64, until: I64) -> I64:
    """Return how much of each [since, until) lies in those layers; 0 in a recording of one instant."""
    if not len(parts.layer):
        return np.zeros_like(since)
    mine = np.isin(parts.layer, layers)
    sums = np.concatenate(([0], np.cumsum(np.where(mine, np.diff(parts.edges_ns), 0))))

    def up_to(at_ns: I64) -> I64:
        # Before the first piece and after the last one there is nothing, however far away.
        at_ns = np.clip(at_ns, parts.edges_ns[0], parts.edges_ns[-1])
        place = np.clip(np.searchsorted(parts.edges_ns, at_ns, side="right") - 1, 0, len(mine) - 1)
        return sums[place] + np.where(mine[place], at_ns - parts.edges_ns[place], 0)

    result: I64 = up_to(until) - up_to(since)
    return result


def _most(facts: Facts, since: I64, until: I64, row_phases: Sequence[str], work: Work) -> list[Most]:
    """Return what had most kernel time in each lead-up; its collective's phase if no kernel ran."""
    device = facts.trace.device
    rows = np.flatnonzero(facts.layer == COMPUTE)
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    begins, lasted = device.start_ns[rows], device.end_ns[rows] - device.start_ns[rows]
    names, name = np.unique(device.name[rows], return_inverse=True)
    modules, module = np.unique(work.module[rows], return_inverse=True)
    low, high = np.searchsorted(begins, since).tolist(), np.searchsorted(begins, until).tolist()
    largest = []
    for index, (first, last) in enumerate(zip(low, high, strict=True)):
        if last <= first:
            largest.append(Most(row_phases[index]))
            continue
        spent = np.bincount(work.phase[rows[first:last]], lasted[first:last], len(PHASES))
        in_module = np.bincount(module[first:last], lasted[first:last])
        times = np.bincount(name[first:last], lasted[first:last])
        largest.append(
            Most(
                PHASES[int(spent.argmax())],
                work.name_of(int(modules[in_module.argmax()])),
                facts.trace.names[int(names[times.argmax()])],
                int(times.max()),
            )
        )
    return largest
