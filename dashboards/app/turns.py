"""Who is answered when more connect than can be at one time: the one that keeps the server waiting gives way.

An honest client sends its request at once and reads what comes. While there is room nobody is hurried.
Once there is none, a newcomer takes the place of the connection whose client has been waited for longest.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from typing import Any, Final

from shardtoll.dashboards.app.line import Line, host_of, readable

AT_ONCE: Final = 64
"""Connections that are read or answered at one time; a browser opens six."""
IN_LINE: Final = 256
"""Connections that wait for a place; with one more, one is refused."""
HURRY_S: Final = 0.25
"""When all places are taken, so long a client may keep its own waiting for a request."""
SLOW_S: Final = 2.0
"""The same for a body, or for an answer that the client does not take."""


class Turn:
    """One connection that has a place; its lock sees to it that none is ended that has just got to work."""

    __slots__ = ("_connection", "_ended", "_for_bytes", "_lock", "_may_end_s", "address")

    def __init__(self, connection: socket.socket, address: str) -> None:
        self._lock = threading.Lock()
        self._connection = connection
        self._may_end_s: float | None = None
        self._for_bytes = False
        self._ended = False
        self.address = address

    def waits(self, until_s: float, *, for_bytes: bool = False) -> None:
        """Note that the client is waited for; it may be hurried from then on. `for_bytes`: of its request."""
        with self._lock:
            self._may_end_s = until_s
            self._for_bytes = for_bytes

    def works(self) -> bool:
        """Note that the server is at work for the client, which is not hurried; False if it had ended."""
        with self._lock:
            self._may_end_s = None
            return not self._ended

    @property
    def may_end_s(self) -> float | None:
        """From when on it may be ended for another one; None while the server works for it."""
        return self._may_end_s

    def end(self, now_s: float) -> bool:
        """Wake the thread that waits for the client, to close the connection; False if it may stay."""
        with self._lock:
            if self._ended or self._may_end_s is None or self._may_end_s > now_s:
                return False
            # Bytes have come and its thread has yet to run. Who sends without a pause does not stay for that.
            if self._for_bytes and now_s < self._may_end_s + SLOW_S and self._has_sent():
                return False
            self._ended = True
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            return True

    def _has_sent(self) -> bool:
        # Closed meanwhile: it has no number.
        with contextlib.suppress(OSError, ValueError):
            return bool(readable([self._connection.fileno()]))
        return False


class Turns:
    """The connections that have a place, and those that wait for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: dict[socket.socket, Turn] = {}
        self._ended: set[socket.socket] = set()
        self._line = Line()

    def of(self, connection: socket.socket) -> Turn | None:
        """Return the place of a connection."""
        return self._here.get(connection)

    def come(self, connection: socket.socket, address: Any) -> socket.socket | None:
        """Take a connection in line; return the one that leaves a full line for it."""
        with self._lock:
            # The newcomer stays: its request comes right after it.
            leaves = self._line.drop() if len(self._line) >= IN_LINE else None
            self._line.add(connection, address)
            return leaves

    def leave(self, connection: socket.socket) -> None:
        """Give a place back."""
        with self._lock:
            self._here.pop(connection, None)
            self._ended.discard(connection)

    def next(self) -> tuple[socket.socket, Any] | None:
        """Return the next in line, with a place from now on; None without room, or with nobody in line."""
        with self._lock:
            if not self._line or len(self._here) >= AT_ONCE:
                return None
            connection, address = self._line.take(self._places())
            turn = self._here[connection] = Turn(connection, host_of(address))
            turn.waits(time.monotonic() + HURRY_S, for_bytes=True)
            return connection, address

    def hurry(self) -> list[socket.socket]:
        """End connections that keep others waiting; return those that have been in line for too long.

        Who has most connections from one address goes first, then who has been waited for longest.
        """
        now_s = time.monotonic()
        with self._lock:
            late = self._line.late(now_s)
            count = self._places()
            idle = [
                (-count[turn.address], may_end_s, number, turn, connection)
                for number, (connection, turn) in enumerate(self._here.items())
                if (may_end_s := turn.may_end_s) is not None and may_end_s <= now_s
            ]
            wanted = len(self._line) - len(self._ended) if len(self._here) >= AT_ONCE else 0
            for _, _, _, turn, connection in sorted(idle, key=lambda each: each[:3]):
                if wanted > 0 and turn.end(now_s):
                    self._ended.add(connection)
                    wanted -= 1
            return late

    def close(self) -> list[socket.socket]:
        """Return all that are in line, which is empty then."""
        with self._lock:
            return self._line.clear()

    def _places(self) -> Counter[str]:
        return Counter(turn.address for turn in self._here.values())
