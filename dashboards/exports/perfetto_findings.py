"""Findings as annotations of a trace: a track for each on every rank, with its facts as arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardtoll.dashboards.exports.packed import packed
from shardtoll.dashboards.exports.perfetto_text import microseconds, quoted, slices
from shardtoll.dashboards.facts.row_codes import Ints
from shardtoll.dashboards.facts.spoken import Spoken
from shardtoll.ledger import Finding
from shardtoll.ledger.words import human


def words(said: Spoken) -> pa.Array | None:
    """Return for each code the findings that speak of it, as JSON text; None if no finding speaks of any."""
    if not said.flags:
        return None
    words_of: list[list[str]] = [[] for _ in next(iter(said.flags.values()))]
    for number, flags in said.flags.items():
        for code in np.flatnonzero(flags).tolist():
            words_of[code].append(f"#{number}")
    return pa.array([quoted(" ".join(numbers)) if numbers else None for numbers in words_of], pa.string())


def arguments(number: int, finding: Finding) -> str:
    """Return a finding's facts as members of a JSON object, without braces; unknown ones are left out."""
    remedy = finding.remedy
    members: dict[str, Any] = {
        "finding": number,
        "kind": finding.kind,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "title": finding.title,
        "place": finding.where.label(),
        "toll": None if finding.toll_ns is None else human.duration(finding.toll_ns),
        "toll_ns": finding.toll_ns,
        "floor_ns": finding.floor_ns,
        "saving_ns": finding.saving_ns,
        "bytes": finding.bytes,
        "count": finding.count,
        "ranks": human.runs(finding.ranks),
        "remedy": remedy and remedy.text,
        "code": remedy and remedy.code,
        "against": remedy and remedy.counterfactual,
        "effort": remedy and remedy.effort,
    }
    return ",".join(
        f"{json.dumps(key)}:{quoted(value, 1000) if isinstance(value, str) else value}"
        for key, value in members.items()
        if value is not None
    )


def spans(
    pid: int,
    tids: Sequence[int],
    number: int,
    finding: Finding,
    start: Ints,
    end: Ints,
    step: Ints,
    what: str,
) -> pa.Array:
    """Return the events of a finding on one rank: a slice a step, and inside it when its records ran.

    Records stand by step, then by start. `tids` are tracks for steps that interleave, as many as
    `lanes_of` says. `what` is what the records are called.
    """
    first = np.flatnonzero(np.r_[True, step[1:] != step[:-1]])
    begin, until = start[first], np.maximum.reduceat(end, first)
    lane = _lanes(begin, until)
    tid = np.array(tids, dtype=np.int64)[lane]
    count = np.diff(np.r_[first, len(step)])
    step_of = step[first]
    numbers = pa.array(step_of, mask=step_of < 0)
    more = [("step", numbers.cast(pa.string())), (what, pa.array(count).cast(pa.string()))]
    name = quoted(f"#{number} {finding.kind}")
    outer = slices(
        pid,
        tid,
        microseconds(begin),
        microseconds(until - begin),
        name,
        "finding",
        more,
        arguments(number, finding),
    )
    # Times that overlap or touch are one span; a new step begins a new one.
    of = np.cumsum(np.isin(np.arange(len(step)), first)) - 1
    reach = _reach(end, first)
    opens = np.r_[True, (start[1:] > reach[:-1]) | (step[1:] != step[:-1])]
    opening = np.flatnonzero(opens)
    inner_begin, inner_end, inner_of = start[opening], np.maximum.reduceat(end, opening), of[opening]
    several = np.bincount(inner_of, minlength=len(first))[inner_of] > 1
    if not several.any():
        return outer
    ran = np.diff(np.r_[opening, len(step)])[several]
    inner = slices(
        pid,
        tid[inner_of[several]],
        microseconds(inner_begin[several]),
        microseconds((inner_end - inner_begin)[several]),
        quoted(what),
        "finding",
        [(what, pa.array(ran).cast(pa.string()))],
        f'"finding":{number}',
    )
    return pa.concat_arrays([outer, inner])


def lanes_of(start: Ints, end: Ints, step: Ints) -> int:
    """Return how many tracks a finding needs on one rank."""
    first = np.flatnonzero(np.r_[True, step[1:] != step[:-1]])
    return int(_lanes(start[first], np.maximum.reduceat(end, first)).max()) + 1


def _lanes(begin: Ints, until: Ints) -> Ints:
    order = np.argsort(begin, kind="stable")
    lane_of = np.empty(len(begin), dtype=np.int64)
    lane_of[order] = packed(begin[order], until[order])
    return lane_of


def _reach(end: Ints, first: Ints) -> Ints:
    """Return the latest end up to each record within its step."""
    reach: Ints = end.copy()
    for begin, until in zip(first.tolist(), [*first[1:].tolist(), len(end)], strict=True):
        np.maximum.accumulate(end[begin:until], out=reach[begin:until])
    return reach


def instant(pid: int, tid: int, began_us: pa.Array, number: int, finding: Finding) -> str:
    """Return a finding that no record carries, as an event of the whole trace."""
    name = quoted(f"#{number} {finding.kind}")
    (ts,) = began_us.to_pylist()
    return (
        f'{{"ph":"i","s":"g","pid":{pid},"tid":{tid},"ts":{ts},"cat":"finding","name":{name},'
        f'"args":{{{arguments(number, finding)}}}}}'
    )
