"""Tables that come from outside are looked at in full before anything reads a value of theirs.

Arrow trusts the offsets and lengths that a file states. Converting an array with wrong offsets reads foreign
memory and ends the interpreter.
"""

from __future__ import annotations

from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.tables.tables import check, check_values

_MOST_TEXT_BYTES: Final = 1_000_000
"""All names, lines and places in a table are shorter; a packed file of some kB holds GBs of one letter."""
_Data = TypeVar("_Data", pa.RecordBatch, pa.Table)


def sound(data: _Data) -> _Data:
    """Return the data; pa.ArrowInvalid, a ValueError, if offsets, lengths or UTF-8 in it are wrong."""
    data.validate(full=True)
    return data


def validated(table: str, data: pa.Table) -> pa.Table:
    """Return the data if it is a sound table of that name; ValueError if no writer of ours made it."""
    sound(data)
    check(table, data)
    _check_texts(data)
    check_values(table, data)
    return data


def _check_texts(data: pa.Table) -> None:
    """Raise ValueError if a text is so long that each use of it would take seconds."""
    for name, column in zip(data.schema.names, data.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            longest = pc.max(pc.binary_length(column)).as_py()
            if longest is not None and longest > _MOST_TEXT_BYTES:
                raise ValueError(f"{name} holds a text of {longest:,} bytes")
