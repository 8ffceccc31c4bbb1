"""Connections refused because there are too many: each gets a line, and its client gets to read it.

A socket that is closed with bytes of a request unread resets the connection, and the client may never see the
line. So it stays open for a moment, and what comes is dropped. No thread waits for it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from typing import Final

_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 34\r\nConnection: close\r\n\r\nToo many connections. Ask again.\r\n"
)
_STAY_S: Final = 1.0
"""After the line, so long a refused client may read it."""
_MOST: Final = 64
"""Refused connections that stay open: one more closes the oldest."""


class Refused:
    """Refused connections that are still open."""

    def __init__(self) -> None:
        self._open: deque[tuple[float, socket.socket]] = deque()

    def add(self, connection: socket.socket) -> None:
        """Answer that there are too many, and close soon; waits for nothing."""
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(_FULL)
            connection.shutdown(socket.SHUT_WR)
        self._open.append((time.monotonic() + _STAY_S, connection))
        while len(self._open) > _MOST:
            self._close_oldest()

    def sweep(self) -> None:
        """Drop what has come, and close those whose time is over."""
        while self._open and self._open[0][0] <= time.monotonic():
            self._close_oldest()
        for _, connection in self._open:
            _drop(connection)

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._close_oldest()

    def _close_oldest(self) -> None:
        connection = self._open.popleft()[1]
        _drop(connection)
        connection.close()


def _drop(connection: socket.socket) -> None:
    """Take what has come by now, and keep none of it."""
    with contextlib.suppress(OSError):
        connection.recv(65_536)
