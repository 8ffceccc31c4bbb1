"""Records as plain JSON values and back, by msgspec: a file's values are checked against the annotations.

The types that a record's annotations name must be importable when it is read, not only for type checkers.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from shardtoll.ledger.records.record import HASH_RANGE

_T = TypeVar("_T")


def to_plain(record: object) -> Any:
    """Return a record, or a tuple or mapping of them, as JSON values; unknown is None."""
    # A mesh may be any mapping: msgspec itself knows dict only.
    return msgspec.to_builtins(record, enc_hook=dict)


def from_plain(kind: type[_T], data: object) -> _T:
    """Return the record, or tuple of records, that JSON values hold.

    Raises ValueError, with the place as `$.findings[0].ranks`. It is raised if a value does not fit its
    annotation or a field is missing or unknown. Numbers must be finite and fit 64 signed bits.
    """
    record = msgspec.convert(data, kind)
    _check(data, record, "$")
    return record


def _check(data: object, record: object, path: str) -> None:
    """Raise ValueError for what msgspec lets pass: unknown fields, too large numbers, NaN."""
    if isinstance(data, dict):
        fields = getattr(record, "__dataclass_fields__", None)
        for name, value in data.items():
            if fields is not None and name not in fields:
                raise ValueError(f"Object has the unknown field `{str(name)[:40]}` - at `{path}`")
            held = getattr(record, name) if fields is not None else None
            _check(value, held, f"{path}.{name}")
    elif isinstance(data, (list, tuple)):
        # The ranks of a group come by the thousand, in the file of every rank.
        if set(map(type, data)) == {int}:
            _check(min(data), None, path)
            _check(max(data), None, path)
            return
        for index, value in enumerate(data):
            held = record[index] if isinstance(record, tuple) else None
            _check(value, held, f"{path}[{index}]")
    elif isinstance(data, float) and not math.isfinite(data):
        raise ValueError(f"{data} is no number: unknown is null - at `{path}`")
    elif isinstance(data, int) and data not in HASH_RANGE:
        raise ValueError(f"Number does not fit 64 signed bits - at `{path}`")
