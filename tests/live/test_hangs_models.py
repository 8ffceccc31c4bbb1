"""Hangs and breakdowns of wrapped models, loaders and exchanges are named with rank, line and module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live import hang_programs_models
from tests.live.launch import run_ranks
from tests.live.named_hangs import check_named, line_in

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORLD = 3
NEVER_S = 60.0
PROGRAM = "tests/live/hang_programs_models.py"

HANGS = {
    "validated_alone": (
        "extra",
        ["Rank 1 issued all_gather", line_in(PROGRAM, "# in validation"), "which ranks 0 and 2 did not"],
    ),
    "layer_dropped": (
        "skipped",
        [
            "Rank 1 skipped all_gather",
            line_in(PROGRAM, "# each layer"),
            "module layers.1 in step 3",
            "module layers.2",
        ],
    ),
    "gradients_unsynced": (
        "closed",
        ["Rank 1 finished after as many steps as ranks 0 and 2, but with 1 collective fewer"],
    ),
    "worker_died": ("failed", ["Rank 1 failed with RuntimeError: DataLoader worker"]),
    "pair_of_other_size": (
        "mismatch",
        [
            "The size differs",
            line_in(PROGRAM, "# too much"),
            line_in(PROGRAM, "# too little"),
            "(32.0 MB",
            "(16.0 MB",
        ],
    ),
    "given_up": ("late", ["Rank 1 ", line_in(PROGRAM, "# with a limit")]),
}


@pytest.mark.parametrize("name", HANGS)
def test_it_is_named_with_rank_and_line(name: str, tmp_path: Path):
    why, words = HANGS[name]
    all_ranks = tuple(range(WORLD))
    run_ranks(hang_programs_models.run, WORLD, name, str(tmp_path), NEVER_S, may_die=all_ranks, limit_s=90)
    check_named(tmp_path, why, words)
