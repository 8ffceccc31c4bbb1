"""From what a dry run noted to a ledger: the audit's records without the host's times, and the dry tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from shardtoll.ledger import Ledger
from shardtoll.ledger.records.dry import DryOp, DryStorage, DryWait
from shardtoll.ledger.records.record import Collective, Count, Notice
from shardtoll.ledger.tables.tables import to_records, to_table
from shardtoll.profiler.dryrun.blocks import Mark, Series
from shardtoll.profiler.dryrun.dry_options import DryOptions
from shardtoll.profiler.dryrun.repeat import StepRows, check_alike, filled, insertions
from shardtoll.profiler.dryrun.storages import Held, category_of

_KEPT_NOTICES = ("capture-stopped",)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was noted in one step."""

    ops: list[DryOp]
    waits: list[DryWait]
    issued: list[tuple[int, str]]
    """Order and stream of each collective, as issued."""
    marks: list[Mark]
    """Where layers begin that stand for others."""


def ledger_of(
    audited: Ledger,
    options: DryOptions,
    steps: Sequence[Recorded],
    storages: Sequence[Held],
    lines: Sequence[str],
    series: Sequence[Series] = (),
) -> Ledger:
    """Return the ledger of a dry run: no time of the host is in it.

    `series`: layers of which only a few ran, and that are filled in. The `steps` table is empty: a forecast
    fills it. Raises NotAlike if layers cannot be filled in.
    """
    rank = options.world.rank
    tables = dict(audited.tables)
    collectives: list[Collective] = to_records("collectives", tables["collectives"])
    held = [_storage(each, rank) for each in storages]
    filled_in: list[StepRows] = []
    for number, step in enumerate(steps):
        mine = [row for row in collectives if row.step == number]
        if len(mine) != len(step.issued):
            raise AssertionError(
                f"step {number}: {len(mine)} collectives on record, {len(step.issued)} issued"
            )
        rows = [
            replace(row, order=order, stream_name=stream, **_NO_TIMES)
            for row, (order, stream) in zip(mine, step.issued, strict=True)
        ]
        made = StepRows(step.ops, step.waits, rows)
        if series:
            spots = insertions(step.marks, series)
            check_alike(made, [row for row in held if row.step == number], spots)
            made, held = filled(made, held, spots, number)
        filled_in.append(made)
    tables["collectives"] = to_table("collectives", [row for step in filled_in for row in step.collectives])
    tables["counts"] = _counts(tables["counts"], collectives, filled_in)
    tables["computes"] = tables["computes"].slice(0, 0)
    tables["steps"] = tables["steps"].slice(0, 0)
    tables["stalls"] = tables["stalls"].slice(0, 0)
    tables["leadups"] = tables["leadups"].slice(0, 0)
    tables["dry_ops"] = to_table("dry_ops", [op for step in filled_in for op in step.ops])
    tables["dry_waits"] = to_table("dry_waits", [wait for step in filled_in for wait in step.waits])
    tables["dry_storages"] = to_table("dry_storages", held)
    tables["notices"] = pa.concat_tables(
        [_kept(tables["notices"]), to_table("notices", [Notice(rank, "dry-run", line) for line in lines])]
    )
    run = replace(
        audited.run,
        source="dry",
        world_size=options.world.size,
        device=options.machine.device,
        device_memory_bytes=options.machine.memory_bytes,
        device_sms=options.machine.multiprocessors or None,
        device_capability=".".join(map(str, options.machine.capability)),
        devices_per_host=options.world.local_size,
        ranks_per_host=options.world.local_size,
        hosts=(),
        rank_hosts=(),
        machine=None,
        cores=None,
        core_ids=(),
        epoch_ns=0,
        gpu=options.machine.gpu,
        fabric=options.fabric,
    )
    return Ledger(run, audited.groups, tables, audited.findings)


_NO_TIMES: dict[str, Any] = {"issue_ns": None, "start_ns": None, "duration_ns": None, "exposed_ns": None}


def _counts(counts: pa.Table, before: Sequence[Collective], steps: Sequence[StepRows]) -> pa.Table:
    """Return the counts with what was filled in, both as issued and as recorded."""
    rows: list[Count] = to_records("counts", counts)
    grown: Counter[tuple[int | None, str]] = Counter()
    for step in steps:
        grown.update((row.step, row.group) for row in step.collectives)
    grown.subtract((row.step, row.group) for row in before)
    return to_table(
        "counts",
        [
            replace(
                row,
                issued=None if row.issued is None else row.issued + grown[row.step, row.group],
                recorded=row.recorded + grown[row.step, row.group],
            )
            for row in rows
        ],
    )


def _kept(notices: pa.Table) -> pa.Table:
    kept = [notice for notice in to_records("notices", notices) if notice.kind in _KEPT_NOTICES]
    return to_table("notices", kept)


def _storage(held: Held, rank: int) -> DryStorage:
    place = held.place
    return DryStorage(
        step=held.step,
        rank=rank,
        born=held.born,
        freed=held.freed,
        freed_step=held.freed_step,
        bytes=held.bytes,
        category=category_of(held),
        stream=held.stream,
        phase="other" if place is None else place.phase,
        op=held.op,
        module=None if place is None else place.module,
        parameter=held.parameter or (None if place is None else place.parameter),
        source=None if place is None else place.source,
        used_on=",".join(sorted(held.used_on)) if held.used_on else None,
    )
