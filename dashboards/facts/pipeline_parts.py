"""The messages of a job's pipelines, and the work of a stage in one step: stretches that do not overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shardtoll.ledger import Report
from shardtoll.ledger.answers.pipeline import Pipelines
from shardtoll.ledger.tables.tables import to_frame

if TYPE_CHECKING:
    import pandas as pd

WORK: Final = ("forward", "backward", "recompute", "optimizer", "other")
WAITING: Final = "bubble: waiting for the other end"
MOVING: Final = "sending or receiving"


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of one rank."""

    rank: int
    kind: str
    """One of `WORK`, `WAITING` or `MOVING`."""
    start_ns: int
    end_ns: int
    batch: int | None = None
    """Which micro-batch, counted from 0 by order; None if unknown."""


_COLUMNS: Final = (
    *("step", "rank", "op", "root", "group", "group_size", "mesh_dim", "group_id", "phase", "start_ns"),
    *("duration_ns", "wait_ns", "waited_ns", "message_bytes", "module", "parameter", "source"),
    "caused_by_op",
)


def messages_of(report: Report, pipelines: Pipelines) -> pd.DataFrame:
    """Return the sends and receives between stages in finished steps; `index` is the place among the rank's
    rows of the collectives' table."""
    frame = to_frame(report.tables["collectives"].select(list(_COLUMNS)))
    frame["index"] = frame.groupby("rank").cumcount()
    between = frame["op"].isin(("send", "recv")) & frame["group_id"].isin(pipelines.group_ids)
    finished = report.tables["steps"].column("step").unique().to_pylist()
    messages: pd.DataFrame = frame[between & frame["root"].notna() & frame["step"].isin(finished)]
    return messages


def parts_of(report: Report, messages: pd.DataFrame, step: int, rank: int, batches: int | None) -> list[Part]:
    """Return the parts of a rank's step, by start; `messages` are those of that rank and step.

    Work is found by operators with a duration; if there are none, by the lead-up to each message.
    """
    timed = messages[messages["start_ns"].notna() & messages["duration_ns"].notna()]
    work = _operators(report, timed, step, rank) or _lead_ups(report, timed, step, rank)
    counts = {kind: sum(part.kind == kind for part in work) for kind in WORK}
    seen = dict.fromkeys(WORK, 0)
    numbered = []
    for part in work:
        one_each = (
            batches is not None and counts[part.kind] == batches and part.kind in ("forward", "backward")
        )
        batch = seen[part.kind] if one_each else None
        seen[part.kind] += 1
        numbered.append(Part(rank, part.kind, part.start_ns, part.end_ns, batch))
    busy = [(part.start_ns, part.end_ns) for part in numbered]
    starts = timed["start_ns"].to_numpy(dtype=np.int64)
    ends = starts + timed["duration_ns"].to_numpy(dtype=np.int64)
    waits = np.minimum(timed["wait_ns"].to_numpy(dtype=np.int64, na_value=0), ends - starts)
    lost = timed["waited_ns"].to_numpy(dtype=np.int64, na_value=0) > 0
    waiting = _without(_union(list(zip(starts[lost], (starts + waits)[lost], strict=True))), busy)
    moving = _without(_union(list(zip(starts, ends, strict=True))), _union([*busy, *waiting]))
    parts = [*numbered]
    parts += [Part(rank, WAITING, start, end) for start, end in waiting]
    parts += [Part(rank, MOVING, start, end) for start, end in moving]
    return sorted(parts, key=lambda part: part.start_ns)


def _operators(report: Report, messages: pd.DataFrame, step: int, rank: int) -> list[Part]:
    """Return stretches of operators of one phase, cut where a message begins."""
    frame = to_frame(report.tables["computes"].filter(_of(report, "computes", step, rank)))
    frame = frame[frame["duration_ns"].notna()].sort_values("start_ns", kind="stable")
    if frame.empty:
        return []
    start = frame["start_ns"].to_numpy(dtype=np.int64)
    end = start + frame["duration_ns"].to_numpy(dtype=np.int64)
    phase = frame["phase"].to_numpy()
    between = np.searchsorted(np.sort(messages["start_ns"].to_numpy(dtype=np.int64)), start)
    begins = np.append(True, (phase[1:] != phase[:-1]) | (between[1:] != between[:-1]))
    first = np.flatnonzero(begins)
    last = np.maximum.reduceat(end, first)
    return [Part(rank, str(phase[i]), int(start[i]), int(e)) for i, e in zip(first, last, strict=True)]


def _lead_ups(report: Report, messages: pd.DataFrame, step: int, rank: int) -> list[Part]:
    """Return the compute before each message, drawn up to its start."""
    frame = to_frame(report.tables["leadups"].filter(_of(report, "leadups", step, rank)))
    kept = messages[["index", "start_ns", "op", "phase"]]
    joined = kept.merge(frame[frame["compute_ns"] > 0], on="index", how="inner", suffixes=("", "_up"))
    joined = joined.sort_values("start_ns", kind="stable")
    begun = to_frame(report.tables["steps"].filter(_of(report, "steps", step, rank)))["start_ns"]
    until = int(begun.iloc[0]) if len(begun) else -(2**62)
    # The lead-up to a step's first message contains the end of the step before. The phase of the message that
    # a rank sends is then its own phase.
    earlier = (joined["since_ns"] < until) & (joined["op"] == "send")
    phases = joined["phase_up"].mask(earlier, joined["phase"])
    parts: list[Part] = []
    for start, compute, phase in zip(joined["start_ns"], joined["compute_ns"], phases, strict=True):
        # Several messages begin together: what led up to one led up to the others.
        begin = max(int(start) - int(compute), until)
        if begin < int(start):
            parts.append(Part(rank, str(phase), begin, int(start)))
            until = int(start)
    return parts


def _of(report: Report, table: str, step: int, rank: int) -> object:
    import pyarrow.compute as pc

    columns = report.tables[table]
    return pc.and_(pc.equal(columns.column("step"), step), pc.equal(columns.column("rank"), rank))


Spans = list[tuple[int, int]]


def _union(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted((int(start), int(end)) for start, end in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _without(spans: Spans, taken: Spans) -> Spans:
    """Return the parts of the spans outside `taken`; both are ordered and free of overlap."""
    outside: Spans = []
    taken = _union(taken)
    next_taken = 0
    for start, end in spans:
        while next_taken < len(taken) and taken[next_taken][1] <= start:
            next_taken += 1
        here = next_taken
        while here < len(taken) and taken[here][0] < end:
            if taken[here][0] > start:
                outside.append((start, taken[here][0]))
            start = max(start, taken[here][1])
            here += 1
        if start < end:
            outside.append((start, end))
    return outside
