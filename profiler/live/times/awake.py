"""How long the training thread slept: neither ran nor was ready to run.

A thread that computes is awake, also while others have its core. One that sleeps, reads a file or is blocked
on a collective is not. This takes two readings per step, so watched steps have it too. Linux says how long a
thread was ready and had no core; if the system does not, nothing is known.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from threading import get_ident
from typing import Final

_READ_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Moment:
    """How long a thread has been awake up to now, ns."""

    thread: int
    ran_ns: int
    delayed_ns: int
    """Ready to run while its core was another's."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """How a thread spent some time, ns."""

    ran_ns: int
    delayed_ns: int

    def asleep_ns(self, lasted_ns: int) -> int:
        """Return how much of the time, which lasted so long, the thread was not awake."""
        return max(0, lasted_ns - self.ran_ns - self.delayed_ns)

    @property
    def crowding(self) -> float:
        """How many times as long as on a core of its own all work took: at least 1."""
        return (self.ran_ns + self.delayed_ns) / self.ran_ns if self.ran_ns > 0 else 1.0


def between(begin: Moment | None, end: Moment | None) -> Stretch | None:
    """Return the time between two moments of one thread; None if either is unknown."""
    if begin is None or end is None or begin.thread != end.thread:
        return None
    return Stretch(end.ran_ns - begin.ran_ns, end.delayed_ns - begin.delayed_ns)


class Awake:
    """Reads the times of the thread that calls it."""

    def __init__(self, where: str = "/proc/thread-self/schedstat") -> None:
        self._where = where
        self._file: int | None = None
        self._thread = 0
        self._unknown = not hasattr(time, "thread_time_ns")

    def now(self) -> Moment | None:
        """Return this thread's times; None if the system does not give them."""
        if self._unknown:
            return None
        thread = get_ident()
        try:
            if self._file is None or thread != self._thread:
                self.close()
                self._file, self._thread = os.open(self._where, os.O_RDONLY | os.O_CLOEXEC), thread
            delayed_ns = int(os.pread(self._file, _READ_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self._unknown = True
            self.close()
            return None
        return Moment(thread, time.thread_time_ns(), delayed_ns)

    def close(self) -> None:
        """Close what is open; a later reading opens it again."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
