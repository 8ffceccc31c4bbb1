"""Hangs outside of collectives, in rings and over three groups are named; strategies at work are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import flights_of
from tests.live import hang_programs, hang_programs_more
from tests.live.launch import run_ranks
from tests.live.named_hangs import check_named, line_in

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORLD = 3
NEVER_S = 60.0
LATE_S = 3.0
PROGRAM = "tests/live/hang_programs_more.py"

HANGS = {
    "swapped_ring": (
        "cycle",
        NEVER_S,
        ["rank 0 waits for rank 1 in send", "rank 2 waits for rank 0"],
    ),
    "three_groups": ("cycle", NEVER_S, ["Deadlock: rank 0 waits for rank 1 in all_reduce 4 of group"]),
    "objects": (
        "skipped",
        NEVER_S,
        ["Rank 1 skipped all_gather", line_in(PROGRAM, "dist.all_gather_object(")],
    ),
    "stuck_optimizer": (
        "late",
        LATE_S,
        ["Rank 1 has not arrived", line_in(PROGRAM, "# in the optimizer")],
    ),
    "stuck_loader": ("late", LATE_S, ["Rank 1 has not arrived", "(read)"]),
    "store": ("late", LATE_S, ["Rank 1 has not arrived", line_in(PROGRAM, "kept.get(")]),
    "handler": ("late", LATE_S, ["Rank 1 has not arrived"]),
    "destroyed": ("late", LATE_S, ["Rank 1 has not arrived", "ranks 0 and 2 "]),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_named_with_rank_and_line(name: str, tmp_path: Path):
    why, after_s, words = HANGS[name]
    all_ranks = tuple(range(WORLD))
    run_ranks(hang_programs_more.run, WORLD, name, str(tmp_path), after_s, may_die=all_ranks, limit_s=90)
    check_named(tmp_path, why, words)


@pytest.mark.parametrize("name", ["ring", "one_f_one_b"])
def test_a_strategy_at_work_is_never_called_a_hang(name: str, tmp_path: Path):
    """Rank 0 looks four times a second, and would end the job at the first alarm."""
    assert hang_programs.POLL_S <= 0.25
    run_ranks(hang_programs_more.run, WORLD, name, str(tmp_path), NEVER_S, limit_s=90)
    flights, now_ns, _ = flights_of(tmp_path / "run")
    assert diagnose(flights, now_ns).why == "none"
    assert {each.state for each in flights} == {"closed"}


def test_two_sessions_with_forks_leave_no_thread_file_or_descriptor(tmp_path: Path):
    for kept in run_ranks(hang_programs_more.left_behind, 2, str(tmp_path)):
        ours = ["shardtoll-provisional", "shardtoll-watchdog"]
        assert [each["threads"] for each in kept["during"]] == [ours] * 2
        assert [each["memory"] for each in kept["during"]] == [1, 1]
        assert kept["after"]["threads"] == []
        assert kept["after"]["memory"] == 0
        assert kept["after"]["descriptors"] <= kept["before"]["descriptors"]
