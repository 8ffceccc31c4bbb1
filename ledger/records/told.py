"""Which steps know their exposed communication: elsewhere a 0 there is none, and more is a lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import literal

_KEYS: Final = ("step", "rank")


def exposure_told(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of the steps' table whose `exposed_comm_ns` is known, in no order.

    Left out are rows of watched steps that say 0 although one of their collectives is unclear. Its exposed
    time is unknown, or its group counted it without a record. In such a step no record shows the waiting.
    """
    steps = tables["steps"]
    said = pc.and_(_watched(steps), pc.equal(steps.column("exposed_comm_ns"), literal(0)))
    if not pc.any(said).as_py():
        return steps
    sure = _joined(steps.filter(said), tables, "left anti")
    return pa.concat_tables([steps.filter(pc.invert(said)), sure])


def exposure_doubted(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of watched steps in which the exposed time of some collective is unknown, in no order.

    Their `exposed_comm_ns` is a lower bound; if it is 0 nothing is known, see `exposure_told`.
    """
    steps = tables["steps"]
    return _joined(steps.filter(_watched(steps)), tables, "left semi")


def _watched(steps: pa.Table) -> pa.ChunkedArray:
    return pc.equal(steps.column("level"), literal("watch"))


def _joined(steps: pa.Table, tables: Mapping[str, pa.Table], how: str) -> pa.Table:
    """Return those of the rows that have (`left semi`) or do not have (`left anti`) an untold collective."""
    collectives, counts = tables["collectives"], tables["counts"]
    untimed = collectives.filter(pc.is_null(collectives.column("exposed_ns")))
    unseen = counts.filter(pc.greater(counts.column("issued"), counts.column("recorded")))
    doubted = pa.concat_tables(
        [table.select(_KEYS) for table in (untimed, unseen)], promote_options="default"
    )
    if not doubted.num_rows:
        return steps if how == "left anti" else steps.slice(0, 0)
    doubted = doubted.group_by(list(_KEYS)).aggregate([])
    joined = steps.join(doubted, keys=list(_KEYS), join_type=how)
    return joined.select(steps.column_names).cast(steps.schema)
