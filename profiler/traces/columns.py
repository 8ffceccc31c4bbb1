"""Columns that grow chunk by chunk and become one array each at the end."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger.errors import TraceError

ROW_LIMIT: Final = 30_000_000
"""Rows kept of one file; at about 60 bytes each this bounds the reader's memory."""


class Table:
    """Columns of equal length under construction.

    Each is one block of memory that grows: many small arrays between the decoded events would keep their
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

    def _column(self, name: str) -> npt.NDArray[Any]:
        return np.frombuffer(self._data[name], dtype=self._types[name])


def check_rows(rows: int, where: str, limit: int = ROW_LIMIT) -> None:
    """Raise TraceError where more rows would be kept than memory is meant for."""
    if rows > limit:
        raise TraceError(
            f"{where} holds more than {limit} events of interest",
            "record fewer steps, or record without Python stacks",
        )
