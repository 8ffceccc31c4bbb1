"""Tables that come from outside are looked at in full before anything reads a value of theirs.

Arrow trusts the offsets and lengths that a file states. Converting an array with wrong offsets reads foreign
memory and ends the interpreter.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

from shardtoll.ledger.tables.tables import check, check_values

_Data = TypeVar("_Data", pa.RecordBatch, pa.Table)


def sound(data: _Data) -> _Data:
    """Return the data; pa.ArrowInvalid, a ValueError, where offsets, lengths or UTF-8 in it are wrong."""
    data.validate(full=True)
    return data


def validated(table: str, data: pa.Table) -> pa.Table:
    """Return the data if it is a sound table of that name; ValueError where no writer of ours made it."""
    sound(data)
    check(table, data)
    check_values(table, data)
    return data
