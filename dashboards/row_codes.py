"""Numbers for the rows of a table that are equal in some columns: what millions of rows are grouped by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NONE: Final = -1
"""Stands for an unknown value among numbers that are 0 or more."""
_WIDE: Final = 2
"""Numbers spread over more than so many times their count are looked up by hashing."""
_ROOM: Final = 2**62
"""Codes of several columns are one number as long as it stays below this."""


def ints(column: pa.ChunkedArray, unknown: int = 0) -> Ints:
    """Return whole numbers with `unknown` where there is none."""
    values: Ints = pc.fill_null(column, unknown).to_numpy()
    return values


def codes(column: pa.ChunkedArray) -> tuple[Ints, list[Any]]:
    """Return a code for each value, `NONE` where it is unknown, and the values in order of their codes."""
    if pa.types.is_null(column.type) or not len(column):
        return np.full(len(column), NONE, dtype=np.int64), []
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    values: Ints = pc.fill_null(encoded.indices, NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return values, encoded.dictionary.to_pylist()


def row_codes(table: pa.Table, columns: Iterable[str]) -> tuple[Ints, Ints]:
    """Return a number for each row, equal where all these columns are, and the first row of each number.

    Numbers count up by first appearance; unknown values are equal to each other.
    """
    coded = (codes(table.column(name)) for name in columns)
    found, _ = _dense(_joined(table.num_rows, ((own + 1, len(values) + 1) for own, values in coded))[0])
    return found, _first(found)


def equal_rows(*columns: Ints) -> Ints:
    """Return a number for each row, equal where all these whole numbers are; from 0 on, in any order."""
    found, most = _joined(len(columns[0]), map(_from_zero, columns))
    if most > _WIDE * len(found):
        return _dense(found)[0]
    # A table of all that may be is faster than one of all that are.
    seen = np.zeros(most, dtype=bool)
    seen[found] = True
    numbers: Ints = (np.cumsum(seen) - 1)[found]
    return numbers


def all_differ(*columns: Ints) -> bool:
    """Return whether no two rows are equal in all these whole numbers."""
    rows = len(columns[0])
    found, most = _joined(rows, map(_from_zero, columns))
    if most > 16 * rows:
        return len(_different(found)) == rows
    seen = np.zeros(most, dtype=bool)
    seen[found] = True
    return int(np.count_nonzero(seen)) == rows


def _from_zero(column: Ints) -> tuple[Ints, int]:
    """Return codes of a column's values, and a number that all are below."""
    if not len(column):
        return column, 1
    least, most = int(column.min()), int(column.max())
    if most - least >= _WIDE * len(column):
        return _dense(column)
    return column - least, most - least + 1


def _joined(rows: int, columns: Iterable[tuple[Ints, int]]) -> tuple[Ints, int]:
    """Return one code for those of several columns, and a number that all are below; as each of them has."""
    found: Ints = np.zeros(rows, dtype=np.int64)
    most = 1
    for own, values in columns:
        if values == 1:
            continue
        if most * values >= _ROOM:
            found, most = _dense(found)
        found = found * values + own
        most *= values
    return found, most


def _different(numbers: Ints) -> Ints:
    import pandas as pd

    found: Ints = pd.unique(numbers)
    return found


def _dense(numbers: Ints) -> tuple[Ints, int]:
    import pandas as pd

    dense, different = pd.factorize(numbers)
    return dense.astype(np.int64, copy=False), max(1, len(different))


def _first(found: Ints) -> Ints:
    """Return where each number stands first; they count up by first appearance."""
    if not len(found):
        return found
    highest = np.maximum.accumulate(found)
    first: Ints = np.flatnonzero(np.diff(highest, prepend=-1) > 0).astype(np.int64)
    return first
