"""Turns: who works is not ended, nor one whose bytes have come."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from shardtoll.dashboards.app import turns
from shardtoll.dashboards.app.turns import Turn, Turns

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A server's end and a client's."""
    server, client = socket.socketpair()
    with server, client:
        yield server, client


def test_a_client_is_ended_once_its_time_is_over(ends: Ends):
    server, client = ends
    turn, now_s = Turn(server, ""), time.monotonic()
    turn.waits(now_s + 1, for_bytes=True)
    assert not turn.end(now_s)
    assert turn.end(now_s + 1)
    assert client.recv(1) == b""
    # Its thread wakes, and learns that it may not go on; nobody ends it twice.
    assert not turn.works()
    assert not turn.end(now_s + 1)


def test_a_client_that_the_server_works_for_is_not_ended(ends: Ends):
    server, client = ends
    turn, now_s = Turn(server, ""), time.monotonic()
    turn.waits(now_s, for_bytes=True)
    assert turn.works()
    assert not turn.end(now_s + 100)
    server.sendall(b"x")
    assert client.recv(1) == b"x"


def test_a_client_whose_bytes_have_come_is_not_ended(ends: Ends):
    """Its thread has yet to run: a shutdown would reset an honest client."""
    server, client = ends
    turn, now_s = Turn(server, ""), time.monotonic()
    turn.waits(now_s, for_bytes=True)
    client.sendall(b"x")
    assert not turn.end(now_s + 0.1)
    assert turn.works()
    # One that sends without a pause does not stay for that, nor one that is to read.
    turn.waits(now_s, for_bytes=True)
    assert turn.end(now_s + turns.SLOW_S)


def test_bytes_do_not_keep_a_client_that_does_not_read(ends: Ends):
    server, client = ends
    turn, now_s = Turn(server, ""), time.monotonic()
    client.sendall(b"x")
    turn.waits(now_s)
    assert turn.end(now_s)


def test_who_cannot_be_ended_leaves_it_to_the_next(monkeypatch):
    """The oldest has sent; the second has not, and gives way in its stead."""
    monkeypatch.setattr(turns, "AT_ONCE", 2)
    monkeypatch.setattr(turns, "HURRY_S", 0.0)
    pairs = [socket.socketpair() for _ in range(3)]
    all_turns = Turns()
    for server, _ in pairs:
        assert all_turns.come(server, ("a", 1)) is None
    for server, _ in pairs[:2]:
        assert all_turns.next() == (server, ("a", 1))
    assert all_turns.next() is None
    pairs[0][1].sendall(b"x")
    assert all_turns.hurry() == []
    first, second = (all_turns.of(pairs[number][0]) for number in range(2))
    assert first is not None
    assert second is not None
    assert (first.works(), second.works()) == (True, False)
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_full_line_takes_a_newcomer_and_returns_who_leaves(monkeypatch):
    monkeypatch.setattr(turns, "IN_LINE", 2)
    pairs = [socket.socketpair() for _ in range(3)]
    servers = [server for server, _ in pairs]
    all_turns = Turns()
    leaves = [all_turns.come(server, ("a", 1)) for server in servers]
    assert leaves == [None, None, servers[0]]
    assert all_turns.close() == servers[1:]
    for pair in pairs:
        for one in pair:
            one.close()
