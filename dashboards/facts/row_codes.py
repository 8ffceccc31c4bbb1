"""Numbers for the rows of a table that are equal in some columns: what millions of rows are grouped by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import Ints as Ints
from shardtoll.ledger.records.columns import ints as ints

Bools: TypeAlias = npt.NDArray[np.bool_]

NONE: Final = -1
"""Stands for an unknown value among numbers that are 0 or more."""
_ROOM: Final = 2**62
"""Codes of several columns are one number as long as it stays below this."""


def codes(column: pa.ChunkedArray) -> tuple[Ints, list[Any]]:
    """Return a code for each value, `NONE` if it is unknown, and the values in order of their codes."""
    if pa.types.is_null(column.type) or not len(column):
        return np.full(len(column), NONE, dtype=np.int64), []
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    values: Ints = pc.fill_null(encoded.indices, NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return values, encoded.dictionary.to_pylist()


def row_codes(table: pa.Table, columns: Iterable[str]) -> tuple[Ints, Ints]:
    """Return a number for each row, equal if all these columns are, and the first row of each number.

    Numbers count up by first appearance; unknown values are equal to each other.
    """
    coded = (codes(table.column(name)) for name in columns)
    numbers, _ = _dense(
        _joined(table.num_rows, ((column_codes + 1, len(values) + 1) for column_codes, values in coded))[0]
    )
    return numbers, _first(numbers)


def _joined(rows: int, columns: Iterable[tuple[Ints, int]]) -> tuple[Ints, int]:
    """Return one code for those of several columns, and a number that all are below; as each of them has."""
    joined: Ints = np.zeros(rows, dtype=np.int64)
    most = 1
    for column_codes, values in columns:
        if values == 1:
            continue
        if most * values >= _ROOM:
            joined, most = _dense(joined)
        joined = joined * values + column_codes
        most *= values
    return joined, most


def _dense(numbers: Ints) -> tuple[Ints, int]:
    import pandas as pd

    dense, different = pd.factorize(numbers)
    return dense.astype(np.int64, copy=False), max(1, len(different))


def _first(numbers: Ints) -> Ints:
    """Return where each number stands first; they count up by first appearance."""
    if not len(numbers):
        return numbers
    highest = np.maximum.accumulate(numbers)
    first: Ints = np.flatnonzero(np.diff(highest, prepend=-1) > 0).astype(np.int64)
    return first
