"""Refused connections: each client reads why, and none stays open."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from shardtoll.dashboards.app import refused
from shardtoll.dashboards.app.refused import Refused


@pytest.fixture
def kept() -> Iterator[Refused]:
    kept = Refused()
    yield kept
    kept.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a server's and a client's end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname(), timeout=20)
        return listening.accept()[0], client


def test_a_client_that_asks_late_reads_why(kept: Refused):
    server, client = pair()
    kept.add(server)
    client.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1_000)
    kept.sweep()
    with client:
        said = b"".join(iter(lambda: client.recv(1_000), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert server.fileno() >= 0


def test_a_refused_connection_is_closed_after_its_time(kept: Refused, monkeypatch):
    monkeypatch.setattr(refused, "_STAY_S", 0.05)
    server, client = pair()
    kept.add(server)
    time.sleep(0.1)
    kept.sweep()
    client.close()
    assert server.fileno() == -1


def test_one_more_than_may_stay_closes_the_oldest(kept: Refused, monkeypatch):
    monkeypatch.setattr(refused, "_MOST", 2)
    pairs = [pair() for _ in range(3)]
    for server, _ in pairs:
        kept.add(server)
    assert [server.fileno() == -1 for server, _ in pairs] == [True, False, False]
    kept.close()
    assert {server.fileno() for server, _ in pairs} == {-1}
    for _, client in pairs:
        client.close()


def test_a_client_that_is_gone_is_no_fault(kept: Refused):
    server, client = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    kept.add(server)
    kept.sweep()
    assert server.fileno() >= 0
