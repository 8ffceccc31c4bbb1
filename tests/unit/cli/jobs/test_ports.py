"""A job's port is not one that a connection of another job may get meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shardtoll.cli.jobs import ranks


def test_a_port_lies_below_those_of_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = tmp_path / "range"
    monkeypatch.setattr(ranks, "_PORT_RANGE", stated)
    for text, below in (("20000\t60999\n", 20_000), ("odd", 32_768)):
        stated.write_text(text)
        ports = {ranks.free_port() for _ in range(8)}
        assert all(10_000 <= port < below for port in ports)
        assert len(ports) > 1


def test_where_all_those_are_taken_the_system_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_PORT_RANGE", tmp_path / "missing")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        held = taken.getsockname()[1]
        monkeypatch.setattr(ranks, "_LOWEST", held)
        monkeypatch.setattr(ranks, "_USUAL_LEAST", held + 1)
        assert ranks.free_port() != held
