"""The backend, and with it fabric and floors, is that of the group in use, however it was made."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import backend_programs as programs
from tests.live.launch import run_ranks

WAYS = ("by device", "inherited", "by name", "mesh")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    outcome: dict[str, Any] = run_ranks(programs.every_way, 2, backend="cpu:gloo")[0]
    return outcome


@pytest.mark.parametrize("way", WAYS)
def test_backend_fabric_and_floors_follow_from_the_group(outcomes: dict[str, Any], way: str) -> None:
    each = outcomes[way]
    assert (each["backend"], each["groups"], each["fabric"]) == ("gloo", ["gloo"], "loopback-gloo")
    assert (each["reduced"], each["without floor"]) == (6, 0)
