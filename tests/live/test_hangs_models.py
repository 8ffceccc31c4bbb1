"""Hangs and breakdowns of wrapped models, loaders and exchanges are named with rank, line and module."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import flights_of
from tests.live import hang_programs_models
from tests.live.launch import ROOT, run_ranks

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORLD = 3
NEVER_S = 60.0
SOURCE = (ROOT / "tests" / "live" / "hang_programs_models.py").read_text().splitlines()


def line_of(text: str) -> str:
    """Return where a line of the programs stands, as verdicts name it."""
    (number,) = [number for number, line in enumerate(SOURCE, start=1) if text in line]
    return f"tests/live/hang_programs_models.py:{number}"


HANGS = {
    "validated_alone": (
        "extra",
        ["Rank 1 issued all_gather", line_of("# in validation"), "which ranks 0 and 2 did not"],
    ),
    "layer_dropped": (
        "skipped",
        [
            "Rank 1 skipped all_gather",
            line_of("# each layer"),
            "module layers.1 in step 3",
            "module layers.2",
        ],
    ),
    "gradients_unsynced": (
        "closed",
        ["Rank 1 ended its audit after as many steps as ranks 0 and 2, but with 1 collective fewer"],
    ),
    "worker_died": ("failed", ["Rank 1 failed with RuntimeError: DataLoader worker"]),
    "pair_of_other_size": (
        "mismatch",
        ["The size differs", line_of("# too much"), line_of("# too little"), "(32.0 MB", "(16.0 MB"],
    ),
    "given_up": ("late", ["Rank 1 ", line_of("# with a limit")]),
}


@pytest.mark.parametrize("name", HANGS)
def test_it_is_named_with_rank_and_line(name: str, tmp_path: Path):
    why, words = HANGS[name]
    all_ranks = tuple(range(WORLD))
    run_ranks(hang_programs_models.run, WORLD, name, str(tmp_path), NEVER_S, may_die=all_ranks, limit_s=90)
    live = json.loads((tmp_path / "live.json").read_text())
    flights, now_ns, _ = flights_of(tmp_path / "run")
    after = diagnose(flights, now_ns)
    for verdict, reason in ((live["verdict"], live["why"]), (after.verdict, after.why)):
        assert reason == why, verdict
        for each in words:
            assert each in verdict
