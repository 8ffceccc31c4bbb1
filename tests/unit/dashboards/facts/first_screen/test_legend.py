"""What toll, floor and saving mean stands on the first screen, and whether tolls add up, and noise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.facts.first_screen import first_facts
from shardtoll.dashboards.facts.first_screen.drawn import IDLE, UNATTRIBUTED
from shardtoll.dashboards.facts.first_screen.legend import exceed, legend, words
from shardtoll.dashboards.page.html.first import first_screen
from shardtoll.dashboards.terminal.first_screen import LINES
from shardtoll.ledger import Finding, Report, Where
from tests import sample_reports
from tests.unit.dashboards.facts.test_levels import DIVIDED, SURVEYED
from tests.unit.dashboards.facts.test_levels import of as of_steps
from tests.unit.dashboards.terminal.test_first_screen import shown

MS = 1_000_000
COST = "toll: cost per step"


def cost(kind: str, toll_ms: float, floor_ms: int | None = None) -> Finding:
    toll = round(toll_ms * MS)
    floor = None if floor_ms is None else floor_ms * MS
    return Finding(kind, "warning", "t", toll, floor, toll, None, 1, (0, 1, 2, 3), Where())


def of(*findings: Finding) -> Report:
    return replace(sample_reports.report(), findings=findings)


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (100, f"{COST} on the worst rank · floor: least transfer time · saving: the most the fix gains"),
        (95, f"{COST}, worst rank · floor: least transfer time · saving: most the fix gains"),
        (80, f"{COST} on the worst rank · saving: the most that the fix gains"),
    ],
)
def test_every_figure_shown_is_explained_within_the_screen(width: int, words: str):
    report = of(*(cost("latency-bound", 2, 1) for _ in range(9)))
    text = shown(report, width)
    assert words in text.splitlines()
    assert len(text.splitlines()) <= LINES


def test_only_figures_that_are_shown_are_explained():
    report = of(replace(cost("implicit-redistribute", 9, 1), where=Where(source="train.py:42 (step)")))
    assert "floor: " in shown(report, 110)
    # At 80 columns the place takes the room of the floor.
    assert "floor" not in shown(report, 90)
    assert "toll:" not in shown(of(replace(cost("host-sync", 1), toll_ns=None, saving_ns=None)), 100)
    assert legend(report, report.findings, ()) is None


def test_tolls_above_what_any_rank_loses_are_said_not_to_add_up():
    """The sample's ranks have about 15 ms of exposed communication in a step of about 53 ms."""
    several = of(cost("implicit-redistribute", 9), cost("implicit-redistribute", 8))
    said = "toll: cost per step on the worst rank; do not sum tolls"
    assert said in shown(several, 100)
    assert said in first_screen(several)
    assert "do not sum tolls" in shown(several, 80)
    for fine in (
        of(cost("implicit-redistribute", 9), cost("implicit-redistribute", 2)),
        of(cost("host-sync", 9), cost("implicit-redistribute", 8)),
        of(cost("implicit-redistribute", 40)),
    ):
        assert "add up" not in shown(fine, 100)
        assert not exceed(fine, fine.findings)
    assert exceed(of(), (cost("host-sync", 30), cost("data-stall", 30)))


def divided(*findings: Finding) -> Report:
    """Return a report whose watched steps are divided to within 2 ms."""
    return replace(
        of_steps(SURVEYED, *(replace(DIVIDED, step=number) for number in range(1, 100))), findings=findings
    )


def test_a_toll_below_the_error_of_the_parts_is_within_noise():
    report = divided(cost("host-sync", 1.5), cost("data-stall", 3), cost("latency-bound", 1.4))
    text = shown(report, 100)
    assert "± 2.00 ms" in text
    assert "toll 1.50 ms (within noise)" in text
    # Communication is timed by itself, and 3 ms are more than the error.
    assert text.count("within noise") == 1
    assert "compute and idle ± 2.00 ms" in shown(report, 80)
    assert "toll 1.50 ms (within noise)" in first_screen(report)
    assert first_facts.figures(report.findings[1])[0] == "toll 1.50 ms · saving 1.50 ms"


def test_a_larger_toll_below_a_smaller_one_is_explained():
    small, large = cost("straggler", 4), replace(cost("exposed-communication", 9), severity="info")
    said = legend(of(small, large), (small, large), ("toll", "saving"), 100)
    assert said is not None
    assert said.endswith(" · warnings before infos")
    assert len(said) <= 100
    # In order, or of one severity, nothing is to be explained.
    for first, second in (
        (replace(small, toll_ns=10 * MS), large),
        (small, replace(large, severity="warning")),
    ):
        said = legend(of(first, second), (first, second), ("toll", "saving"), 100)
        assert said is not None
        assert "infos" not in said


def test_the_words_by_the_bars_are_explained_where_they_stand():
    # The bars of watched steps leave the recording out.
    said = "surveyed step: recorded whole · watched step: collectives only · unattributed: in no record"
    narrow = "surveyed: recorded whole · watched: collectives only · unattributed: no record"
    report = divided()
    drawn = (0, UNATTRIBUTED)
    assert words(report, drawn, 110) == said
    assert words(report, drawn, 80) == narrow
    assert "surveyed step: recorded whole · watched step: collectives only" in first_screen(report)
    # Every step was surveyed: only what is drawn is explained.
    assert words(sample_reports.report(), drawn) == "unattributed: recording, or in no record"
    assert words(sample_reports.report(), (0,)) is None
    said = "unattributed: recording, or in no record · idle: no operator runs, but Python may"
    assert said in shown(sample_reports.report(), 100).splitlines()


def test_the_words_by_the_bars_are_never_cut():
    report = replace(divided(), run=replace(divided().run, device="cpu"))
    for width in range(40, 140):
        said = words(report, (0, IDLE, UNATTRIBUTED), width)
        assert said is not None
        assert len(said) <= width, width
    assert words(report, (0, IDLE, UNATTRIBUTED), 80) == (
        "watched: collectives · unattributed: no record · idle: no operator"
    )
    assert words(report, (0, IDLE, UNATTRIBUTED), 30) == "idle: no operator"


def test_a_saving_beyond_toll_minus_floor_says_how():
    hidden = of(cost("exposed-communication", 9, 4))
    assert hidden.findings[0].beyond_floor == "hidden"
    assert first_facts.figures(hidden.findings[0]) == [
        "toll 9.00 ms · floor 4.00 ms · saving 9.00 ms (if hidden)",
        "toll 9.00 ms · saving 9.00 ms",
        "saving 9.00 ms",
    ]
    assert "saving 9.00 ms (if hidden)" in shown(hidden, 110)
    said = legend(hidden, hidden.findings, ("toll", "floor", "saving"))
    assert said is not None
    assert "floor: least time for its transfers · saving" in said
    removed = of(cost("implicit-redistribute", 9, 4))
    assert first_facts.figures(removed.findings[0])[0].endswith("saving 9.00 ms (if gone)")
    plain = of(replace(cost("exposed-communication", 9, 4), saving_ns=5 * MS))
    assert plain.findings[0].beyond_floor is None
    assert first_facts.figures(plain.findings[0])[0].endswith("saving 5.00 ms")


def test_a_predicted_saving_is_no_upper_bound():
    predicted = of(replace(cost("exposed-communication", 9), replayed="without it"))
    assert "the most" not in shown(predicted, 100)
    assert "the most that the fix gains" in shown(of(cost("exposed-communication", 9)), 100)
