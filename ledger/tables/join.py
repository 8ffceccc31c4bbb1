"""Live records of a rank joined with a trace of the same steps: causes of the one, device times of the other.

Live capture knows which module, parameter and line asked for a collective. On an accelerator it cannot know
when the device worked on it. The trace knows that, and hardly any cause.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.record import Collective, Notice, Step
from shardtoll.ledger.records.stall import IDLE_KINDS, Stall
from shardtoll.ledger.tables.ledger import Ledger, shifted_by
from shardtoll.ledger.tables.tables import to_records, to_table

_START_SLACK_NS: Final = 200_000
"""Two clocks read the same start, or an issue and what came after it, at most this far apart."""
_RUNS_AS: Final = {("reduce_scatter", "all_reduce")}
"""(op asked for, op a trace may show): gloo runs a reduce-scatter as an all-reduce."""
_KEPT_NOTICES: Final = ("file-cut", "launches-unseen")
"""Notices of a trace about itself that still hold when live records fill its gaps."""
_BLIND: Final = "times-unknown"
_PART_OF: Final = dict.fromkeys((*IDLE_KINDS, "checkpoint"), "idle_ns") | {
    "copy": "exposed_copy_ns",
    "recompute": "compute_ns",
    "unclassified": "unattributed_ns",
}
"""Kind of stall -> the part of a step that its `lost_ns` is of."""


def join(live: Ledger, traced: Ledger, steps: Collection[int]) -> Ledger:
    """Return the live ledger of one rank with what the trace of `steps` adds.

    Every live record keeps its cause. If live capture did not time operators (an accelerator), the step's
    split comes from the trace. So do the start, duration and exposed time of its collectives. A collective
    that only the trace has gets a row without a cause, so that shares still add up. Elsewhere only unknown
    values are filled in. Lead-ups and stalls of all traced steps come along, stalls cut to what the kept
    split has of them. A notice counts what found no partner.

    Raises ValueError when the two are not of one and the same rank.
    """
    if live.run.ranks_seen != traced.run.ranks_seen or len(live.run.ranks_seen) != 1:
        raise ValueError(f"ranks {live.run.ranks_seen} and {traced.run.ranks_seen} are not one rank")
    (rank,) = live.run.ranks_seen
    theirs = shifted_by(traced.tables, traced.run.epoch_ns - live.run.epoch_ns)
    seen = {step.step: step for step in to_records("steps", theirs["steps"]) if step.step in steps}
    own_steps: list[Step] = to_records("steps", live.tables["steps"])
    said: list[Notice] = to_records("notices", live.tables["notices"])
    untimed = {notice.step for notice in said if notice.kind == _BLIND}
    blind = {step.step for step in own_steps if step.step in seen and _is_blind(step, step.step in untimed)}
    ours: list[Collective] = to_records("collectives", live.tables["collectives"])
    spans: list[Collective] = to_records("collectives", theirs["collectives"])
    pairs = match(ours, spans, set(seen))
    rows = list(ours)
    for in_trace, in_live in pairs.items():
        rows[in_live] = _filled(ours[in_live], spans[in_trace], timed=ours[in_live].step in blind)
    place = dict(pairs)
    for in_trace, span in enumerate(spans):
        if in_trace not in pairs and span.step in blind:
            place[in_trace] = len(rows)
            rows.append(span)
    tables = dict(live.tables)
    tables["collectives"] = to_table("collectives", rows)
    tables["steps"] = to_table(
        "steps", [seen[step.step] if step.step in blind else step for step in own_steps]
    )
    leadups = [
        replace(row, index=place[row.index])
        for row in to_records("leadups", theirs["leadups"])
        if row.step in seen and row.index in place
    ]
    stalls = [row for row in to_records("stalls", theirs["stalls"]) if row.step in seen]
    measured = {step.step: step for step in own_steps if step.step in seen and step.step not in blind}
    stalls = within(stalls, measured)
    kinds = {(row.step, row.kind) for row in stalls}
    own_stalls: list[Stall] = [_beside(row, kinds) for row in to_records("stalls", live.tables["stalls"])]
    tables["leadups"] = pa.concat_tables([live.tables["leadups"], to_table("leadups", leadups)])
    tables["stalls"] = to_table("stalls", [*own_stalls, *stalls])
    done = theirs["device_ops"]
    done = done.filter(pc.is_in(done.column("step"), pa.array(sorted(seen), pa.int64())))
    tables["device_ops"] = pa.concat_tables([live.tables["device_ops"], done])
    tables["notices"] = to_table("notices", _notices(live, traced, blind))
    lost = _unmatched(rank, ours, spans, pairs, set(seen))
    if lost is not None:
        tables["notices"] = pa.concat_tables([tables["notices"], to_table("notices", [lost])])
    return replace(live, tables=tables)


def _beside(stall: Stall, kinds_told: Collection[tuple[int | None, str]]) -> Stall:
    """Return a live stall; if the trace has its kind in the step, without the time that both would count."""
    return replace(stall, lost_ns=0) if (stall.step, stall.kind) in kinds_told else stall


def within(stalls: Sequence[Stall], steps: Mapping[int, Step]) -> list[Stall]:
    """Return the stalls, those of `steps` (by number) shrunk to the time that the steps' own split has.

    Two splits of a step differ by what capture itself took; a reason for idle time must not outgrow it.
    """
    sums: dict[tuple[int | None, str], int] = {}
    for row in stalls:
        key = (row.step, _PART_OF[row.kind])
        sums[key] = sums.get(key, 0) + row.lost_ns
    cut = []
    for row in stalls:
        step = None if row.step is None else steps.get(row.step)
        if step is not None:
            has, stalled_ns = getattr(step, _PART_OF[row.kind]), sums[row.step, _PART_OF[row.kind]]
            row = replace(row, lost_ns=row.lost_ns * has // stalled_ns) if stalled_ns > has else row
        cut.append(row)
    return cut


def match(live: Sequence[Collective], traced: Sequence[Collective], steps: Collection[int]) -> dict[int, int]:
    """Return position among `traced` -> position among `live` for the collectives of `steps`.

    By group and sequence number if both have them; what is left by order of start and issue. Both are checked
    by op and size. If collectives of several groups fit equally well, none is taken.
    """
    pairs: dict[int, int] = {}
    live_places = [place for place, row in enumerate(live) if row.step in steps]
    other = [place for place, row in enumerate(traced) if row.step in steps]
    groups = {live[place].group for place in live_places}
    numbered = {
        (live[place].group, live[place].seq): place for place in live_places if live[place].seq is not None
    }
    free = dict.fromkeys(sorted(live_places, key=lambda place: live[place].issue_ns or 0))
    for place in other:
        row = traced[place]
        place_in_live = numbered.get((row.group, row.seq)) if row.seq is not None else None
        if place_in_live is not None and place_in_live in free and _same(live[place_in_live], row):
            pairs[place] = place_in_live
            del free[place_in_live]
    for place in sorted(other, key=lambda place: traced[place].start_ns or 0):
        if place in pairs:
            continue
        heads: dict[str, int] = {}
        for candidate in free:
            if _fits(live[candidate], traced[place], groups):
                heads.setdefault(live[candidate].group, candidate)
        if len(heads) == 1:
            (pairs[place],) = heads.values()
            del free[pairs[place]]
    return pairs


def _same(recorded: Collective, span: Collective) -> bool:
    """Whether op and size agree as far as the trace knows them."""
    if span.op not in ("unknown", recorded.op):
        return (recorded.op, span.op) in _RUNS_AS
    sizes = (recorded.message_bytes, span.message_bytes)
    return span.op == "unknown" or None in sizes or sizes[0] == sizes[1]


def _fits(recorded: Collective, span: Collective, groups: Collection[str]) -> bool:
    """Whether they may be one collective: op, size, group as far as known, and a start after the issue."""
    if not _same(recorded, span) or (span.group in groups and span.group != recorded.group):
        return False
    if recorded.start_ns is not None and span.start_ns is not None:
        return abs(recorded.start_ns - span.start_ns) <= _START_SLACK_NS
    if recorded.step != span.step:
        return False
    return (
        span.start_ns is None
        or recorded.issue_ns is None
        or recorded.issue_ns <= span.start_ns + _START_SLACK_NS
    )


def _is_blind(step: Step, untimed: bool) -> bool:
    """Whether live capture knew no times, or (`untimed`: it said so) none but waiting for collectives."""
    known_ns = step.exposed_comm_ns if untimed else 0
    return step.unattributed_ns + known_ns == step.duration_ns > 0


_TIMES: Final = ("start_ns", "duration_ns", "exposed_ns")
_FACTS: Final = ("dtype", "message_bytes", "wire_bytes", "stream", "kernel")


def _filled(recorded: Collective, span: Collective, *, timed: bool) -> Collective:
    """The live record with the trace's times (all, or only missing ones) and other missing facts."""
    news: dict[str, Any] = {name: getattr(span, name) for name in _FACTS if getattr(recorded, name) is None}
    if timed:
        news |= {name: getattr(span, name) for name in _TIMES}
    elif recorded.start_ns is None or recorded.duration_ns is None:
        news |= {"start_ns": span.start_ns, "duration_ns": span.duration_ns}
    return replace(recorded, **news)


def _notices(live: Ledger, traced: Ledger, blind: Collection[int]) -> list[Notice]:
    recorded: list[Notice] = to_records("notices", live.tables["notices"])
    said: list[Notice] = to_records("notices", traced.tables["notices"])
    kept = [notice for notice in recorded if notice.kind != _BLIND or notice.step not in blind]
    return kept + [notice for notice in said if notice.kind in _KEPT_NOTICES]


def _unmatched(
    rank: int,
    live: Sequence[Collective],
    traced: Sequence[Collective],
    pairs: Mapping[int, int],
    steps: Collection[int],
) -> Notice | None:
    unpaired = sum(row.step in steps for row in live) - len(pairs)
    other = sum(row.step in steps for row in traced) - len(pairs)
    if not unpaired and not other:
        return None
    text = (
        f"rank {rank}: of the traced steps, {unpaired} recorded collectives were not found in the trace "
        f"and {other} of the trace's not among the records"
    )
    return Notice(rank, "trace-unmatched", text)
