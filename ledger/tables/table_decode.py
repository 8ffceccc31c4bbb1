"""A report's tables out of JSON text, without a dict for each row: a long run has millions of rows.

The slower reader (`Report.from_json`) looks again at rows that this cannot read: it alone says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from shardtoll.ledger.records.columns import column
from shardtoll.ledger.tables.tables import BEFORE, SCHEMAS

ROWS: Final = 1 << 16
"""Rows made into columns at a time."""
_PYTHON: Final[Mapping[pa.DataType, type]] = {
    pa.int64(): int,
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
}


def split(text: str) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object, not yet read; msgspec.MsgspecError if it is none."""
    return _MEMBERS.decode(text)


def table_of(name: str, rows: msgspec.Raw) -> pa.Table:
    """Return the table of that name from the JSON list of its rows; msgspec or Arrow errors if unfit.

    A fact that a row does not give is null, or as in rows of earlier versions (`BEFORE`). Nothing else is
    checked.
    """
    schema = SCHEMAS[name]
    records = _decoder(name).decode(rows)
    batches = []
    for first in range(0, len(records), ROWS):
        part = records[first : first + ROWS]
        arrays = [column(list(map(attrgetter(item.name), part)), item.type) for item in schema]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema=schema).combine_chunks()


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def _decoder(name: str) -> msgspec.json.Decoder[Any]:
    fields = [
        (item.name, _PYTHON[item.type], BEFORE[item.name])
        if item.name in BEFORE
        else (item.name, _PYTHON[item.type] | None, None)
        for item in SCHEMAS[name]
    ]
    # Rows hold no other objects: the collector need not look at them.
    row = msgspec.defstruct(f"Row_{name}", fields, gc=False)
    return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]
