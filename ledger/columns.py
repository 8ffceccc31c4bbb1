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
from typing import Any

import pyarrow as pa


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
    known = [value is not None for value in values]
    nulls = known.count(False)
    validity = _bitmap(known) if nulls else None
    buffers: list[pa.Buffer | None]
    if pa.types.is_string(kind):
        # Names come from users' programs: a lone surrogate must not end the capture.
        encoded = [
            b"" if value is None else str.encode(value, "utf-8", "backslashreplace") for value in values
        ]
        offsets = array("i", accumulate(map(len, encoded), initial=0))
        buffers = [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(encoded))]
    elif pa.types.is_boolean(kind):
        buffers = [validity, _bitmap([bool(value) for value in values])]
    else:
        code = "q" if pa.types.is_int64(kind) else "d"
        cells = array(code, [0 if value is None else value for value in values])
        buffers = [validity, pa.py_buffer(cells.tobytes())]
    return pa.Array.from_buffers(kind, len(values), buffers, null_count=nulls)
