"""Numbers for the rows of a table that are equal in some columns: what millions of rows are grouped by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]

_ROOM: Final = 2**62
"""Codes of several columns are one number as long as it stays below this."""


def row_codes(table: pa.Table, columns: Iterable[str]) -> tuple[Ints, Ints]:
    """Return a number for each row, equal where all these columns are, and the first row of each number.

    Numbers count up by first appearance; unknown values are equal to each other.
    """
    codes: Ints = np.zeros(table.num_rows, dtype=np.int64)
    most = 1
    for name in columns:
        column = table.column(name)
        if pa.types.is_null(column.type) or not len(column):
            continue
        encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = pa.concat_arrays(encoded.chunks)
        values = len(encoded.dictionary)
        own: Ints = pc.fill_null(encoded.indices, values).to_numpy(zero_copy_only=False).astype(np.int64)
        if most * (values + 1) >= _ROOM:
            codes, most = _dense(codes)
        codes = codes * (values + 1) + own
        most *= values + 1
    codes, _ = _dense(codes)
    return codes, _first(codes)


def _dense(codes: Ints) -> tuple[Ints, int]:
    import pandas as pd

    dense, different = pd.factorize(codes)
    return dense.astype(np.int64, copy=False), max(1, len(different))


def _first(codes: Ints) -> Ints:
    """Return where each number stands first; they count up by first appearance."""
    if not len(codes):
        return codes
    highest = np.maximum.accumulate(codes)
    found: Ints = np.flatnonzero(np.diff(highest, prepend=-1) > 0).astype(np.int64)
    return found
