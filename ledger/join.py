"""Live records of a rank joined with a trace of the same steps: causes of the one, device times of the other.

Live capture knows which module, parameter and line asked for a collective; on an accelerator it cannot
know when the device worked on it. The trace knows that, and hardly any cause.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.ledger import Ledger, shifted_by
from shardtoll.ledger.record import Collective, Notice, Step
from shardtoll.ledger.stall import IDLE_KINDS, Stall
from shardtoll.ledger.tables import to_records, to_table

_START_SLACK_NS: Final = 200_000
"""Two clocks read the same start, or an issue and what came after it, at most this far apart."""
_RUNS_AS: Final = {("reduce_scatter", "all_reduce")}
"""(op asked for, op a trace may show): gloo runs a reduce-scatter as an all-reduce."""
_KEPT_NOTICES: Final = ("file-cut", "launches-unseen")
"""What a trace has to say of itself that still holds when live records fill in what it lacks."""
_BLIND: Final = "times-unknown"
_PART_OF: Final = dict.fromkeys(IDLE_KINDS, "idle_ns") | {
    "copy": "exposed_copy_ns",
    "recompute": "compute_ns",
    "unclassified": "unattributed_ns",
}
"""Kind of stall -> the part of a step that its `lost_ns` is of."""


def join(live: Ledger, traced: Ledger, steps: Collection[int]) -> Ledger:
    """Return the live ledger of one rank with what the trace of `steps` adds.

    Every live record keeps its cause. Where live capture did not time operators (an accelerator), the
    step's split and its collectives' start, duration and exposed time are the trace's; a collective that
    only the trace has gets a row without a cause, so that shares still add up. Elsewhere only what was
    unknown is filled in. Lead-ups and stalls of all traced steps come along, stalls cut to what the kept
    split has of them.
    A notice counts what found no partner.

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
    for at, own in pairs.items():
        rows[own] = _filled(ours[own], spans[at], timed=ours[own].step in blind)
    place = dict(pairs)
    for at, span in enumerate(spans):
        if at not in pairs and span.step in blind:
            place[at] = len(rows)
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


def _beside(own: Stall, told: Collection[tuple[int | None, str]]) -> Stall:
    """Return a live stall; where the trace tells of its kind in the step, without what both would count."""
    return replace(own, lost_ns=0) if (own.step, own.kind) in told else own


def within(stalls: Sequence[Stall], steps: Mapping[int, Step]) -> list[Stall]:
    """Return the stalls, those of `steps` (by number) shrunk to the time that the steps' own split has.

    Two splits of a step differ by what capture itself took; a reason for idle time must not outgrow it.
    """
    sums: dict[tuple[int | None, str], int] = {}
    for row in stalls:
        key = (row.step, _PART_OF[row.kind])
        sums[key] = sums.get(key, 0) + row.lost_ns
    found = []
    for row in stalls:
        step = None if row.step is None else steps.get(row.step)
        if step is not None:
            has, told = getattr(step, _PART_OF[row.kind]), sums[row.step, _PART_OF[row.kind]]
            row = replace(row, lost_ns=row.lost_ns * has // told) if told > has else row
        found.append(row)
    return found


def match(live: Sequence[Collective], traced: Sequence[Collective], steps: Collection[int]) -> dict[int, int]:
    """Return position among `traced` -> position among `live` for the collectives of `steps`.

    By group and sequence number where both have them; what is left by order of start and issue. Both
    are checked by op and size. Where collectives of several groups fit equally well, none is taken.
    """
    pairs: dict[int, int] = {}
    own = [at for at, row in enumerate(live) if row.step in steps]
    other = [at for at, row in enumerate(traced) if row.step in steps]
    groups = {live[at].group for at in own}
    numbered = {(live[at].group, live[at].seq): at for at in own if live[at].seq is not None}
    free = dict.fromkeys(sorted(own, key=lambda at: live[at].issue_ns or 0))
    for at in other:
        row = traced[at]
        found = numbered.get((row.group, row.seq)) if row.seq is not None else None
        if found is not None and found in free and _same(live[found], row):
            pairs[at] = found
            del free[found]
    for at in sorted(other, key=lambda at: traced[at].start_ns or 0):
        if at in pairs:
            continue
        heads: dict[str, int] = {}
        for candidate in free:
            if _fits(live[candidate], traced[at], groups):
                heads.setdefault(live[candidate].group, candidate)
        if len(heads) == 1:
            (pairs[at],) = heads.values()
            del free[pairs[at]]
    return pairs


def _same(own: Collective, span: Collective) -> bool:
    """Whether op and size agree as far as the trace knows them."""
    if span.op not in ("unknown", own.op):
        return (own.op, span.op) in _RUNS_AS
    sizes = (own.message_bytes, span.message_bytes)
    return span.op == "unknown" or None in sizes or sizes[0] == sizes[1]


def _fits(own: Collective, span: Collective, groups: Collection[str]) -> bool:
    """Whether they may be one collective: op, size, group as far as known, and a start after the issue."""
    if not _same(own, span) or (span.group in groups and span.group != own.group):
        return False
    if own.start_ns is not None and span.start_ns is not None:
        return abs(own.start_ns - span.start_ns) <= _START_SLACK_NS
    if own.step != span.step:
        return False
    return span.start_ns is None or own.issue_ns is None or own.issue_ns <= span.start_ns + _START_SLACK_NS


def _is_blind(step: Step, untimed: bool) -> bool:
    """Whether live capture knew no times, or (`untimed`: it said so) none but waiting for collectives."""
    known_ns = step.exposed_comm_ns if untimed else 0
    return step.unattributed_ns + known_ns == step.duration_ns > 0


_TIMES: Final = ("start_ns", "duration_ns", "exposed_ns")
_FACTS: Final = ("dtype", "message_bytes", "wire_bytes", "stream", "kernel")


def _filled(own: Collective, span: Collective, *, timed: bool) -> Collective:
    """The live record with the trace's times (all of them, or those it lacked) and what else it lacked."""
    news: dict[str, Any] = {name: getattr(span, name) for name in _FACTS if getattr(own, name) is None}
    if timed:
        news |= {name: getattr(span, name) for name in _TIMES}
    elif own.start_ns is None or own.duration_ns is None:
        news |= {"start_ns": span.start_ns, "duration_ns": span.duration_ns}
    return replace(own, **news)


def _notices(live: Ledger, traced: Ledger, blind: Collection[int]) -> list[Notice]:
    own: list[Notice] = to_records("notices", live.tables["notices"])
    said: list[Notice] = to_records("notices", traced.tables["notices"])
    kept = [notice for notice in own if notice.kind != _BLIND or notice.step not in blind]
    return kept + [notice for notice in said if notice.kind in _KEPT_NOTICES]


def _unmatched(
    rank: int,
    live: Sequence[Collective],
    traced: Sequence[Collective],
    pairs: Mapping[int, int],
    steps: Collection[int],
) -> Notice | None:
    own = sum(row.step in steps for row in live) - len(pairs)
    other = sum(row.step in steps for row in traced) - len(pairs)
    if not own and not other:
        return None
    text = (
        f"rank {rank}: of the traced steps, {own} recorded collectives were not found in the trace "
        f"and {other} of the trace's not among the records"
    )
    return Notice(rank, "trace-unmatched", text)
