"""The table of parameters without what other ranks repeat: a job of many ranks has many equal rows."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import column

OF_RANKS: Final = ("rank", "group")
"""Columns in which rows of replicas differ."""


def without_repeated(parameters: pa.Table) -> pa.Table:
    """Return the rows of checks, and of others the first of those that only rank and group tell apart.

    A row that a check looked at belongs to the values of its rank, and stays.
    """
    if not parameters.num_rows:
        return parameters  # grouping imports a sixth of pyarrow, and most reports have none
    rows = parameters.append_column("row", column(range(parameters.num_rows), pa.int64()))
    checked = rows.column("checked")
    of_checks = pc.or_kleene(checked, pc.is_null(checked))
    keys = [name for name in parameters.schema.names if name not in OF_RANKS]
    first = rows.filter(pc.invert(of_checks)).group_by(keys).aggregate([("row", "min")]).column("row_min")
    kept = pc.or_(of_checks, pc.is_in(rows.column("row"), first.combine_chunks()))
    return parameters.filter(kept)
