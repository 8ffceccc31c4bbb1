"""The line: who has sent a request is next, and who fills the line leaves it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from shardtoll.dashboards.app.line import IN_LINE_S, Line, host_of

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Comes = Callable[..., socket.socket]


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def comes(line: Line) -> Iterator[Comes]:
    """Has a client come to the line, that has sent this; returns the server's end."""
    opened: list[socket.socket] = []

    def come(sent: bytes = b"", host: str = "a", closed: bool = False) -> socket.socket:
        server, client = socket.socketpair()
        opened.extend((server, client))
        client.sendall(sent)
        if closed:
            client.close()
        line.add(server, (host, 1))
        return server

    yield come
    for one in opened:
        one.close()


def test_of_one_address_who_has_sent_a_whole_head_is_next(line: Line, comes: Comes):
    gone, idle, begun = comes(closed=True), comes(), comes(HEAD[:-2])
    whole, later = comes(HEAD), comes(HEAD)
    assert [line.take({})[0] for _ in range(5)] == [whole, later, begun, idle, gone]
    # Looked at, not taken.
    assert whole.recv(100) == HEAD


def test_bytes_that_come_while_one_is_in_line_count(line: Line):
    pairs = [socket.socketpair() for _ in range(3)]
    for server, _ in pairs:
        line.add(server, ("a", 1))
    pairs[2][1].sendall(HEAD[:9])
    # Looked at: the head is not whole.
    assert line.drop() is pairs[0][0]
    pairs[2][1].sendall(HEAD[9:])
    assert line.take({})[0] is pairs[2][0]
    for pair in pairs:
        for one in pair:
            one.close()


def test_the_address_with_fewest_places_is_next(line: Line, comes: Comes):
    comes(HEAD)
    other = comes(b"", "b")
    assert line.take({"a": 2, "b": 1}) == (other, ("b", 1))


def test_of_the_address_with_most_in_line_who_has_sent_least_leaves(line: Line, comes: Comes):
    first = comes(b"", "b")
    _, idle, later, _ = comes(HEAD), comes(), comes(), comes(b"GET")
    gone = comes(closed=True)
    comes(b"", "b")
    assert [line.drop() for _ in range(3)] == [gone, idle, later]
    # As many now of each address: the oldest of those who have sent nothing.
    assert line.drop() is first


def test_who_has_waited_too_long_is_late(line: Line, comes: Comes):
    one = comes(HEAD)
    now_s = time.monotonic()
    assert line.late(now_s + IN_LINE_S / 2) == []
    assert line.late(now_s + IN_LINE_S) == [one]
    assert len(line) == 0


def test_all_leave_at_the_end(line: Line, comes: Comes):
    assert line.clear() == []
    all_of_them = [comes(), comes(HEAD)]
    assert line.clear() == all_of_them
    assert len(line) == 0


def test_an_address_is_told_without_its_port():
    assert [host_of(("::1", 5, 0, 0)), host_of(("a", 1)), host_of("")] == ["::1", "a", ""]
