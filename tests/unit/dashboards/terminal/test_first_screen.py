"""The first screen: within 24 lines and the terminal's width, with the verdict and five findings."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from shardtoll.dashboards.facts.first_screen import first_facts, together
from shardtoll.dashboards.facts.first_screen.drawn import drawn_ns, words
from shardtoll.dashboards.facts.step_times import RankTime
from shardtoll.dashboards.page.html import tables
from shardtoll.dashboards.terminal import middle, terminal
from shardtoll.dashboards.terminal import steps as terminal_steps
from shardtoll.dashboards.terminal.first_screen import LINES, FirstScreen
from shardtoll.dashboards.terminal.one_finding import one_finding
from shardtoll.dashboards.terminal.screen import Screen
from shardtoll.ledger import Figure, Finding, Notice, Remedy, Report, Where
from shardtoll.ledger.answers.overlap import Overlap
from shardtoll.ledger.tables.tables import to_table
from shardtoll.ledger.words import human
from tests import sample_reports

MORE = (("More", "shardtoll report runs/a --all", "one finding: --finding 1; page: -o bill.html"),)


def shown(
    report: Report, width: int, more: tuple[tuple[str, str, str], ...] = MORE, encoding: str = "utf-8"
) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(width=width, highlight=False, color_system=None, file=stream, legacy_windows=False)
    console.print(FirstScreen(report, more))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_a_run_whose_values_nobody_compared_says_so_in_one_line_if_there_is_room() -> None:
    whole = sample_reports.report()
    assert "--checks" not in shown(whole, 100), "a wrong gradient was found, so somebody looked"
    costs = [finding for finding in whole.findings if finding.kind != "wrong-gradient"]
    for width in (100, 80, 60):
        lines = shown(replace(whole, findings=tuple(costs[:1])), width).splitlines()
        (said,) = [line for line in lines if "--checks gradients,replicas,data" in line]
        assert len(said) <= width
        assert lines.index(said) < next(place for place, line in enumerate(lines) if line.startswith("More"))
        assert len(shown(replace(whole, findings=tuple(costs * 9)), width).splitlines()) <= LINES


def many(report: Report, count: int) -> Report:
    return replace(report, findings=tuple(report.findings) * count)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", ["report", "empty", "unknown"])
def test_golden(name: str, width: int, golden: Callable[[str, str], None]):
    text = shown(getattr(sample_reports, name)(), width)
    golden(f"first-screen-{name}-{width}.txt", "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
@pytest.mark.parametrize("name", ["report", "hostile", "unknown", "empty"])
def test_nothing_is_wider_than_the_terminal(name: str, width: int):
    text = shown(many(getattr(sample_reports, name)(), 3), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("name", ["report", "hostile", "unknown", "empty"])
@pytest.mark.parametrize("missing", [False, True])
def test_it_is_never_longer_than_a_terminal_as_it_opens(
    name: str, width: int, missing: bool, monkeypatch: pytest.MonkeyPatch
):
    report = many(getattr(sample_reports, name)(), 3)
    if missing:
        report = replace(report, run=replace(report.run, world_size=2 * report.run.world_size, mesh={}))
    monkeypatch.setattr(Report, "verdict", " ".join(["A verdict of many words."] * 300))
    text = shown(report, width)
    assert len(text.splitlines()) <= LINES
    assert "…" in text


@pytest.mark.parametrize(
    ("count", "words"), [(5, "More: "), (6, "Also finding 6: "), (9, "Also findings 6-9: ")]
)
def test_how_many_findings_have_no_row_is_said(count: int, words: str):
    made = tuple(
        Finding(
            "host-sync", "warning", "t", 9_000_000 - nth, None, 1, None, 1, (0,), Where(source=f"a.py:{nth}")
        )
        for nth in range(count)
    )
    report = replace(sample_reports.report(), findings=made, overlaps=())
    assert f"{words}shardtoll report runs/a --all" in shown(report, 100)


def test_a_verdict_that_fits_is_whole():
    report = sample_reports.report()
    assert report.verdict in " ".join(shown(report, 100).split())


def test_shares_of_a_bar_are_those_of_its_step():
    for bar in first_facts.bars(sample_reports.report()):
        assert sum(part_ns for _, part_ns in bar.parts) == pytest.approx(bar.total_ns)
        largest = max(bar.parts, key=lambda part: part[1])
        said = f"{words(largest[0], split=bar.split)[0]} {human.share(largest[1], bar.total_ns)}"
        assert bar.shares[0] == said
        assert said in shown(sample_reports.report(), 200)


def test_waiting_for_ranks_is_drawn_apart_from_moving_data(monkeypatch: pytest.MonkeyPatch):
    """15 ms are exposed: 9 ms of waiting, 4 ms of moving; of the rest it is unknown which."""
    time = RankTime((0,), 1, 20.0, (5.0, 15.0, 0.0, 0.0, 0.0), 9.0, 4.0, 2.0, 0.0, 20.0, 0.0)
    assert drawn_ns(time) == (5.0, 9.0, 4.0, 2.0, 0.0, 0.0, 0.0)
    # Neither known: all of it is exposed communication, as before.
    unsplit = replace(time, waiting_ns=0.0, moving_ns=0.0, unsplit_ns=15.0)
    assert drawn_ns(unsplit)[1:4] == (0.0, 0.0, 15.0)
    assert drawn_ns(replace(time, parts_ns=(None, None, None, None, 20.0)))[1:4] == (None, None, None)
    # A report of before this field: how it is divided is unknown.
    assert drawn_ns(replace(time, unsplit_ns=None))[1:4] == (0.0, 0.0, 15.0)
    monkeypatch.setattr(first_facts.step_times, "rank_times", lambda _: [time])
    text = shown(sample_reports.report(), 120)
    assert "▞ waiting for ranks  ▓ moving data  ▚ exposed comm, waiting or moving" in text
    assert "waiting 45 % · compute 25 % · moving data 20 % · other exposed comm 10 %" in text
    assert "▞ waiting  ▓ moving data" in shown(sample_reports.report(), 80)
    monkeypatch.setattr(first_facts.step_times, "rank_times", lambda _: [unsplit])
    assert "▚ exposed comm\n" in shown(sample_reports.report(), 100)


def test_many_ranks_are_three_bars():
    assert len(first_facts.bars(sample_reports.report())) <= first_facts.RANKS


def test_the_legend_gives_way_to_no_words_on_how_parts_were_divided(monkeypatch: pytest.MonkeyPatch):
    report = sample_reports.report()
    long, brief = "mean of 12 watched steps; compute and idle are divided as in 8 surveyed ones", "mean of 12"
    monkeypatch.setattr(middle.summary, "mean_of", lambda _, brief=False: "mean of 12" if brief else long)
    marks = "█ compute  ▓ moving data"
    assert f"step, {long}: {marks}" in shown(report, 200)
    assert f"\n{brief}: {marks}" in shown(report, 100)


def test_figures_give_way_to_the_place():
    wide, narrow, narrowest = first_facts.figures(
        Finding("straggler", "warning", "t", 9_000_000, 1_000_000, 8_000_000, None, 1, (0,), Where())
    )
    assert wide.split(" · ") == ["toll 9.00 ms", "floor 1.00 ms", "saving 8.00 ms"]
    assert narrow.split(" · ") == ["toll 9.00 ms", "saving 8.00 ms"]
    assert narrowest == "saving 8.00 ms"


def test_the_run_line_says_what_the_recorded_steps_are():
    def line(*notices: Notice, width: int | None = None) -> str:
        report = sample_reports.report()
        tables = {**report.tables, "notices": to_table("notices", list(notices))}
        return first_facts.run_line(replace(report, tables=tables), width)

    unmarked = tuple(Notice(rank, "no-steps", "t") for rank in range(4))
    torn = tuple(Notice(rank, "launches-unseen", "t") for rank in range(4))
    assert " · 2 steps · " in line(Notice(0, "sizes-unknown", "t"))
    assert " · no steps marked · " in line(*unmarked)
    assert " · 2 steps (rank 2 marks none) · " in line(unmarked[2])
    assert " · 2 steps (begins in mid-step) · " in line(*torn)
    assert " · no steps marked (ranks 1, 3 begin in mid-step) · " in line(*unmarked, torn[1], torn[3])
    assert "rank 1 begins in mid-step" in line(torn[1])
    assert " · no steps marked (cut in mid-step) · " in line(*unmarked, *torn, width=60)


def test_the_fabric_stays_in_a_run_line_that_is_too_long():
    report = sample_reports.report()
    run = replace(report.run, hosts=("a", "b"), mesh={"dp": 2, "tp": 2})
    report = replace(report, run=run)
    whole = "4 ranks · cpu · gloo · 2 hosts · mesh dp=2 x tp=2 · 2 steps · fabric loopback-gloo"
    assert first_facts.run_line(report) == whole
    assert first_facts.run_line(report, len(whole)) == whole
    assert first_facts.run_line(report, len(whole) - 1) == whole.replace(" · gloo", "")
    assert (
        first_facts.run_line(report, 70)
        == "4 ranks · cpu · mesh dp=2 x tp=2 · 2 steps · fabric loopback-gloo"
    )
    assert first_facts.run_line(report, 40) == "4 ranks · cpu · 2 steps · fabric loopback-gloo"


def test_the_saving_stays_at_80_columns():
    finding = Finding(
        *("implicit-redistribute", "warning", "t", 112_600_000, 60_600, 112_400_000, None, 1, (0,)),
        Where(source="samples/dit_modulation/dtensor.py:57 (forward)"),
    )
    line = next(
        line
        for line in shown(replace(sample_reports.report(), findings=(finding,)), 80).splitlines()
        if "implicit" in line
    )
    assert line == " 1 warning implicit-redistribute  …or.py:57, rank 0  toll 113 ms · saving 112 ms"


def test_a_fix_that_saves_nothing_says_so():
    finding = Finding("pipeline-bubble", "warning", "t", 9_000_000, None, 0, None, 1, (0,), Where())
    assert first_facts.figures(finding)[0] == "toll 9.00 ms · saving 0"
    replayed = replace(finding, replayed="without it")
    assert first_facts.figures(replayed)[0] == "toll 9.00 ms · saving 0 (replayed)"


def test_a_late_host_that_launches_late_names_the_finding_that_holds_the_saving():
    bound = Finding("launch-bound", "warning", "t", 9_000_000, None, 9_000_000, None, 1, (0,), Where())
    late = replace(
        bound, kind="straggler", saving_ns=0, ranks=(1,), figures=(Figure("late_launches_ns", 1, "ns"),)
    )
    report = replace(sample_reports.report(), findings=(bound, late))
    assert first_facts.saved_with(report, 2) == 1
    assert first_facts.saved_with(report, 1) is None
    assert "toll 9.00 ms · saving: with finding 1" in shown(report, 100)


def test_findings_of_one_line_and_of_one_time_are_not_read_as_separate():
    made = [
        Finding(kind, "warning", "t", 9_000_000, None, 8_000_000, None, 1, (0,), Where(source=source))
        for kind, source in [
            ("implicit-redistribute", "train.py:42 (step)"),
            ("implicit-redistribute", "train.py:42 (step)"),
            ("exposed-communication", "train.py:7"),
        ]
    ]
    report = replace(sample_reports.report(), findings=tuple(made), overlaps=(Overlap((2, 3), 10_000_000),))
    assert together.on_one_screen(report, [1, 2, 3]) == [
        "Findings 2 and 3 overlap: together they cost at most 10.0 ms.",
        "Findings 1 and 2 are of one line, train.py:42: one change may fix both.",
    ]
    assert together.on_one_screen(report, [1, 3]) == []


@pytest.mark.parametrize("kinds", [("duplicated-compute",) * 2, ("implicit-redistribute", "latency-bound")])
def test_fixes_of_one_line_that_have_nothing_in_common_are_not_one_change(kinds: tuple[str, str]):
    where = Where(source="train.py:42 (step)")
    made = [Finding(kind, "warning", "t", 9, None, 8, None, 1, (0,), where) for kind in kinds]
    report = replace(sample_reports.report(), findings=tuple(made))
    assert not [line for line in together.on_one_screen(report, [1, 2]) if "of one line" in line]


def test_a_late_rank_and_waiting_for_launches_are_of_one_cause():
    late = Finding("straggler", "warning", "t", 9_000_000, None, 0, None, 1, (3,), Where())
    bound = Finding("launch-bound", "warning", "t", 9_000_000, None, 8_000_000, None, 1, (0,), Where())
    slow = replace(late, figures=(Figure("late_launches_ns", 5_000_000, "ns"),))
    said = [
        "Findings 1 and 2 have one cause: hosts launch late, most of all that of rank 3. "
        "Make launching faster on all ranks."
    ]
    for findings, sentences in (((bound, slow), said), ((bound, late), []), ((slow, late), [])):
        report = replace(sample_reports.report(), findings=findings)
        assert together.on_one_screen(report, [1, 2]) == sentences
        assert together.on_the_bill(report) == sentences


def test_a_sentence_under_a_finding_is_wrapped_and_never_cut():
    title = (
        "rank 0 sends the same tensor of parameters again in each micro-batch although no rank has changed it"
    )
    finding = Finding("host-sync", "warning", title, 9_000_000, None, None, None, 1, (0, 1, 2, 3), Where())
    overlap = Overlap((1, 2, 3), 10_000_000)
    report = replace(sample_reports.report(), findings=(finding,) * 3, overlaps=(overlap,))
    for width in (60, 80):
        lines = shown(report, width).splitlines()
        assert title in " ".join(" ".join(lines).split())
        assert "together they cost at most 10.0 ms." in " ".join(" ".join(lines).split())
        assert not any(line.endswith("…") for line in lines[6:])
        assert len(lines) <= LINES


def test_a_late_rank_and_its_own_reason_are_of_one_cause():
    saves = Finding("checkpoint-stall", "warning", "t", 28_000_000, None, None, None, 1, (0,), Where())
    late = replace(saves, kind="straggler", severity="info", toll_ns=34_000_000)
    report = replace(sample_reports.report(), findings=(saves, late))
    said = "Findings 1 and 2 have one cause: rank 0 is late by its checkpoint-stall. Fix finding 1."
    assert said in together.on_one_screen(report, [1, 2])
    # Of another rank, of too little, or of all ranks it is no reason for that lateness.
    for other in (
        replace(saves, ranks=(1,)),
        replace(saves, toll_ns=9_000_000),
        replace(saves, ranks=(0, 1)),
    ):
        linked = together.on_one_screen(replace(report, findings=(other, late)), [1, 2])
        assert not [line for line in linked if "one cause" in line]


def test_errors_of_one_parameter_are_said_to_have_one_cause():
    kinds = (
        ("unsynced-parameter", "a.weight"),
        ("wrong-gradient", "a.weight"),
        ("wrong-gradient", "b.weight"),
    )
    made = [
        Finding(kind, "error", "t", None, None, None, None, 1, (0,), Where(parameter=name))
        for kind, name in kinds
    ]
    report = replace(sample_reports.report(), findings=tuple(made))
    assert together.on_one_screen(report, [1, 2, 3]) == [
        "Findings 1 and 2 have one cause: fix finding 1, then report again."
    ]
    assert together.on_one_screen(report, [1, 3]) == []
    mild = replace(report, findings=(made[0], replace(made[1], severity="info")))
    assert together.on_one_screen(mild, [1, 2]) == []


def test_the_time_of_findings_not_shown_is_not_said_to_be_of_those_shown():
    finding = Finding("below-roofline", "warning", "t", 9_000_000, None, 8_000_000, None, 1, (0,), Where())
    overlap = Overlap((1, 2, 6), 20_000_000)
    report = replace(sample_reports.report(), findings=(finding,) * 6, overlaps=(overlap,))
    said = "Findings 1, 2 and 6 overlap: together they cost at most 20.0 ms."
    assert together.overlaps(report, [1, 2, 3, 4, 5]) == together.overlaps(report) == [said]
    assert together.overlaps(report, [2, 3, 4]) == []


def test_a_number_keeps_its_unit_in_the_verdict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Report, "verdict", f"{'word ' * 19}98.75 % of 12.3 ms")
    first, second = shown(sample_reports.report(), 100).splitlines()[:2]
    assert (first.split()[-1], second) == ("word", "98.75 % of 12.3 ms")


def times(*step_ns: float) -> list[RankTime]:
    return [
        RankTime((rank,), 1, took, (took, 0.0, 0.0, 0.0, 0.0), 0.0, 0.0, 0.0, 0.0, 0.0)
        for rank, took in enumerate(step_ns)
    ]


@pytest.mark.parametrize(
    ("step_ns", "late", "names"),
    [
        ((9.0, 9.0, 9.0, 9.0), (), ["mean of 4 ranks"]),
        ((9.0, 9.0, 9.05, 9.0), (1,), ["rank 1 late", "mean of 3 others"]),
        ((9.0, 9.0, 12.0, 9.0), (), ["rank 2 slowest", "mean of 3 others"]),
        ((9.0, 11.0, 12.0, 9.0), (), ["rank 1 2nd slowest", "rank 2 slowest", "mean of 2 others"]),
        ((9.0, 11.0, 12.0, 9.0), (0,), ["rank 0 late", "mean of 3 others"]),
        ((9.0, 11.0, 12.0, 9.0), (3, 0), ["rank 0 late", "rank 3 late", "mean of 2 others"]),
        ((9.0,) * 6, (5, 3, 0), ["rank 0 late", "rank 3 late", "rank 5 late", "mean of 3 others"]),
        ((9.0, 12.0), (0,), ["rank 0 late", "rank 1"]),
        ((9.0, 12.0), (), ["rank 0", "rank 1 slowest"]),
    ],
)
def test_a_rank_beside_a_mean_says_why_it_stands_there(
    step_ns: tuple[float, ...], late: tuple[int, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_facts.step_times, "rank_times", lambda _: times(*step_ns))
    monkeypatch.setattr(first_facts, "waited_for", lambda _: late)
    assert [bar.name for bar in first_facts.bars(sample_reports.report())] == names


def test_the_slowest_stage_of_a_pipeline_has_a_bar_of_its_own():
    def names(*ranks: int) -> list[str]:
        uneven = Finding("pipeline-imbalance", "warning", "t", 9_000_000, None, None, None, 1, ranks, Where())
        return [bar.name for bar in first_facts.bars(replace(sample_reports.report(), findings=(uneven,)))]

    assert names(1) == ["rank 1 slowest stage", "mean of 3 others"]
    assert not any("stage" in name for name in names(1, 2))


@pytest.mark.parametrize(
    ("severity", "toll_ms", "late"), [("warning", 1, (3,)), ("info", 9, (3,)), ("info", 1, ())]
)
def test_a_rank_is_marked_late_in_bars_and_tables_if_that_matters(
    severity: str, toll_ms: int, late: tuple[int, ...]
):
    """A step takes 53 ms; rank 2 is slowest, and the late rank is the one to look at."""
    toll = toll_ms * 1_000_000
    finding = Finding("straggler", severity, "t", toll, None, toll, None, 1, (3,), Where())
    report = replace(sample_reports.report(), findings=(finding,))
    assert first_facts.waited_for(report) == late
    mark = "rank 3 late" if late else "rank 2 slowest"
    assert any(bar.name == mark for bar in first_facts.bars(report))
    table = io.StringIO()
    Console(file=table, width=120).print(terminal_steps.steps(report, 120))
    assert mark in table.getvalue()
    assert ("slowest" in table.getvalue()) == (not late)
    assert f"<b>{mark.split()[-1]}</b>" in tables.steps(report)


@pytest.mark.parametrize(
    ("world_size", "late", "words"),
    [
        (2, (0,), "the other rank waits for the late rank"),
        (8, (0,), "the others wait for the late rank"),
        (8, (0, 1), "the others wait for the late ranks"),
        (3, (0, 1), "the other rank waits for the late ranks"),
        (2, (0, 1), "the ranks wait for each other"),
    ],
)
def test_ranks_that_left_no_records_wait_too(
    world_size: int, late: tuple[int, ...], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_facts, "waited_for", lambda _: late)
    monkeypatch.setattr(terminal_steps.step_times, "rank_times", lambda _: times(10.0, 12.0))
    base = sample_reports.report()
    run = replace(base.run, world_size=world_size, ranks_seen=(0, 1), rank_hosts=(), mesh={})
    tables_of_two = sample_reports.of_ranks(base.tables, (0, 1))
    tables_of_two["collectives"] = tables_of_two["collectives"].slice(0, 0)
    report = replace(base, run=run, tables=tables_of_two, groups=(), findings=())
    table = io.StringIO()
    Console(file=table, width=160).print(terminal_steps.steps(report, 160))
    assert f"; {words}\n" in "\n".join(line.rstrip() for line in table.getvalue().splitlines())


def test_ascii_holds_the_same_words():
    text = shown(sample_reports.report(), 100, encoding="ascii")
    assert text.isascii()
    assert "?" not in text


@pytest.mark.parametrize(
    ("ranks", "hosts", "phase", "words"),
    [
        ((2,), ("a",), None, "rank 2: others wait"),
        ((2,), ("a", "b"), "backward", "backward, rank 2 on b: others wait"),
        ((1, 3), ("a",), None, "whole step, late rank changes: ranks 1, 3"),
        ((0, 1, 2, 3), ("a",), None, "whole step, late rank changes"),
    ],
)
def test_a_late_rank_stands_after_the_place_as_other_ranks_do(
    ranks: tuple[int, ...], hosts: tuple[str, ...], phase: str | None, words: str
):
    report = sample_reports.report()
    by_rank = ("a", "a", "b", "b") if len(hosts) > 1 else ("a",) * 4
    report = replace(report, run=replace(report.run, hosts=hosts, rank_hosts=by_rank))
    late = Finding("straggler", "warning", "t", 9, None, None, None, 1, ranks, Where(phase=phase))
    assert first_facts.place(late, report) == words
    if len(ranks) > 1:
        # If another rank is late by itself, these are other waits.
        beside = replace(report, findings=(replace(late, ranks=(2,)), late))
        assert first_facts.place(late, beside) == words.replace("whole step", "other waits")
    other = replace(late, kind="host-sync", ranks=(2,))
    assert first_facts.place(other, report) == f"{phase or 'whole step'}, rank 2"


def test_the_end_of_a_verdict_is_worth_more_than_the_last_finding(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Report, "verdict", f"{'word ' * 50}; see finding 2.")
    report = many(sample_reports.report(), 3)
    assert "; see finding 2." in " ".join(shown(report, 80).split())
    assert len(shown(report, 80).splitlines()) <= LINES


def test_a_command_is_never_broken():
    """Its line is its own if it is too long to follow its words; a terminal joins it when it is copied."""
    command = f"shardtoll report {'/data/runs/' * 8}a --all"
    report = many(sample_reports.report(), 3)
    stream = io.StringIO()
    Screen(80, file=stream).print(
        FirstScreen(report, [("More", command, "one finding: --finding 1; page: -o bill.html")])
    )
    lines = stream.getvalue().splitlines()
    assert lines[-2:] == ["Also finding 9 (one finding: --finding 1; page: -o bill.html):", command]
    # The command takes two rows of this terminal.
    assert len(command) > 80
    assert len(lines) + 1 <= LINES
    assert MORE[0][1] in shown(report, 80).splitlines()[-1]


def test_code_of_a_remedy_is_never_broken():
    code = f"model = wrap(model, {'option=True, ' * 9}last=1)  # one line"
    finding = replace(sample_reports.report().findings[0], remedy=Remedy("Wrap it.", code))
    report = replace(sample_reports.report(), findings=(finding,))
    for renderable in (one_finding(report, 1), terminal.renderable(report)):
        stream = io.StringIO()
        Screen(80, file=stream).print(renderable)
        assert f"   {code}" in stream.getvalue().splitlines()
