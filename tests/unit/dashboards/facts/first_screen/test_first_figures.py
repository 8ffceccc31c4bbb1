"""Figures, places and remedies on the first screen: one figure of a time, and the argument of a small fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.first_screen import first_facts
from shardtoll.ledger import Figure, Finding, Notice, Remedy, Report, Where
from shardtoll.ledger.records.finding import Effort
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.unit.dashboards.terminal.test_first_screen import shown

FOUND = Finding("duplicated-compute", "info", "t", 4_000_000, None, 4_000_000, None, 1, (0,), Where())


def clause(text: str, code: str, effort: Effort = "a flag") -> str:
    return first_facts.remedy(replace(FOUND, remedy=Remedy(text, code, effort=effort)))


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("model = DDP(model, broadcast_buffers=False)", ", broadcast_buffers=False"),
        ("DistributedDataParallel(model, bucket_cap_mb=2.4)", ", bucket_cap_mb=2.4"),
        ('model = torch.compile(model, mode="reduce-overhead")', ', mode="reduce-overhead"'),
        ("s = Schedule(stages, n_microbatches=4 * len(stages))", ", n_microbatches=4 * len(stages)"),
        ("AdamW(model.parameters(), lr=lr, fused=True)", ", fused=True"),
        ("x = x.redistribute(placements=placements)", ""),
        ("y = x == 3", ""),
        ("out.contiguous()", ""),
    ],
)
def test_a_small_fix_names_the_argument_that_its_code_sets(code: str, named: str) -> None:
    assert clause("Turn it off", code) == f"Turn it off (fix: a flag{named})"
    # A larger fix is more than an argument, and one that the text names is not named twice.
    assert clause("Turn it off", code, "a few lines") == "Turn it off (fix: a few lines)"
    if named:
        said = f"Turn it off by {named[2:]}"
        assert clause(said, code, "one line") == f"{said} (fix: one line)"


def test_time_within_noise_has_one_figure() -> None:
    assert first_facts.figures(FOUND, 5e6) == ["toll 4.00 ms (within noise)"] * 3
    assert first_facts.figures(FOUND, 3e6)[0] == "toll 4.00 ms · saving 4.00 ms"
    half = replace(FOUND, saving_ns=2_000_000)
    assert first_facts.figures(half, 5e6)[0] == "toll 4.00 ms (within noise) · saving 2.00 ms"


def test_late_launches_of_some_ranks_say_which_finding_is_of_the_latest_one() -> None:
    bound = Finding("launch-bound", "warning", "t", 9_000_000, None, 9_000_000, None, 1, (0, 1, 2), Where())
    late = replace(
        bound, kind="straggler", saving_ns=0, ranks=(3,), figures=(Figure("late_launches_ns", 1, "ns"),)
    )
    report = replace(sample_reports.report(), findings=(bound, late))
    assert first_facts.place(bound, report) == "whole step, ranks 0-2 (rank 3: finding 2)"
    alone = replace(report, findings=(bound,))
    assert first_facts.place(bound, alone) == "whole step, ranks 0-2"


def test_a_trace_without_marked_steps_says_so_above_its_figures() -> None:
    def of(*notices: Notice, source: str = "trace", workload: str | None = None) -> Report:
        report = sample_reports.report()
        tables = {**report.tables, "notices": to_table("notices", list(notices))}
        return replace(report, tables=tables, run=replace(report.run, source=source, workload=workload))

    none = [Notice(rank, "no-steps", "t") for rank in range(4)]
    unmarked = of(*none)
    said = "No steps are marked: figures are of the whole recording, start-up included; call prof.step()"
    lines = shown(unmarked, 100).splitlines()
    bars = next(place for place, line in enumerate(lines) if line.startswith("whole recording: "))
    assert said in lines[:bars]
    assert summary.mean_of(unmarked) == "the whole recording"
    serving = summary.no_marks(of(*none, workload="inference"))
    assert serving is not None
    assert serving.endswith("; put record_function around each pass")
    assert summary.no_marks(of()) is None
    # One trace without marks does not deny those of the others.
    assert summary.no_marks(of(none[2])) is None
    assert summary.no_marks(of(*none, source="live")) is None
