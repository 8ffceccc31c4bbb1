"""How many ranks a job has if its traces do not say, and what a ledger says for another number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from shardtoll.ledger.records.columns import column
from shardtoll.ledger.records.record import MOST_RANKS, Notice
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.tables import to_table
from shardtoll.profiler.traces.collectives.comms import UNKNOWN, ranks_in
from shardtoll.profiler.traces.collectives.group_of import ASSUMED, DEFAULT, Groups, Placed
from shardtoll.profiler.traces.collectives.link import Linked
from shardtoll.profiler.traces.file.trace_columns import CommArgs, GroupInfo, Meta, Trace
from shardtoll.profiler.traces.rank.collective_rows import moved

_PLACING: Final = ("groups-unknown", "sizes-unknown")
"""Kinds of the notices that depend on the number of ranks."""


class Unsized(Struct, frozen=True):
    """Base of the groups and sizes of a rank's collectives, once the number of ranks is known."""

    groups: tuple[GroupInfo, ...]
    """Those that the trace lists."""
    backend: str | None
    named: bool
    """Whether any of its collectives names its group."""
    args: tuple[CommArgs, ...]
    """The collectives' own facts, equal ones once."""
    rows: tuple[tuple[int, bool, str | None], ...]
    """For each collective its number in `args`, whether kernels share it, and its annotation."""


def unsized(meta: Meta, named: bool, rows: Sequence[Linked]) -> Unsized:
    """Return what `sized` needs of a trace."""
    numbers: dict[CommArgs, int] = {}
    listed = tuple((numbers.setdefault(row.args, len(numbers)), row.shared, row.label) for row in rows)
    return Unsized(meta.groups, meta.backend, named, tuple(numbers), listed)


def sized(ledger: Ledger, unsized: Unsized, world_size: int, members: Sequence[GroupInfo] = ()) -> Ledger:
    """Return a rank's ledger for a job of that many ranks, if more: groups, sizes and their notices anew.

    `members`: groups whose ranks follow from all traces. Lead-ups stay those of the least number of ranks.
    """
    (rank,) = ledger.run.ranks_seen
    used = {args.group for args in unsized.args}
    completed = [group for group in members if group.name in used]
    if world_size <= ledger.run.world_size and not completed:
        return ledger
    world_size = max(world_size, ledger.run.world_size)
    names = {group.name for group in completed}
    listed = [*(group for group in unsized.groups if group.name not in names), *completed]
    groups = Groups(listed, unsized.backend, world_size, named=unsized.named)
    placed = [groups.place(unsized.args[number]) for number, _, _ in unsized.rows]
    rows = ledger.tables["collectives"]
    facts = [
        moved(op, unsized.args[number], place, rank, shared=shared, label=label)
        for op, place, (number, shared, label) in zip(
            rows.column("op").to_pylist(), placed, unsized.rows, strict=True
        )
    ]
    columns: dict[str, list[Any]] = {
        "group": [place.name for place in placed],
        "group_size": [place.size or 1 for place in placed],
        "mesh_dim": [place.mesh_dim for place in placed],
        "message_bytes": [size for size, _, _ in facts],
        "wire_bytes": [wire for _, wire, _ in facts],
        "root": [peer for _, _, peer in facts],
    }
    for name, values in columns.items():
        number = rows.schema.get_field_index(name)
        item = rows.schema.field(name)
        rows = rows.set_column(number, item, column(values, item.type))
    notices = ledger.tables["notices"].to_pylist()
    others = [(row["kind"], row["text"]) for row in notices if row["kind"] not in _PLACING]
    before = sum(kind != "launches-unseen" for kind, _ in others)
    others[before:before] = placing_notices(placed, rows.column("message_bytes").null_count)
    tables = {
        **ledger.tables,
        "collectives": rows,
        "notices": to_table("notices", [Notice(rank, kind, text) for kind, text in others]),
    }
    mesh = {place.mesh_dim: place.size for place in placed if place.mesh_dim and place.size}
    run = replace(ledger.run, world_size=world_size, mesh=mesh)
    return replace(ledger, run=run, groups=groups.records(), tables=tables)


def placing_notices(placed: Sequence[Placed], unknown_sizes: int) -> list[tuple[str, str]]:
    """Return (kind, text) of what is unknown of the groups and sizes of collectives."""
    texts = []
    assumed = sum(place.assumed for place in placed)
    if assumed:
        text = f"{assumed} of {len(placed)} collectives name no group: {ASSUMED}"
        texts.append(("groups-unknown", text))
    unknown = sum(place.name == UNKNOWN for place in placed)
    if unknown:
        text = f"the group of {unknown} of {len(placed)} collectives is unknown"
        texts.append(("groups-unknown", text))
    if unknown_sizes:
        texts.append(
            ("sizes-unknown", f"the size of {unknown_sizes} of {len(placed)} collectives is unknown")
        )
    return texts


def least_world(trace: Trace, rank: int, rows: Sequence[Linked]) -> int:
    """Return the least number of ranks that a job with this trace's groups and collectives can have.

    A device communicates with another: a collective whose group is unknown has two ranks at least.
    """
    meta = trace.meta
    alone = all(row.args.group_size is not None for row in rows)
    most = max(rank + 1, 1 if alone else 2)
    for group in meta.groups:
        most = max(most, group.size or 0, *(each + 1 for each in group.ranks))
    for args in trace.comm_args:
        most = max(most, args.group_size or 0, *(each + 1 for each in ranks_in(args)))
    return min(most, max(MOST_RANKS, rank + 1))


def without_assumed(ledger: Ledger) -> Ledger:
    """Return the ledger with its assumed groups unknown: who is in them is not known without the job's size.

    Facts that depend on a group's members become unknown too: the bytes on the wire. The size stays that of
    one rank.
    """
    notices = ledger.tables["notices"]
    assumed = pc.ends_with(notices.column("text"), ASSUMED)
    if not pc.any(assumed).as_py():
        return ledger
    rows = ledger.tables["collectives"]
    here = pc.equal(rows.column("group"), DEFAULT)
    count = pc.sum(here).as_py() or 0
    columns = {
        "group": pa.scalar(UNKNOWN, rows.schema.field("group").type),
        "group_size": pa.scalar(1, rows.schema.field("group_size").type),
        "wire_bytes": pa.scalar(None, rows.schema.field("wire_bytes").type),
    }
    for name, value in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pc.if_else(here, value, rows.column(name)))
    text = f"the group of {count} of {rows.num_rows} collectives is unknown, as is the job's size"
    first = ledger.run.ranks_seen[0]
    notice = to_table("notices", [Notice(first, "groups-unknown", text)])
    tables = {
        **ledger.tables,
        "collectives": rows,
        "notices": pa.concat_tables([notices.filter(pc.invert(assumed)), notice]),
    }
    groups = tuple(group for group in ledger.groups if group.name != DEFAULT)
    return replace(ledger, groups=groups, tables=tables)
