"""Hangs in steps of more collectives than a rank's record holds twice are named as those in short ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live import hang_programs_long
from tests.live.launch import run_ranks
from tests.live.named_hangs import check_named, line_in

pytestmark = [pytest.mark.live, pytest.mark.slow]

PROGRAM = "tests/live/hang_programs_long.py"
NEVER_S = 60.0

HANGS = {
    ("one_too_many", 2): ("extra", "Rank 1 issued all_reduce", "# clip"),
    ("one_too_many", 4): ("extra", "Rank 1 issued all_reduce", "# clip"),
    ("early_one_again", 2): ("extra", "Rank 1 issued all_reduce", "# scale"),
    ("swapped", 3): ("order", "rank 1 issued all_reduce", "# both"),
}


@pytest.mark.parametrize(("name", "world"), HANGS)
def test_a_hang_in_a_long_step_is_named(name: str, world: int, tmp_path: Path):
    why, words, text = HANGS[name, world]
    all_ranks = tuple(range(world))
    run_ranks(hang_programs_long.run, world, name, str(tmp_path), NEVER_S, may_die=all_ranks, limit_s=90)
    check_named(tmp_path, why, [words, line_in(PROGRAM, text)])
