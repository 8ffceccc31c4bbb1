"""Who waits for a late rank waits exposed, on the collective that could not go on, and nowhere else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.live import late_programs
from tests.live.launch import run_ranks

pytestmark = [pytest.mark.live, pytest.mark.alone]

SLEEP_NS = int(late_programs.SLEEP_S * 1e9)
WAITED_ON = {
    "ddp": ("all_reduce", "backward"),
    "ddp_buffers": ("broadcast", "forward"),
    "ddp_static_first": ("all_reduce", "backward"),
    "ddp_power_sgd": ("all_reduce", "backward"),
    "fsdp2": ("all_gather", "forward"),
    "zero": ("broadcast", "optimizer"),
    "future": ("all_reduce", "forward"),
    "object": ("all_gather", "forward"),
    "barrier": ("barrier", "forward"),
}


@cache
def found() -> dict[str, Any]:
    return run_ranks(late_programs.late_rank, 2)[0]


@pytest.mark.parametrize("kind", sorted(WAITED_ON))
def test_the_wait_for_a_late_rank_is_exposed_on_the_collective_that_waited(kind: str) -> None:
    (step,) = found()[kind]["steps"]
    rows = found()[kind]["collectives"]
    assert step["exposed_comm_ns"] > 0.8 * SLEEP_NS, step
    assert step["idle_ns"] < step["duration_ns"] - 0.8 * SLEEP_NS
    first = next(row for row in rows if (row["op"], row["phase"]) == WAITED_ON[kind])
    same = [row for row in rows if (row["op"], row["phase"]) == WAITED_ON[kind]]
    assert sum(row["exposed_ns"] for row in same) > 0.8 * SLEEP_NS
    # Gloo works on two collectives of a group at a time: the second may have shared the wait.
    assert first["exposed_ns"] > 0.4 * SLEEP_NS
    assert sum(row["exposed_ns"] for row in same[:2]) > 0.8 * SLEEP_NS


def test_waiting_for_a_future_that_is_no_collectives_is_idle() -> None:
    (step,) = found()["other_future"]["steps"]
    assert step["exposed_comm_ns"] == 0
    assert step["idle_ns"] > 0.8 * SLEEP_NS
