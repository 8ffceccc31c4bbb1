"""Reports of runs whose steps were surveyed or only watched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.attempts.side_by_side import Attempt, rows
from shardtoll.dashboards.exports import markdown
from shardtoll.dashboards.facts import figures_of_run, step_times, summary
from shardtoll.dashboards.facts.first_screen import first_facts
from shardtoll.dashboards.page import notebook, page
from shardtoll.dashboards.page.html import tables
from shardtoll.dashboards.page.views import anatomy
from shardtoll.dashboards.terminal import terminal
from shardtoll.ledger import Report, Step
from shardtoll.ledger.tables.tables import to_records, to_table
from tests import sample_reports
from tests.matched import with_unbilled

MS = 1_000_000
pytestmark = pytest.mark.usefixtures("plain_terminal")

SURVEYED = Step(0, 0, 0, 40 * MS, 20 * MS, 8 * MS, 0, 2 * MS, 10 * MS, capture_ns=10 * MS)
WATCHED = Step(1, 0, 0, 25 * MS, 0, 6 * MS, 0, 0, 19 * MS, capture_ns=1 * MS, level="watch")


def of(*steps: Step) -> Report:
    """The sample report with these steps of two ranks."""
    both = [replace(step, rank=rank) for step in steps for rank in (0, 1)]
    whole = sample_reports.report()
    return replace(whole, tables={**whole.tables, "steps": to_table("steps", both)})


def mixed() -> Report:
    return of(SURVEYED, *(replace(WATCHED, step=number) for number in range(1, 100)))


def watched() -> Report:
    return of(WATCHED, replace(WATCHED, step=2))


def shown(report: Report, width: int, capsys: pytest.CaptureFixture[str]) -> str:
    terminal.show(report, width)
    return " ".join(capsys.readouterr().out.split())


def test_parts_are_of_surveyed_steps_and_the_step_of_watched_ones():
    time, _ = step_times.rank_times(mixed())
    assert (time.steps, time.total_ns, time.capture_ns) == (1, 40 * MS, 10 * MS)
    assert time.parts_ns == (20 * MS, 8 * MS, 0, 2 * MS, 10 * MS)
    assert (time.step_ns, time.watched_ns, time.watched_comm_ns) == (24 * MS, 24 * MS, 6 * MS)


def test_the_step_is_not_that_which_one_rank_surveyed_alone():
    both = [replace(step, rank=rank) for step in (SURVEYED, WATCHED) for rank in (0, 1)]
    waiting = replace(WATCHED, step=2, duration_ns=40 * MS, exposed_comm_ns=21 * MS)
    report = of()
    table = to_table("steps", [*both, waiting, replace(SURVEYED, step=2, rank=1)])
    report = replace(report, tables={**report.tables, "steps": table})
    assert [time.step_ns for time in step_times.rank_times(report)] == [24 * MS, 24 * MS]
    told = {row.label: row.cells[0] for row in rows([Attempt("one", "", report)])}
    assert told["exposed communication"] == "6.00 ms"


def test_parts_that_watched_steps_do_not_tell_are_unknown():
    time, _ = step_times.rank_times(watched())
    assert time.parts_ns == (None, 6 * MS, None, None, 18 * MS)
    assert (time.steps, time.total_ns) == (2, 24 * MS)


def untimed(report: Report, numbers: tuple[int, ...]) -> Report:
    """The report, with a collective of unknown exposed time on each rank in these steps, which say 0."""
    (row, *_) = to_records("collectives", report.tables["collectives"])
    rows = [replace(row, step=number, rank=rank, exposed_ns=None) for number in numbers for rank in (0, 1)]
    steps = [
        replace(step, exposed_comm_ns=0, unattributed_ns=step.duration_ns) if step.step in numbers else step
        for step in to_records("steps", report.tables["steps"])
    ]
    changed = {"collectives": to_table("collectives", rows), "steps": to_table("steps", steps)}
    return replace(report, tables={**report.tables, **changed})


def test_a_watched_step_without_times_is_in_no_mean_of_exposed_communication(
    capsys: pytest.CaptureFixture[str],
):
    report = untimed(mixed(), (98, 99))
    time, _ = step_times.rank_times(report)
    assert (time.watched_ns, time.watched_comm_ns) == (24 * MS, 6 * MS)
    time, _ = step_times.rank_times(untimed(mixed(), tuple(range(1, 100))))
    assert (time.watched_ns, time.watched_comm_ns) == (24 * MS, None)
    text = shown(untimed(mixed(), tuple(range(1, 100))), 80, capsys)
    assert "watched steps: 24.0 ms, exposed comm unknown of it" in text


def test_watched_steps_alone_are_divided_where_one_tells():
    time, _ = step_times.rank_times(untimed(watched(), (2,)))
    assert time.parts_ns == (None, 6 * MS, None, None, 18 * MS)
    assert (time.steps, time.total_ns, time.left_out_ns) == (1, 24 * MS, 1 * MS)
    time, _ = step_times.rank_times(untimed(watched(), (1, 2)))
    assert time.parts_ns == (None, None, None, None, 24 * MS)


def test_a_lower_bound_of_exposed_communication_is_no_number_to_follow():
    told = figures_of_run.scalars(watched())
    assert told["exposed_ratio"] == pytest.approx(6 / 24)
    (row, *_) = to_records("collectives", watched().tables["collectives"])
    rows = [replace(row, step=1, rank=rank, exposed_ns=None) for rank in (0, 1)]
    report = watched()
    report = replace(report, tables={**report.tables, "collectives": to_table("collectives", rows)})
    (time, _) = step_times.rank_times(report)
    assert (time.watched_comm_ns, time.comm_at_least) == (6 * MS, True)
    found = figures_of_run.scalars(report)
    missing = {"exposed_ratio", "step_seconds/exposed_comm", "step_seconds/unattributed"}
    assert missing <= told.keys()
    assert not missing & found.keys()
    assert found["step_seconds/total"] == told["step_seconds/total"]


@pytest.mark.parametrize("width", [60, 160])
def test_slowest_stands_by_the_times_that_are_shown(width: int, capsys: pytest.CaptureFixture[str]):
    """Rank 0 takes longer in surveyed steps, rank 1 in watched ones."""
    long = replace(SURVEYED, duration_ns=50 * MS, idle_ns=12 * MS)
    slow = replace(WATCHED, rank=1, duration_ns=30 * MS, unattributed_ns=24 * MS)
    whole = sample_reports.report()
    table = to_table("steps", [long, replace(SURVEYED, rank=1), WATCHED, slow])
    report = replace(whole, tables={**whole.tables, "steps": table})
    text = shown(report, width, capsys)
    assert "rank 0 slowest surveyed" in text
    assert "rank 1 slowest watched" in text
    bars = anatomy.figure(report).data[0]
    assert bars["y"] == ["rank 0 (slowest)", "rank 1"]
    assert "0 <b>slowest surveyed</b>" in tables.steps(report)


def test_capture_of_its_own_makes_no_rank_the_slowest():
    """Every view leaves capture out of watched steps: rank 0 takes longer with it, and rank 1 without it."""
    longer = {"duration_ns": 40 * MS, "capture_ns": 15 * MS, "unattributed_ns": 34 * MS}
    slow = replace(WATCHED, rank=1, duration_ns=30 * MS, unattributed_ns=24 * MS)
    table = to_table("steps", [replace(WATCHED, **longer), slow])
    whole = sample_reports.report()
    times = step_times.rank_times(replace(whole, tables={**whole.tables, "steps": table}))
    assert times[0].total_ns + times[0].left_out_ns > times[1].total_ns + times[1].left_out_ns
    assert step_times.marks(times) == {(1,): "slowest"}


def test_the_slowest_rank_is_that_of_the_watched_steps():
    slow = replace(WATCHED, step=2, rank=1, duration_ns=30 * MS, unattributed_ns=24 * MS)
    table = to_table("steps", [SURVEYED, replace(SURVEYED, rank=1), replace(WATCHED, step=2), slow])
    whole = sample_reports.report()
    worst = step_times.slowest(step_times.rank_times(replace(whole, tables={**whole.tables, "steps": table})))
    assert worst is not None
    assert worst.ranks == (1,)


def test_ranks_folded_into_one_keep_what_watched_steps_tell():
    times = step_times.rank_times(mixed())
    _, rest = step_times.fold([*times, replace(times[0], ranks=(2,), watched_ns=26 * MS)], 2)
    assert rest is not None
    assert rest.watched_ns == 24 * MS
    assert rest.watched_comm_ns == 6 * MS
    _, unknown = step_times.fold([*times, *step_times.rank_times(watched())], 1)
    assert unknown is not None
    assert unknown.parts_ns[0] is None


def test_levels_in_words():
    assert summary.levels(mixed()) == "100 steps: 1 surveyed (0), 99 watched"
    more = [replace(SURVEYED, step=number) for number in (0, 1, 2, 3, 102, 202)]
    assert (
        summary.levels(of(*more, replace(WATCHED, step=4)))
        == "7 steps: 6 surveyed (0-3, 102, 202), 1 watched"
    )
    many = [replace(SURVEYED, step=2 * number) for number in range(7)]
    assert summary.levels(of(*many, replace(WATCHED, step=1))) == "8 steps: 7 surveyed, 1 watched"
    assert summary.levels(watched()) == "2 steps: 0 surveyed, 2 watched"
    assert summary.levels(sample_reports.report()) is None
    assert "in 100 steps (1 surveyed, 99 watched) of ranks" in summary.checked(mixed())


def test_unattributed_time_of_watched_steps_is_no_unbilled_time():
    bare = with_unbilled(replace(watched(), findings=sample_reports.report().findings[1:]))
    assert summary.second_line(bare) is None


@pytest.mark.parametrize("width", [60, 80, 140])
def test_terminal(width: int, capsys: pytest.CaptureFixture[str]):
    text = shown(mixed(), width, capsys)
    assert "100 steps: 1 surveyed (0), 99 watched" in text
    assert "only one surveyed; watched ones tell time and waits only" in text
    for value in ("20.0 ms", "40.0 ms", "24.0 ms", "6.00 ms"):
        assert value in text.replace("\xa0", " ")


@pytest.mark.parametrize("width", [60, 80, 140])
def test_terminal_where_nothing_was_surveyed(width: int, capsys: pytest.CaptureFixture[str]):
    text = shown(watched(), width, capsys)
    assert "2 steps: 0 surveyed, 2 watched" in text
    assert "unknown" in text
    assert "all but exposed comm is unattributed" in text


def test_the_base_of_tolls_and_exposed_times_stands_beside_them():
    said = "; times are means over the watched steps if these tell them, counts and bytes over all"
    assert summary.base_of_tolls(mixed()) == said
    assert summary.base_of_traffic(mixed()) == "; times are those of watched steps"
    for one in (of(SURVEYED), watched(), sample_reports.report()):
        assert summary.base_of_tolls(one) == summary.base_of_traffic(one) == ""


def test_page():
    text = page.render(mixed())
    assert "<dt>steps</dt><dd>100 steps: 1 surveyed (0), 99 watched</dd>" in text
    assert "The parts are the mean over the surveyed steps" in text
    assert '<th scope="col">watched steps: step</th>' in text
    assert "In a watched step what is not exposed communication is unattributed." in page.render(watched())


def test_notebook():
    assert "<p>100 steps: 1 surveyed (0), 99 watched</p>" in notebook.render(mixed())
    assert "watched" not in notebook.render(sample_reports.report())


def test_side_by_side():
    told = {row.label: row.cells[0] for row in rows([Attempt("one", "", mixed())])}
    assert told["step, capture left out"] == "24.0 ms"
    assert told["exposed communication"] == "6.00 ms"
    once = {row.label: row.cells[0] for row in rows([Attempt("one", "", of(SURVEYED))])}
    # Operators are on record of the surveyed step alone: it is what they are divided by.
    assert told["matmul FLOPs, all ranks"] == once["matmul FLOPs, all ranks"] != "unknown"
    assert {row.label: row.cells[0] for row in rows([Attempt("one", "", watched())])}[
        "matmul FLOPs, all ranks"
    ] == "unknown"


DIVIDED = replace(WATCHED, compute_ns=15 * MS, idle_ns=3 * MS, unattributed_ns=1 * MS, parts_error_ns=2 * MS)


def test_parts_are_those_of_watched_steps_that_are_divided(capsys: pytest.CaptureFixture[str]):
    report = of(SURVEYED, *(replace(DIVIDED, step=number) for number in range(1, 100)))
    time, _ = step_times.rank_times(report)
    assert time.parts_ns == (15 * MS, 6 * MS, 0, 3 * MS, 0)
    assert (time.steps, time.total_ns, time.left_out_ns, time.surveyed_ns) == (99, 24 * MS, 1 * MS, 40 * MS)
    assert sum(part for part in time.parts_ns if part is not None) == time.total_ns
    assert not step_times.mixed([time])
    told = shown(report, 140, capsys)
    assert "mean of 99 watched steps; compute and idle are divided as in 1 surveyed one, ± 2.00 ms" in told
    assert (
        "Recording costs a surveyed step 10.0 ms of its 40.0 ms, and a watched one 1.00 ms; no time here "
        "includes it."
    ) in told
    assert any("mean of 99 watched steps" in note for note in anatomy.figure(report).notes)


def test_every_view_shows_one_time_for_the_step_of_one_run(capsys: pytest.CaptureFixture[str]):
    """The bars of the first screen, the table of steps, its page and Markdown; capture is in none of them."""
    long = replace(DIVIDED, duration_ns=29 * MS, unattributed_ns=5 * MS, capture_ns=5 * MS)
    report = of(SURVEYED, *(replace(long, step=number) for number in range(1, 100)))
    bar, _ = first_facts.bars(report)
    time, _ = step_times.rank_times(report)
    assert bar.total_ns == time.total_ns == time.step_ns == 24 * MS
    assert sum(part_ns for _, part_ns in bar.parts) == bar.total_ns
    told = shown(report, 140, capsys)
    assert "24.0 ms" in told
    for text in (told, tables.steps(report), markdown.markdown(report)):
        assert "29.0 ms" not in text
        assert "of which capture" not in text


def test_where_nothing_was_watched_times_are_said_to_include_the_recording(
    capsys: pytest.CaptureFixture[str],
):
    told = shown(of(SURVEYED), 140, capsys)
    assert "Times include the recording: at least 10.0 ms of the 40.0 ms step (capture)." in told


def test_a_trace_includes_no_recording_of_ours():
    report = of(SURVEYED)
    assert summary.recording(replace(report, run=replace(report.run, source="trace"))) is None
    assert summary.recording(of(replace(SURVEYED, capture_ns=0))) is None
