"""Programs that hang are named with rank and line, while they hang and afterwards; others are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import flights_of
from tests.live import hang_programs
from tests.live.launch import ROOT, run_ranks

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORLD = 3
SOURCE = (ROOT / "samples" / "hangs" / "programs.py").read_text().splitlines()


def line_of(text: str, nth: int = 0) -> str:
    """Return where a line of the samples stands, as verdicts name it."""
    numbers = [number for number, line in enumerate(SOURCE, start=1) if text in line]
    return f"samples/hangs/programs.py:{numbers[nth]} (step)"


HANGS = {
    "skipped": ("skipped", ["Rank 1 skipped broadcast", line_of("dist.broadcast(torch.ones(4), 0)")]),
    "sizes": (
        "mismatch",
        ["size differs: rank 1 is in all_reduce 4", line_of("dist.all_reduce(torch.ones(rows))")],
    ),
    "swapped": ("order", ["rank 1 issued all_reduce 4", line_of("group=group)")]),
    "subgroup": ("skipped", ["Rank 1 skipped barrier 4", line_of("dist.barrier(group=pair)")]),
    "exception": (
        "failed",
        ["Rank 1 failed with ValueError: a batch without labels", line_of("raise ValueError")],
    ),
    "dead": ("dead", ["Rank 1 died in step 3", "rank"]),
    "unmatched": ("no peer", ["Rank 1 ", "in send to rank 0", line_of("dist.send("), "no matching recv"]),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_named_with_rank_and_line(name: str, tmp_path: Path):
    why, words = HANGS[name]
    run_ranks(hang_programs.run, WORLD, name, str(tmp_path), may_die=tuple(range(WORLD)), limit_s=90)
    live = json.loads((tmp_path / "live.json").read_text())
    flights, now_ns, notes = flights_of(tmp_path / "run")
    assert notes == []
    for verdict, told in (
        (live["verdict"], live["why"]),
        (lambda a: (a.verdict, a.why))(diagnose(flights, now_ns)),
    ):
        assert told == why, verdict
        for each in words:
            assert each in verdict


def test_a_slow_rank_is_no_hang(tmp_path: Path):
    run_ranks(hang_programs.run, WORLD, "slow", str(tmp_path), limit_s=90)
    assert not (tmp_path / "live.json").exists()
    flights, now_ns, _ = flights_of(tmp_path / "run")
    assert diagnose(flights, now_ns).why == "none"
    assert {each.state for each in flights} == {"closed"}
