"""Connections that are slow, many, too long or no HTTP: each ends soon, with one plain line or none."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from shardtoll.dashboards.app import connections, line, turns
from shardtoll.dashboards.app.security import BODY_MOST, Guard
from shardtoll.dashboards.app.server import listen, serving

UPDATE = "/_dash-update-component"
READ: list[int] = []
DONE = threading.Event()
"""Set unless answers shall take long."""
DONE.set()
LONG_FOR = "7"
"""Length of a body that gets a long answer."""
LONG = 20_000_000
"""Bytes of a long answer: more than the kernel keeps for a client that does not read."""


def inner(environ, start):
    """Read the whole body, as Dash does, and note how long it was."""
    length = len(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
    READ.append(length)
    DONE.wait(20)
    said = bytes(LONG) if environ.get("CONTENT_LENGTH") == LONG_FOR else b"inside"
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(said)))])
    return [said]


@pytest.fixture
def connect() -> Iterator[Callable[[], socket.socket]]:
    """A server that runs; returns what connects to it."""
    READ.clear()
    with listen("127.0.0.1", 0) as listening:
        server = serving(Guard(inner, "", {"127.0.0.1"}), listening)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        opened: list[socket.socket] = []

        def made() -> socket.socket:
            opened.append(socket.create_connection(listening.getsockname()[:2], timeout=20))
            return opened[-1]

        yield made
        for one in opened:
            one.close()
        server.shutdown()
        thread.join()
        for left in threading.enumerate():
            if "process_request_thread" in left.name:
                left.join(10)


def answer(client: socket.socket) -> bytes:
    """Return the bytes that come until the server closes."""
    parts = []
    while part := client.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def asks(method: str = "GET", target: str = "/", length: int | None = None) -> bytes:
    size = "" if length is None else f"Content-Length: {length}\r\n"
    return f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{size}\r\n".encode()


@pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\nX: ", asks("POST", UPDATE, 100_000)])
def test_a_client_that_sends_a_byte_now_and_then_is_left(connect, monkeypatch, begun: bytes):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(connections, "READ_S", 0.3)
    client = connect()
    client.sendall(begun)
    # Ten times the time that it has, never a pause as long as that.
    assert sent_until_closed(client, b"a", 150) < 150
    assert READ == []


def sent_until_closed(client: socket.socket, part: bytes, most: int) -> int:
    """Send it so often, with pauses; return how often until the server had closed."""
    for number in range(most):
        try:
            client.sendall(part)
        except OSError:
            return number
        time.sleep(0.02)
    return most


@pytest.fixture
def busy(monkeypatch) -> Iterator[threading.Event]:
    """Answers that are made only once the event is set."""
    done = threading.Event()
    monkeypatch.setitem(globals(), "DONE", done)
    yield done
    done.set()


def test_more_connections_than_are_answered_at_once_are_refused(connect, busy, monkeypatch):
    monkeypatch.setattr(line, "IN_LINE_S", 0.2)
    assert turns.AT_ONCE == 64
    working = [connect() for _ in range(turns.AT_ONCE)]
    for one in working:
        one.sendall(asks())
    for _ in range(200):
        if len(READ) == turns.AT_ONCE:
            break
        time.sleep(0.02)
    for _ in range(3):
        # As a browser: the request is sent at once, whether it will be answered or not.
        client = connect()
        client.sendall(asks())
        said = answer(client)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert said.endswith(b"\r\n\r\nToo many connections. Ask again.\r\n")
    assert len(READ) == turns.AT_ONCE
    busy.set()
    # None that the server worked for was ended for another one.
    assert all(b"inside" in answer(one) for one in working)
    client = connect()
    client.sendall(asks())
    assert b"inside" in answer(client)


def fetch(connect) -> float:
    """Return the seconds that an honest client waits for its answer; inf if it is refused or cut off."""
    begin = time.monotonic()
    client = connect()
    try:
        client.sendall(asks())
        return time.monotonic() - begin if b"inside" in answer(client) else float("inf")
    except OSError:
        return float("inf")


ATTACKS = {
    "idle": b"",
    "begun": b"GET / HTTP/1.1\r\nX: ",
    "body": asks("POST", UPDATE, 100_000),
    "after": asks() + b"x" * 10,
    "unread": asks("POST", UPDATE, int(LONG_FOR)) + b"x" * int(LONG_FOR),
}
"""What clients that fill the server send, and then nothing more; they read nothing."""


@pytest.mark.parametrize("kind", [*ATTACKS, "trickle"])
def test_a_browser_is_answered_while_others_fill_the_server(connect, monkeypatch, kind: str):
    """So many clients as there are places connect again as soon as they are closed."""
    monkeypatch.setattr(turns, "SLOW_S", 0.3)
    monkeypatch.setattr(connections, "SLOW_S", 0.3)
    over = threading.Event()
    sent = ATTACKS["unread" if kind == "trickle" else kind]

    def fills() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), connect() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                client.sendall(sent)
                client.settimeout(0.1)
                end = time.monotonic() + 5
                while not over.is_set() and time.monotonic() < end:
                    # Closed? One byte a time: most of an answer stays unread.
                    with contextlib.suppress(TimeoutError):
                        if not client.recv(1):
                            break
                        if kind == "trickle":
                            # A part, well within the time that one has.
                            client.recv(65_536, socket.MSG_WAITALL)
                        # Else so many threads that read without a pause keep the interpreter from the server.
                        over.wait(0.1)

    threads = [threading.Thread(target=fills) for _ in range(turns.AT_ONCE)]
    for each in threads:
        each.start()
    try:
        time.sleep(0.5)
        waited = [fetch(connect) for _ in range(5)]
    finally:
        over.set()
        for each in threads:
            each.join()
    assert max(waited) < 2.0, waited


@pytest.mark.parametrize("kind", ["idle", "begun"])
def test_a_browser_is_answered_while_others_fill_the_line_too(connect, monkeypatch, kind: str):
    """They are more than have room, at the browser's address, and connect again once they are closed."""
    monkeypatch.setattr(turns, "AT_ONCE", 8)
    monkeypatch.setattr(turns, "IN_LINE", 32)
    over, closed = threading.Event(), [0]

    def fill() -> None:
        with selectors.DefaultSelector() as clients:

            def comes() -> None:
                client = connect()
                client.sendall(ATTACKS[kind])
                clients.register(client, selectors.EVENT_READ)

            for _ in range(120):
                comes()
            while not over.is_set():
                for key, _ in clients.select(0.05):
                    closed[0] += 1
                    clients.unregister(key.fileobj)
                    key.fileobj.close()
                    with contextlib.suppress(OSError):
                        comes()

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        time.sleep(1)
        waited = [fetch(connect) for _ in range(5)]
    finally:
        over.set()
        thread.join()
    assert max(waited) < 2.0, waited
    assert closed[0] > 80


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_an_answer_has_one_time_for_all_of_it(size: int, monkeypatch):
    """However small its parts are, and in however many writes it is sent."""
    server, client = socket.socketpair()
    until: list[float] = []

    class Noted(turns.Turn):
        def waits(self, until_s: float, *, for_bytes: bool = False) -> None:
            until.append(until_s)
            super().waits(until_s, for_bytes=for_bytes)

    def reads() -> None:
        while client.recv(65_536):
            time.sleep(0.005)

    thread = threading.Thread(target=reads)
    thread.start()
    begin = time.monotonic()
    with server:
        writing = connections._Writing(server, Noted(server, ""))
        for _ in range(3):
            assert writing.write(bytes(size)) == size
    thread.join()
    client.close()
    assert len(until) == 3
    assert max(until) - begin == pytest.approx(connections.SLOW_S, abs=0.05)


