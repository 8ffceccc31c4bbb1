"""Who waits for a place: a request that has arrived goes first, and no address keeps the others out.

Clients that only fill the server have sent nothing, or a part of a head. Behind a proxy, or on this machine,
they share the address of honest ones: so the bytes that wait to be read count too. They are looked at, not
taken.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

IN_LINE_S: Final = 2.0
"""So long one waits for a place, then it is refused."""
_PEEK_BYTES: Final = 16_384
"""The end of a head is looked for in so many bytes; a browser's head is shorter."""
_GONE, _NOTHING, _PART, _WHOLE = range(4)
"""State of a request: the client has closed, or nothing has come, or part of its head, or all of it."""


class _Waiting:
    """One connection in line."""

    __slots__ = ("address", "connection", "has_come", "host", "until_s")

    def __init__(self, connection: socket.socket, address: Any) -> None:
        self.until_s = time.monotonic() + IN_LINE_S
        self.connection = connection
        self.address = address
        self.host = host_of(address)
        self.has_come = _NOTHING


class Line:
    """The connections in line, the oldest first. It has no lock of its own."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._bytes = bytearray(_PEEK_BYTES)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: socket.socket, address: Any) -> None:
        """Take a connection at the end."""
        self._waiting.append(_Waiting(connection, address))

    def drop(self) -> socket.socket:
        """Return who leaves a full line: of the address that has most, who has sent least, the oldest."""
        self._look()
        count = Counter(each.host for each in self._waiting)
        return self._leaves(
            min(self._waiting, key=lambda each: (-count[each.host], each.has_come))
        ).connection

    def take(self, places: Mapping[str, int]) -> tuple[socket.socket, Any]:
        """Return who is next: of the address with the fewest places, who has sent most, the oldest."""
        if len(self._waiting) > 1:
            self._look()
        one = self._leaves(min(self._waiting, key=lambda each: (places.get(each.host, 0), -each.has_come)))
        return one.connection, one.address

    def late(self, now_s: float) -> list[socket.socket]:
        """Return those that have been in line for too long, and have them leave it."""
        late = [each.connection for each in self._waiting if each.until_s <= now_s]
        self._waiting = [each for each in self._waiting if each.until_s > now_s]
        return late

    def clear(self) -> list[socket.socket]:
        """Return all; the line is empty then."""
        return self.late(float("inf"))

    def _leaves(self, one: _Waiting) -> _Waiting:
        self._waiting.remove(one)
        return one

    def _look(self) -> None:
        """Note what has come from those whose head is not whole yet."""
        looked = {each.connection.fileno(): each for each in self._waiting if each.has_come != _WHOLE}
        for number in readable(looked):
            looked[number].has_come = self._come(looked[number].connection)

    def _come(self, connection: socket.socket) -> int:
        try:
            count = connection.recv_into(self._bytes, _PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return _NOTHING
        except OSError:
            return _GONE
        if not count:
            return _GONE
        return _WHOLE if self._bytes.find(b"\r\n\r\n", 0, count) >= 0 else _PART


def host_of(address: Any) -> str:
    """Return the address without the port."""
    return str(address[0] if address else "")


def readable(numbers: Iterable[int], wait_s: float = 0.0) -> list[int]:
    """Return which of these files have something to read or are closed, waiting so long for the first."""
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    return [number for number, _ in poll.poll(wait_s * 1_000)]
