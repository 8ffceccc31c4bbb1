"""The ledger of a step that nobody ran: the record with the times of an edited replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.whatif.anatomy import parts_by_rank
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.ledger import Ledger
from shardtoll.ledger.records.levels import surveyed_steps
from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.tables.tables import empty_table

Ints = npt.NDArray[np.int64]

_UNKNOWN = (
    "exposed_wait_ns",
    "exposed_move_ns",
    "exposed_unsplit_ns",
    "waited_for_ns",
    "compute_beyond_ns",
    "asleep_ns",
)
"""Columns of a step that a replay does not tell."""

_STALLS = {Kind.DATA: "data", Kind.SYNC: "host-sync", Kind.COPY: "copy"}


def ledger_with(ledger: Ledger, draft: Draft, before: Outcome, after: Outcome) -> tuple[Ledger, Ints]:
    """Return the replayed steps' ledger with the times of `after`, and where its collectives stood in
    `ledger`; `before` is the unedited outcome.

    Facts that the replay does not give are left out: lead-ups, values, events, findings made while the job
    ran. Steps that were not replayed, as surveyed ones of a live run, stay as they are, without the calls
    that are gone.
    """
    recorded = draft.recorded
    tables = dict(ledger.tables)
    for name in ("leadups", "values", "parameters", "events", "counts"):
        tables[name] = empty_table(name)
    steps = pa.array(_kept_steps(ledger, recorded), pa.int64())
    for name in ("collectives", "computes", "steps", "stalls", "device_ops"):
        tables[name] = tables[name].filter(pc.is_in(ledger.tables[name].column("step"), steps))
    tables["collectives"], places = _collectives(ledger, draft, before, after, steps)
    tables["steps"] = _steps(tables["steps"], recorded, before, after, draft.step_factor)
    gone = [
        word
        for kind, word in _STALLS.items()
        if (nodes := recorded.of_kinds((kind,))).any() and not draft.duration[nodes].any()
    ]
    recomputed = (recorded.phase == PHASES.index("recompute")) & recorded.of_kinds((Kind.COMPUTE,))
    if recomputed.any() and not draft.duration[recomputed].any():
        gone.append("recompute")
    kinds = tables["stalls"].column("kind")
    tables["stalls"] = tables["stalls"].filter(pc.invert(pc.is_in(kinds, pa.array(gone, pa.string()))))
    return replace(ledger, tables=tables, findings=()), places


def _kept_steps(ledger: Ledger, recorded: Recorded) -> list[int]:
    """Return the replayed steps, and the others if it is known which calls of theirs are gone."""
    if recorded.call is None:
        return list(recorded.steps)
    return sorted({*recorded.steps, *surveyed_steps(ledger.tables["steps"])})


def _collectives(
    ledger: Ledger, draft: Draft, before: Outcome, after: Outcome, steps: pa.Array
) -> tuple[pa.Table, Ints]:
    recorded = draft.recorded
    table = ledger.tables["collectives"]
    kept = pc.is_in(table.column("step"), steps).to_numpy(zero_copy_only=False)
    nodes = np.flatnonzero((recorded.row >= 0) & recorded.of_kinds((Kind.COLLECTIVE,)))
    rows = recorded.row[nodes]
    count = table.num_rows
    shift, lasts, was = np.zeros(count), np.full(count, -1.0), np.zeros(count)
    shift[rows] = after.arrival_ns[nodes] - recorded.start_ns[nodes]
    lasts[rows] = after.end_ns[nodes] - after.arrival_ns[nodes]
    was[rows] = before.end_ns[nodes] - before.arrival_ns[nodes]
    gone = np.zeros(count, dtype=np.bool_)
    gone[rows] = draft.alone[nodes] & (draft.duration[nodes] <= 0)
    if recorded.call is not None:
        gone |= np.isin(recorded.call, recorded.call[gone]) & (lasts < 0)
    known = lasts >= 0
    exposed = table.column("exposed_ns").to_numpy(zero_copy_only=False).astype(np.float64)
    start = table.column("start_ns").to_numpy(zero_copy_only=False).astype(np.float64)
    duration = table.column("duration_ns").to_numpy(zero_copy_only=False).astype(np.float64)
    # The part of a collective that was hidden before still hides, if it lasts so long.
    hidden = np.maximum(0.0, was - exposed)
    new = {
        "start_ns": np.where(known, start + shift, start),
        "duration_ns": np.where(known, lasts, duration),
        "exposed_ns": np.where(known, np.clip(lasts - hidden, 0.0, None), exposed),
    }
    for name, values in new.items():
        place = table.schema.get_field_index(name)
        whole = pa.array(np.round(values), pa.float64(), from_pandas=True).cast(pa.int64())
        table = table.set_column(place, table.schema.field(place), whole)
    for name in ("message_bytes", "wire_bytes"):
        place = table.schema.get_field_index(name)
        carried = _carried(table.column(place).to_pylist(), draft)
        table = table.set_column(place, table.schema.field(place), pa.array(carried, table.field(place).type))
    return table.filter(pa.array(kept & ~gone)), np.flatnonzero(kept & ~gone)


def _carried(sizes: list[int | None], draft: Draft) -> list[int | None]:
    """Return the sizes of all collectives, with the data that joined ones carry of those they took in.

    The same calls of steps that were not replayed carry it too.
    """
    call = draft.recorded.call
    joined = {row: sum(sizes[each] or 0 for each in others) for row, others in draft.joined.items()}
    if call is None:
        more = joined
    else:
        by_call = {int(call[row]): bytes_ for row, bytes_ in joined.items()}
        more = {row: by_call[number] for row, number in enumerate(call.tolist()) if number in by_call}
    return [None if size is None else size + more.get(row, 0) for row, size in enumerate(sizes)]


def _steps(table: pa.Table, recorded: Recorded, before: Outcome, after: Outcome, factor: float) -> pa.Table:
    """Return the rows with each part as many times as long as replay has it, adding up."""
    parts = parts_by_rank(recorded, before), parts_by_rank(recorded, after, step_factor=factor)
    rows = []
    for row in table.to_pylist():
        was, now = (each.get(row["rank"]) for each in parts)
        if was is None or now is None or not was.step_ns or row["step"] not in recorded.steps:
            rows.append(row)
            continue
        whole = round(row["duration_ns"] * now.step_ns / was.step_ns)
        compute = min(whole, _times(row["compute_ns"], was.compute_ns, now.compute_ns))
        comm = _times(row["exposed_comm_ns"], was.exposed_comm_ns, now.exposed_comm_ns)
        comm = min(comm, whole - compute)
        copy = _times(row["exposed_copy_ns"], was.exposed_copy_ns, now.exposed_copy_ns)
        copy = min(copy, whole - compute - comm)
        rest = whole - compute - comm - copy
        unattributed = min(rest, row["unattributed_ns"])
        row |= {
            "duration_ns": whole,
            "compute_ns": compute,
            "exposed_comm_ns": comm,
            "exposed_copy_ns": copy,
            "idle_ns": rest - unattributed,
            "unattributed_ns": unattributed,
            "capture_ns": min(row["capture_ns"], unattributed),
        }
        for name in _UNKNOWN:
            row[name] = None
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=table.schema)


def _times(part_ns: int, was_ns: int, now_ns: int) -> int:
    return round(part_ns * now_ns / was_ns) if was_ns else 0