def test_connections_without_a_request_make_room_after_the_time_of_a_head(connect, monkeypatch):
    assert connections.HEAD_S == 5
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    idle = [connect() for _ in range(turns.AT_ONCE)]
    # The server closes each; the clients keep them open.
    assert {answer(one) for one in idle} == {b""}
    for _ in range(200):
        client = connect()
        client.sendall(asks())
        if b"inside" in answer(client):
            return
        time.sleep(0.05)
    pytest.fail("no room")


def test_a_body_has_more_time_than_a_head(connect, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    client = connect()
    client.sendall(asks("POST", UPDATE, 5))
    for letter in b"slow!":
        time.sleep(0.15)
        client.sendall(bytes([letter]))
    assert b"inside" in answer(client)
    assert READ == [5]


def test_a_client_that_reads_slowly_gets_all_of_a_long_answer(connect, monkeypatch):
    monkeypatch.setattr(connections, "READ_S", 0.5)
    client = connect()
    # Else the kernel takes most of the answer before the client reads it.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.sendall(asks("POST", UPDATE, int(LONG_FOR)) + b"x" * int(LONG_FOR))
    size = 0
    while part := client.recv(1_000_000):
        size += len(part)
        # Takes several times the limit for all of it, no pause as long as that.
        time.sleep(len(part) / 10_000_000)
    assert size > LONG


def test_a_client_that_stops_reading_is_left(connect, monkeypatch):
    monkeypatch.setattr(connections, "READ_S", 0.3)
    client = connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.sendall(asks("POST", UPDATE, int(LONG_FOR)) + b"x" * int(LONG_FOR))
    time.sleep(1.5)
    size = 0
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1_000_000):
            size += len(part)
    assert 60_000 < size < LONG


def test_a_body_that_is_refused_is_dropped_and_its_client_reads_why(connect):
    client = connect()
    client.sendall(asks("POST", UPDATE, 5 * BODY_MOST))
    client.sendall(b"x" * (5 * BODY_MOST))
    # The client does not close: the server does.
    assert answer(client).startswith(b"HTTP/1.1 413 ")
    assert READ == []


def test_the_head_of_a_request_is_bounded_too(connect):
    """A hundred lines of 64 kB are no head of ours."""
    client = connect()
    line = b"X: " + b"y" * 60_000 + b"\r\n"
    said = b""
    # The server may close while the client sends.
    with contextlib.suppress(OSError):
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + line * 90 + b"\r\n")
        said = answer(client)
    assert said == b""
    assert READ == []


@pytest.mark.parametrize(
    "sent",
    [b"GET http://[/ HTTP/1.1\r\n\r\n", b"GET / HTTP/x\r\n\r\n",
     b"<script> / / /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request_gets_one_plain_line_and_none_in_the_log(connect, capfd, sent: bytes):
    client = connect()
    client.sendall(sent)
    said = answer(client)
    head, _, body = said.rpartition(b"\r\n\r\n")
    if head:
        assert head.split()[1][:1] in b"45"
        assert b"text/plain" in head
    assert (body.count(b"\n"), b"<" in body, len(body) < 60) == (1, False, True)
    assert READ == []
    client = connect()
    client.sendall(asks())
    assert b"inside" in answer(client)
    assert capfd.readouterr().err == ""


def test_a_failure_outside_the_application_is_one_line(connect, capfd, monkeypatch):
    def fails(self: object) -> bool:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(connections.Handler, "parse_request", fails)
    client = connect()
    client.sendall(asks())
    assert answer(client) == b""
    said = capfd.readouterr().err
    assert said == "shardtoll: serve: a connection was dropped (ZeroDivisionError: by)\n"
