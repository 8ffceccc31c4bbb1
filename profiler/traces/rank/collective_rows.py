"""The table of collectives of one rank, made by columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from shardtoll.ledger.records.columns import column
from shardtoll.ledger.records.volume import wire_bytes
from shardtoll.ledger.tables.tables import SCHEMAS
from shardtoll.profiler.traces.collectives.comms import UNKNOWN, dtype_in, message_bytes, peer_of
from shardtoll.profiler.traces.collectives.group_of import Placed
from shardtoll.profiler.traces.file.trace_columns import CommArgs
from shardtoll.profiler.traces.rank.causes import Cause
from shardtoll.profiler.traces.rank.facts import Facts

_ROOTED: Final = ("reduce", "gather", "scatter")
"""Ops whose root sends other bytes than the rest."""


def step_number(facts: Facts, place: int) -> int | None:
    """Return the step of that place; None for what lies outside every step."""
    return None if place == facts.steps.none else facts.steps.numbers[place]


def moved(
    op: str, args: CommArgs, place: Placed, rank: int, *, shared: bool, label: str | None
) -> tuple[int | None, int | None, int | None]:
    """Return message bytes, wire bytes and the root or peer of a collective; None for what is unknown.

    `shared`: other kernels carried the same collective. `label`: its annotation, as `nccl:send 0->1`.
    """
    size = None if shared and op != "barrier" else message_bytes(op, args, place.size)
    peer = peer_of(op, args, rank, label, place.ranks)
    if place.size is None or (peer is None and op in _ROOTED):
        return size, None, peer
    return size, wire_bytes(op, size, place.size, is_root=peer == rank), peer


def collectives(
    facts: Facts, rank: int, epoch_ns: int, placed: Sequence[Placed], causes: Sequence[Cause]
) -> pa.Table:
    """Return the table of collectives, one row for each of `facts.rows`."""
    exposed = facts.split.exposed_ns.tolist()
    rows: list[tuple[Any, ...]] = []
    for row, place, cause, exposed_ns in zip(facts.rows, placed, causes, exposed, strict=True):
        op = row.op or UNKNOWN
        size, wire, peer = moved(op, row.args, place, rank, shared=row.shared, label=row.label)
        rows.append(
            (
                step_number(facts, row.owner),
                rank,
                place.name,
                place.size or 1,
                place.mesh_dim,
                row.args.seq,
                op,
                dtype_in(row.args)[0],
                size,
                wire,
                None if row.issue_ns is None else row.issue_ns - epoch_ns,
                row.start_ns - epoch_ns if row.timed else None,
                row.end_ns - row.start_ns if row.timed else None,
                exposed_ns if row.timed else None,
                cause.phase,
                cause.op,
                cause.module,
                cause.source,
                peer,
                row.stream,
                facts.trace.names[row.kernel],
            )
        )
    columns = dict(zip(_FILLED, zip(*rows, strict=True), strict=True)) if rows else {}
    schema = SCHEMAS["collectives"]
    arrays = [
        column(list(columns[item.name]), item.type)
        if item.name in columns
        else pa.nulls(len(rows), item.type)
        for item in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


_FILLED: Final = (
    *("step", "rank", "group", "group_size", "mesh_dim", "seq", "op", "dtype", "message_bytes", "wire_bytes"),
    *("issue_ns", "start_ns", "duration_ns", "exposed_ns", "phase", "caused_by_op", "module", "source"),
    *("root", "stream", "kernel"),
)
