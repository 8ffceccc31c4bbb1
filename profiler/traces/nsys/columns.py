"""Rows of a database as columns of numbers: what is no usable number is marked, never guessed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.file.columns import numbers
from shardtoll.profiler.traces.file.trace_columns import I64

TIME_LIMIT_NS: Final = 2 * 10**18
"""Times since a session's start that are further from it are damage; with the start they fit 64 bits."""
_THREAD_BITS: Final = 24
_PROCESS_MASK: Final = (1 << 24) - 1
CORRELATION_BITS: Final = 33
"""Each process counts its launches by itself, in 32 bits: its number stands above them."""


def columns_of(chunk: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Return the columns of some rows."""
    return [list(column) for column in zip(*chunk, strict=True)]


def times(start: list[Any], end: list[Any]) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """Return starts, ends and which rows have usable ones."""
    missing = -(2**62)
    begun, ended = (_numbers_or(values, missing) for values in (start, end))
    # Not by abs(): that of the least number is that number itself.
    usable = (begun > -TIME_LIMIT_NS) & (ended < TIME_LIMIT_NS) & (ended >= begun)
    return begun, ended, usable


def _numbers_or(values: list[Any], missing: int) -> I64:
    if all(value.__class__ is int for value in values):
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    usable = [value if value.__class__ is int and abs(value) < 2**62 else missing for value in values]
    return np.array(usable, np.int64)


class Threads:
    """Processes and threads in order of appearance, distinguished by their global ids.

    An id holds a machine, a process of 24 bits and a thread of 24 bits.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        """Global thread id -> number."""
        self.processes: dict[int, int] = {}
        """Global thread id without its thread -> number."""

    def thread(self, ids: I64) -> npt.NDArray[np.int64]:
        """Return the number of each global thread id; ids that are missing (-1) share one."""
        return self._numbered(ids, self.numbers)

    def process(self, ids: I64) -> npt.NDArray[np.int64]:
        """Return the number of the process in each global thread or process id."""
        return self._numbered(ids >> _THREAD_BITS, self.processes)

    @staticmethod
    def _numbered(ids: I64, known: dict[int, int]) -> npt.NDArray[np.int64]:
        different, place = np.unique(ids, return_inverse=True)
        each = np.array([known.setdefault(int(number), len(known)) for number in different], np.int64)
        return each[place.reshape(-1)]

    def names(self) -> list[tuple[str, str]]:
        """Return (process, thread) of each thread number as text."""
        return [
            (self.process_name(number >> _THREAD_BITS), str(number & _PROCESS_MASK))
            for number in self.numbers
        ]

    def process_key(self, thread_id: int) -> str:
        """Return the id of the process in a global thread id."""
        return self.process_name(thread_id >> _THREAD_BITS)

    def process_name(self, key: int) -> str:
        """Return the id of a process; with its machine if processes of several machines have this id."""
        pid = key & _PROCESS_MASK
        alike = sum(other & _PROCESS_MASK == pid for other in self.processes)
        return str(pid) if alike < 2 else f"{pid} of {key >> _THREAD_BITS}"


def correlations(values: list[Any], process: I64 | None) -> I64:
    """Return ids of launches that no other process has; -1 if there is none."""
    ids = numbers(values, 1 << (CORRELATION_BITS - 1))
    if process is None:
        return ids
    return np.where(ids > 0, ids + (process << CORRELATION_BITS), ids).astype(np.int64)
