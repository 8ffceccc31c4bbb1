"""From a dry run's notes to a ledger: the audit's records without the host's times, and the dry tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardtoll.ledger import Ledger
from shardtoll.ledger.records.dry import DryStorage
from shardtoll.ledger.records.record import Collective, Notice
from shardtoll.ledger.tables.tables import to_records, to_table
from shardtoll.profiler.dryrun.device.storages import Held, category_of

if TYPE_CHECKING:
    from shardtoll.profiler.dryrun.dry_options import DryOptions

_KEPT_NOTICES = ("capture-stopped",)


def ledger_of(
    audited: Ledger,
    options: DryOptions,
    steps: Sequence[Any],
    storages: Sequence[Held],
    notices: Sequence[Notice],
    allocator_settings: str | None = None,
) -> Ledger:
    """Return the ledger of a dry run: no time of the host is in it.

    `steps` holds operators, waits, issued collectives and the end of each step. The `steps` table is empty:
    a forecast fills it.
    """
    rank = options.world.rank
    tables = dict(audited.tables)
    collectives: list[Collective] = to_records("collectives", tables["collectives"])
    rows: list[Collective] = []
    for number, (_, _, issued, _) in enumerate(steps):
        mine = [row for row in collectives if row.step == number]
        if len(mine) != len(issued):
            raise AssertionError(f"step {number}: {len(mine)} collectives on record, {len(issued)} issued")
        rows += [
            replace(row, order=order, stream_name=stream, **_NO_TIMES)
            for row, (order, stream) in zip(mine, issued, strict=True)
        ]
    tables["collectives"] = to_table("collectives", rows)
    tables["computes"] = tables["computes"].slice(0, 0)
    tables["steps"] = tables["steps"].slice(0, 0)
    tables["stalls"] = tables["stalls"].slice(0, 0)
    tables["leadups"] = tables["leadups"].slice(0, 0)
    tables["dry_ops"] = to_table("dry_ops", [op for step in steps for op in step[0]])
    tables["dry_waits"] = to_table("dry_waits", [wait for step in steps for wait in step[1]])
    in_order = sorted(storages, key=_end)
    tables["dry_storages"] = to_table("dry_storages", [_storage(held, rank) for held in in_order])
    tables["notices"] = pa.concat_tables([_kept(tables["notices"]), to_table("notices", notices)])
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
        fabric=options.machine.fabric,
        gpu_toml=options.machine.gpu_toml,
        fabric_toml=options.machine.fabric_toml,
        allocator_settings=allocator_settings,
    )
    return Ledger(run, audited.groups, tables, audited.findings)


_NO_TIMES: dict[str, Any] = {"issue_ns": None, "start_ns": None, "duration_ns": None, "exposed_ns": None}


def _kept(notices: pa.Table) -> pa.Table:
    kept = [notice for notice in to_records("notices", notices) if notice.kind in _KEPT_NOTICES]
    return to_table("notices", kept)


def _end(held: Held) -> tuple[float, float, int]:
    """Return when a storage was freed, those that live last; of several freed in one place, the oldest first.

    torch frees what it holds in sets in an order that differs from run to run.
    """
    if held.freed is None or held.freed_step is None:
        return math.inf, math.inf, held.born
    return held.freed_step, held.freed, held.born


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
        module=held.module if held.parameter else None if place is None else place.module,
        parameter=held.parameter or (None if place is None else place.parameter),
        source=None if place is None else place.source,
        used_on=",".join(sorted(held.used_on)) if held.used_on else None,
    )
