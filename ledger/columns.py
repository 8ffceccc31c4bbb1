"""Arrow columns from Python values, without `pa.array`.

`pa.array` imports pandas to see whether it was handed a Series: a fifth of a second in the middle of a
training job that never asked for pandas. The four types of the ledger are laid out here by hand, after
the Arrow columnar format (a validity bitmap, then values; strings as offsets and bytes; bits little end
first).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

_INT64: Final = pa.int64()
_STRING: Final = pa.string()
_BOOL: Final = pa.bool_()


def _bitmap(bits: Sequence[bool]) -> pa.Buffer:
    packed = bytearray(-(-len(bits) // 8))
    for place, bit in enumerate(bits):
        if bit:
            packed[place >> 3] |= 1 << (place & 7)
    return pa.py_buffer(bytes(packed))


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
        known = [0 if value is None else value for value in values] if nulls else values
        buffers = [validity, pa.py_buffer(array("q" if kind == _INT64 else "d", known))]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)
