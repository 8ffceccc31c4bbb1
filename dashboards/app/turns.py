"""Who is answered when more connect than can be at one time: the one that keeps the server waiting gives way.

An honest client sends its request at once and reads what comes. While there is room nobody is hurried.
Once there is none, a newcomer takes the place of the connection whose client has been waited for longest.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, deque
from typing import Any, Final

AT_ONCE: Final = 64
"""Connections that are read or answered at one time; a browser opens six."""
IN_LINE: Final = 256
"""Connections that wait for a place; one more is refused."""
IN_LINE_S: Final = 2.0
"""So long one waits for a place, then it is refused."""
HURRY_S: Final = 0.25
"""When all places are taken, so long a client may keep its own waiting for a request."""
SLOW_S: Final = 2.0
"""The same for a body, or a part of an answer that the client does not take."""


class Turn:
    """One connection that has a place."""

    __slots__ = ("_connection", "_may_end_s", "address")

    def __init__(self, connection: socket.socket, address: str) -> None:
        self._connection = connection
        self._may_end_s: float | None = None
        self.address = address

    def waits(self, until_s: float) -> None:
        """Note that the client is waited for; it may be hurried from that time on."""
        self._may_end_s = until_s

    def works(self) -> None:
        """Note that the server is at work for the client, which is not hurried."""
        self._may_end_s = None

    @property
    def may_end_s(self) -> float | None:
        """From when on it may be ended for another one; None while the server works for it."""
        return self._may_end_s

    def end(self) -> None:
        """Wake the thread that waits for the client; it closes the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Turns:
    """The connections that have a place, and those that wait for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: dict[socket.socket, Turn] = {}
        self._ended: set[socket.socket] = set()
        self._line: deque[tuple[float, socket.socket, Any]] = deque()

    def of(self, connection: socket.socket) -> Turn | None:
        """Return the place of a connection."""
        return self._here.get(connection)

    def come(self, connection: socket.socket, address: Any) -> bool:
        """Take a connection in line; whether there was room."""
        with self._lock:
            if len(self._line) >= IN_LINE:
                return False
            self._line.append((time.monotonic() + IN_LINE_S, connection, address))
            return True

    def leave(self, connection: socket.socket) -> None:
        """Give a place back."""
        with self._lock:
            self._here.pop(connection, None)
            self._ended.discard(connection)

    def next(self) -> tuple[socket.socket, Any] | None:
        """Return the first in line, with a place from now on; None without room, or with nobody in line."""
        with self._lock:
            if not self._line or len(self._here) >= AT_ONCE:
                return None
            _, connection, address = self._line.popleft()
            turn = self._here[connection] = Turn(connection, str(address[0] if address else ""))
            turn.waits(time.monotonic() + HURRY_S)
            return connection, address

    def hurry(self) -> list[socket.socket]:
        """End connections that keep others waiting; return those that have been in line for too long.

        Who has most connections from one address goes first, then who has been waited for longest.
        """
        now_s = time.monotonic()
        with self._lock:
            late = []
            while self._line and self._line[0][0] <= now_s:
                late.append(self._line.popleft()[1])
            count = Counter(turn.address for turn in self._here.values())
            idle = [
                (-count[turn.address], may_end_s, number, turn, connection)
                for number, (connection, turn) in enumerate(self._here.items())
                if (may_end_s := turn.may_end_s) is not None and may_end_s <= now_s
            ]
            wanted = len(self._line) - len(self._ended) if len(self._here) >= AT_ONCE else 0
            for _, _, _, turn, connection in sorted(idle, key=lambda each: each[:3])[: max(wanted, 0)]:
                if connection not in self._ended:
                    self._ended.add(connection)
                    turn.end()
            return late

    def close(self) -> list[socket.socket]:
        """Return all that are in line, which is empty then."""
        with self._lock:
            left = [connection for _, connection, _ in self._line]
            self._line.clear()
            return left
