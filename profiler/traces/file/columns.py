"""Columns that grow chunk by chunk, and a chunk's ids and times as arrays: microseconds as nanoseconds."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.event import Args, whole
from shardtoll.profiler.traces.file.trace_columns import I64

ROW_LIMIT: Final = 30_000_000
"""Rows kept of one file; at about 60 bytes each this bounds the reader's memory."""

EXACT_BELOW_US: Final = float(2**43)
"""Below this a float64 keeps nanoseconds: its steps are at most 1/1024 microsecond."""

START_LIMIT_US: Final = 4 * 10**15
DURATION_LIMIT_US: Final = 10**15
"""Times as far from zero as the year 2096, or lasting 30 years, are damage. Start, duration and
`BASE_LIMIT_NS` together stay within 64 bits."""

BASE_LIMIT_NS: Final = 4 * 10**18


_PLAIN: Final = {int, type(None)}


class Table:
    """Columns of equal length under construction.

    Each is one block of memory that grows. Many small arrays between the decoded events would keep their
    memory from being given back.
    """

    def __init__(self, **types: Any) -> None:
        self._types = types
        self._data: dict[str, bytearray] = {name: bytearray() for name in types}
        self.rows = 0

    def add(self, **columns: Any) -> None:
        """Add rows: one list or array for each column, all of one length."""
        sizes = {len(column) for column in columns.values()}
        assert len(sizes) == 1
        assert columns.keys() == self._types.keys()
        for name, column in columns.items():
            self._data[name] += np.ascontiguousarray(column, dtype=self._types[name]).data.cast("B")
        self.rows += sizes.pop()

    def keep(self, column: str, wanted: npt.NDArray[np.bool_]) -> None:
        """Drop the rows whose number in `column` is not wanted."""
        mask = wanted[self._column(column)]
        for name in self._data:
            self._data[name] = bytearray(self._column(name)[mask].data.cast("B"))
        self.rows = int(mask.sum())

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in order."""
        return tuple(self._types)

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self._data

    def take(self, name: str) -> npt.NDArray[Any]:
        """Return a column as one array and forget it here."""
        column = self._column(name)
        del self._data[name]
        return column

    def view(self, name: str) -> npt.NDArray[Any]:
        """Return a column as it is now, for as long as no row is added."""
        return self._column(name)

    def _column(self, name: str) -> npt.NDArray[Any]:
        return np.frombuffer(self._data[name], dtype=self._types[name])


def check_rows(rows: int, where: str, limit: int = ROW_LIMIT) -> None:
    """Raise TraceError if more rows would be kept than memory is meant for."""
    if rows > limit:
        raise TraceError(
            f"{where} holds more than {limit} events of interest",
            "record fewer steps, or record without Python stacks",
        )


def numbers(values: list[Any], limit: int = 2**62) -> I64:
    """Return ids as numbers, -1 if there is none or it does not fit."""
    array = _array(values)
    if array.dtype.kind == "O" and {*map(type, values)} <= _PLAIN:
        # Nothing is odd: some events have none.
        array = _array([-1 if value is None else value for value in values])
    if array.dtype.kind != "i" or (array.size and (array.max() >= limit or array.min() <= -limit)):
        ids = [whole(value) for value in values]
        array = np.array([number if -limit < number < limit else -1 for number in ids], np.int64)
    return array.astype(np.int64, copy=False)


def _array(values: list[Any]) -> npt.NDArray[Any]:
    try:
        return np.array(values)
    except (OverflowError, ValueError):
        return np.array(values, dtype=object)


def externals(args: list[Args]) -> I64:
    """Return the external ids of events, -1 if there is none."""
    ids = [arg.external for arg in args]
    if None in set(ids):
        ids = [arg.external if arg.external is not None else arg.old_external for arg in args]
    return numbers(ids)


def nanoseconds(values: list[Any], limit: int) -> tuple[I64, bool] | None:
    """Return microseconds as nanoseconds and whether they are exact; None if one is no usable number."""
    try:
        times = np.array(values)
    except (OverflowError, ValueError):
        return None
    if times.dtype.kind == "i":
        if times.size and max(int(times.max()), -int(times.min())) >= limit:
            return None
        return times.astype(np.int64) * 1000, True
    if times.dtype.kind != "f":
        return None
    if times.size == 0:
        return np.empty(0, np.int64), True
    low, high = float(times.min()), float(times.max())
    if not (math.isfinite(low) and math.isfinite(high) and -limit < low and high < limit):
        return None
    floor = np.floor(times)
    ns = floor.astype(np.int64) * 1000 + np.rint((times - floor) * 1000).astype(np.int64)
    return ns, max(high, -low) < EXACT_BELOW_US


def exact_nanoseconds(value: Any, limit: int) -> int | None:
    """Return microseconds as nanoseconds, rounded half to even; None if they are no usable number."""
    if isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() > 20 or abs(value) >= limit:
            return None
        return int((value * 1000).to_integral_value())
    if isinstance(value, int) and not isinstance(value, bool):
        return value * 1000 if abs(value) < limit else None
    if isinstance(value, float) and math.isfinite(value) and abs(value) < limit:
        return int(Decimal(value).scaleb(3).to_integral_value())
    return None
