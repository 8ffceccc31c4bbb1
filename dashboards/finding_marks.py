"""Which rows of a table each finding speaks of, asked once a place of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from shardtoll.dashboards.match_ids import codes
from shardtoll.ledger import Finding
from shardtoll.ledger.subject import NAMED, subject
from shardtoll.ledger.tables import to_frame

Ints = npt.NDArray[np.int64]

OF_COMPUTES: Final = ("duplicated-compute", "recompute")
"""Kinds that speak of operators."""
OF_NEITHER: Final = (
    "data-stall",
    "host-sync",
    "transfer-stall",
    "checkpoint-stall",
    "duplicated-data",
    "unattributed-time",
    "incomplete-input",
    "clock-skew",
)
"""Kinds that speak of time or of the report itself: a collective at the same place is not meant."""


@dataclass(frozen=True, slots=True)
class Marks:
    """`sites`: a number for each row, equal where all that a finding can name is equal."""

    sites: Ints
    speaks: dict[int, npt.NDArray[np.bool_]]
    """Number of the finding on the bill -> for each site whether it speaks of it, on the finding's ranks."""


def marks(numbered: Sequence[tuple[int, Finding]], table: pa.Table, *, computes: bool = False) -> Marks:
    """Return which rows of `collectives` or, with `computes`, of that table the findings speak of."""
    columns = [name for name in (*NAMED, "op", "caused_by_op") if name in table.schema.names]
    keys = pd.DataFrame({name: codes(table.column(name))[0] for name in columns})
    sites: Ints = keys.groupby(columns, sort=False).ngroup().to_numpy(dtype=np.int64)
    _, first = np.unique(sites, return_index=True)
    places = to_frame(table.select(columns).take(pa.array(first)))
    speaks: dict[int, npt.NDArray[np.bool_]] = {}
    for number, finding in numbered:
        if finding.kind in OF_NEITHER or (finding.kind in OF_COMPUTES) is not computes or not len(places):
            continue
        # Ranks are told apart later: here each place stands for all of them.
        anywhere = subject(replace(finding, ranks=(0,)), places.assign(rank=0))
        if anywhere.any():
            speaks[number] = anywhere.to_numpy(dtype=bool)
    return Marks(sites, speaks)
