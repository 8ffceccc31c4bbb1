"""Hangs in steps of many collectives, and in what no collective of ours shows, are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import flights_of
from tests.live import hang_programs_long
from tests.live.launch import run_ranks
from tests.live.named_hangs import check_named, line_in

pytestmark = [pytest.mark.live, pytest.mark.slow]

PROGRAM = "tests/live/hang_programs_long.py"
NEVER_S = 60.0
LATE_S = 3.0
LIMIT_S = 5.0

HANGS = {
    ("one_too_many", 2, NEVER_S): ("extra", ["Rank 1 issued all_reduce"], "# clip"),
    ("one_too_many", 4, NEVER_S): ("extra", ["Rank 1 issued all_reduce"], "# clip"),
    ("early_one_again", 2, NEVER_S): ("extra", ["Rank 1 issued all_reduce"], "# scale"),
    ("swapped", 3, NEVER_S): ("order", ["rank 1 issued all_reduce"], "# both"),
    ("aborted", 3, NEVER_S): (
        "late",
        ["Rank 0 came to all_reduce", "after ranks 1 and 2, which had ended in that wait"],
        "# in time?",
    ),
}


@pytest.mark.parametrize(("name", "world", "after_s"), HANGS)
def test_it_is_named_with_rank_and_line(name: str, world: int, after_s: float, tmp_path: Path):
    why, words, text = HANGS[name, world, after_s]
    all_ranks = tuple(range(world))
    run_ranks(hang_programs_long.run, world, name, str(tmp_path), after_s, may_die=all_ranks, limit_s=90)
    check_named(tmp_path, why, [*words, line_in(PROGRAM, text)])


NO_COLLECTIVES = {
    "evaluated_alone": ("Ranks 1 and 2 have not arrived", "# again"),
    "group_of_a_part": (
        "Rank 1 has not called new_group, in which ranks 0 and 2 have been",
        "# members only",
    ),
}
"""DDP's own broadcast of buffers, the end of backward, and `new_group`."""


@pytest.mark.parametrize("name", NO_COLLECTIVES)
def test_a_wait_that_is_no_collective_of_the_program_is_named_while_it_lasts_and_after(
    name: str, tmp_path: Path
):
    begin, text = NO_COLLECTIVES[name]
    run_ranks(hang_programs_long.run, 3, name, str(tmp_path), LATE_S, may_die=(0, 1, 2), limit_s=90)
    check_named(tmp_path, "late", [begin, line_in(PROGRAM, text)])
    live = json.loads((tmp_path / "live.json").read_text())
    assert live["verdict"].startswith(begin)
    if name == "evaluated_alone":
        assert "; rank 0 waits for " in live["verdict"]


@pytest.mark.parametrize("after_s", [LATE_S, NEVER_S])
@pytest.mark.parametrize("name", NO_COLLECTIVES)
def test_a_wait_that_is_no_collective_of_the_program_is_named_after_torch_has_ended_it(
    name: str, after_s: float, tmp_path: Path
):
    """In `group_of_a_part` the others' ends close the connections of the rank at fault."""
    begin, text = NO_COLLECTIVES[name]
    run_ranks(
        hang_programs_long.run_to_end, 3, name, str(tmp_path), after_s, LIMIT_S, may_die=(0, 1, 2), limit_s=90
    )
    flights, now_ns, _ = flights_of(tmp_path / "run")
    assert any(each.state == "failed" for each in flights)
    told = diagnose(flights, now_ns)
    assert (told.hang, told.why) == (True, "late"), told.verdict
    assert told.verdict.startswith(begin)
    assert line_in(PROGRAM, text) in told.verdict
