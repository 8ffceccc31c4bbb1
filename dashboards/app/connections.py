"""Connections to the server: how long and how much one may send, and how many there may be at once.

Any program on the machine may connect, and a browser sends its request at once. So a request has one limit of
time for its head and one for all of it, not one for each byte. Else a client that sends a byte per second
would keep a thread for ever, and connections without a request would leave no room. An answer has a limit for
each part, as all of it may take minutes over a slow line. A limit for all of it holds only while others wait.
Nothing is kept of a body that was refused, and a request that cannot be read gets one plain line.
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import time
from typing import Any, Final
from urllib.parse import urlsplit

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from shardtoll.dashboards.app.line import readable
from shardtoll.dashboards.app.refused import Refused
from shardtoll.dashboards.app.security import BODY_MOST
from shardtoll.dashboards.app.turns import HURRY_S, SLOW_S, Turn, Turns
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.records.errors import first_line

HEAD_S: Final = 5.0
"""Time for the head of a request, from when its connection is accepted."""
READ_S: Final = 30.0
"""Time for all of a request, from when its connection is accepted."""
SENT_MOST: Final = BODY_MOST + 200_000
"""Bytes of a request with its head."""
POLL_S: Final = 0.1
"""Time between two looks at who waits for a place."""
_DROP_S: Final = 0.2
"""After the answer, so long a client may pause before the connection is closed."""
_PART_BYTES: Final = 65_536
"""Bytes of an answer that are sent within one limit of time."""


class _Reading(io.RawIOBase):
    """Bytes of a client, until the time or the bytes of one request are used up."""

    def __init__(self, connection: socket.socket, turn: Turn) -> None:
        self._connection = connection
        self._turn = turn
        self._begin_s = time.monotonic()
        self._end_s = self._begin_s + HEAD_S
        # One time for all of it: a byte now and then does not prolong it.
        self._hurry_s = self._begin_s + HURRY_S
        self._left = SENT_MOST
        # For a part of the answer: what is read has its own limits.
        connection.settimeout(READ_S)
        self.answered = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as a file does; raises TimeoutError or ConnectionAbortedError once a limit is reached."""
        if self.answered:
            self._turn.waits(time.monotonic() + HURRY_S)
            self._drop()
            return 0
        size = min(len(buffer), self._left)
        if not size:
            raise ConnectionAbortedError("the request is too long")
        self._turn.waits(self._hurry_s, for_bytes=True)
        wait_s = min(READ_S, self._end_s - time.monotonic())
        # First it is at work, then it reads: bytes that are read are no longer seen by who would end it.
        if wait_s <= 0 or not readable([self._connection.fileno()], wait_s):
            raise TimeoutError("the request took too long")
        count = self._connection.recv_into(buffer, size) if self._turn.works() else 0
        self._left -= count
        return count

    def head_is_read(self) -> None:
        """Give the body its time."""
        self._end_s = self._begin_s + READ_S
        self._hurry_s = time.monotonic() + SLOW_S

    def _drop(self) -> None:
        """Take what still comes, so that the client gets to read the answer, and keep none of it."""
        scratch = bytearray(65_536)
        number = self._connection.fileno()
        with contextlib.suppress(OSError):
            while readable([number], max(min(_DROP_S, self._end_s - time.monotonic()), 0)):
                if time.monotonic() >= self._end_s or not self._connection.recv_into(scratch):
                    return


class _Writing(io.BufferedIOBase):
    """Sends an answer part by part: a socket's limit of time is one for all that is sent at once."""

    def __init__(self, connection: socket.socket, turn: Turn) -> None:
        self._connection = connection
        self._turn = turn
        self._spent_s = 0.0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Send all of it; raises TimeoutError if a part takes too long."""
        begin_s = time.monotonic()
        # One time for all of the answer: taking a part now and then does not prolong it.
        self._turn.waits(begin_s + SLOW_S - self._spent_s)
        with memoryview(data).cast("B") as view:
            for begin in range(0, len(view), _PART_BYTES):
                self._connection.sendall(view[begin : begin + _PART_BYTES])
            self._turn.works()
            self._spent_s += time.monotonic() - begin_s
            return len(view)


class Handler(WSGIRequestHandler):
    """Prints no line a request, names no version, and waits for no one for ever."""

    timeout = READ_S
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s.\n"

    def setup(self) -> None:
        """Read and write through the limits."""
        super().setup()
        self.rfile.close()
        turns = getattr(self.server, "turns", None)
        turn = (turns and turns.of(self.connection)) or Turn(self.connection, "")
        self._reading = _Reading(self.connection, turn)
        self.rfile = io.BufferedReader(self._reading)
        self.wfile = _Writing(self.connection, turn)

    def parse_request(self) -> bool:
        """Refuse an invalid address: werkzeug raises on it outside the part that it guards."""
        if not super().parse_request():
            return False
        try:
            urlsplit(self.path)
        except ValueError:
            self.send_error(400)
            return False
        self._reading.head_is_read()
        return True

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin an answer: what the client sends from now on is dropped."""
        self._reading.answered = True
        super().send_response(code, message)

    def send_error(self, code: int, *_texts: str | None, **_more: str | None) -> None:
        """Answer in one line that repeats nothing of the request."""
        super().send_error(code)

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing: requests are no news, and an address may hold the token."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing, and do not take the address apart for it: it may be none."""

    def version_string(self) -> str:
        """Name no version."""
        return "shardtoll"


class Server(ThreadedWSGIServer):
    """A thread a connection, and no more of them than `AT_ONCE`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.turns = Turns()
        self._refused = Refused()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread once there is room; refuse one at once if too many wait for it."""
        if (refused := self.turns.come(request, client_address)) is not None:
            self._refused.add(refused)
        self._next()

    def _next(self) -> None:
        """Answer those in line as far as there is room, and have slow clients make room for the others."""
        while (coming := self.turns.next()) is not None:
            try:
                super().process_request(*coming)
            except BaseException:
                self.turns.leave(coming[0])
                self.shutdown_request(coming[0])
                raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.turns.leave(request)
            self._next()

    def service_actions(self) -> None:
        """Look after refused connections, each time that the server looks for new ones."""
        super().service_actions()
        for late in self.turns.hurry():
            self._refused.add(late)
        self._next()
        self._refused.sweep()

    def serve_forever(self, poll_interval: float = POLL_S) -> None:
        """Serve until `shutdown`, and look after those in line so often."""
        super().serve_forever(min(poll_interval, POLL_S))

    def server_close(self) -> None:
        """Close refused connections too."""
        super().server_close()
        for left in self.turns.close():
            left.close()
        self._refused.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in one line what ended a connection, with no traceback."""
        del request, client_address
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            what = f"{type(error).__name__}: {first_line(error)}" if error is not None else "unknown"
            sys.stderr.write(f"shardtoll: serve: {clip(f'a connection was dropped ({what})', 300)}\n")
