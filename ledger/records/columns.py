"""Arrow columns from Python values and numpy arrays from Arrow columns, without `pa.array` and `to_numpy`.

Those import pandas to see whether they were handed a Series, as does a Python value among a kernel's
arguments. Importing pandas takes a fifth of a second, in a training job or for a short report that never
asked for it. The four types of the ledger are laid out here by hand, after the Arrow columnar format. An
array is a validity bitmap, then values; strings are offsets and bytes; bits are little end first.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_INT64: Final = pa.int64()
_STRING: Final = pa.string()
_BOOL: Final = pa.bool_()


def _bitmap(bits: Sequence[bool] | Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.asarray(bits, dtype=np.bool_), bitorder="little").tobytes())


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values as an Arrow array of int64, float64, bool or string; None becomes null.

    Raises TypeError or OverflowError for a value that is not of that type.
    """
    nulls = values.count(None)
    rows = len(values)
    if rows and nulls == rows:
        return pa.nulls(rows, kind)
    validity = _bitmap([value is not None for value in values]) if nulls else None
    buffers: list[pa.Buffer | None]
    if kind == _STRING:
        # Names come from users' programs: a lone surrogate must not end the capture.
        encoded = [
            b"" if value is None else str.encode(value, "utf-8", "backslashreplace") for value in values
        ]
        offsets = array("i", accumulate(map(len, encoded), initial=0))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    elif kind == _BOOL:
        buffers = [validity, _bitmap([bool(value) for value in values])]
    else:
        numbers = [0 if value is None else value for value in values] if nulls else values
        buffers = [validity, pa.py_buffer(array("q" if kind == _INT64 else "d", numbers))]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def int_column(values: Ints, known: Bools | None = None) -> pa.Array:
    """Return whole numbers as an Arrow array, null if they are not known; None: all are known."""
    unknown = 0 if known is None else len(values) - int(np.count_nonzero(known))
    validity = _bitmap(known) if known is not None and unknown else None
    data = pa.py_buffer(np.ascontiguousarray(values, dtype=np.int64))
    return pa.Array.from_buffers(_INT64, len(values), [validity, data], null_count=unknown)


def word_column(places: Ints, words: Sequence[str]) -> pa.Array:
    """Return for each place the word that stands there, as an Arrow array of strings; null for -1."""
    return column(words, _STRING).take(int_column(places, places >= 0))


def literal(value: int | str) -> pa.Scalar:
    """Return the value as an argument of Arrow's kernels."""
    return column([value], _STRING if isinstance(value, str) else _INT64)[0]


def ints(values: pa.ChunkedArray, unknown: int = 0) -> Ints:
    """Return whole numbers (int64) with `unknown` if there is none."""
    chunks = (pc.fill_null(chunk, literal(unknown)) for chunk in values.chunks if len(chunk))
    parts = [np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), chunk.offset * 8) for chunk in chunks]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])
