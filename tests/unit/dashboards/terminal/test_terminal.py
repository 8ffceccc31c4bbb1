from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len

from shardtoll.dashboards.terminal import terminal
from shardtoll.dashboards.terminal.terminal_bill import _numbers
from shardtoll.dashboards.words.text import clean, clip
from shardtoll.ledger import FabricInfo, Finding, Remedy, Report, Where
from tests import sample_reports

WIDTHS = (60, 80, 140, 200)
pytestmark = pytest.mark.usefixtures("plain_terminal")


def shown(report: Report, width: int, capsys: pytest.CaptureFixture[str]) -> str:
    terminal.show(report, width)
    return capsys.readouterr().out


def words(text: str) -> str:
    """The text without line breaks, indents, rules and columns' padding."""
    return re.sub(r"[\s─]+", " ", text)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["report", "empty", "unknown"])
def test_golden(
    name: str, width: int, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
):
    text = shown(getattr(sample_reports, name)(), width, capsys)
    golden(f"terminal-{name}-{width}.txt", "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 139, 140, 300])
@pytest.mark.parametrize("name", ["report", "hostile", "unknown", "empty"])
def test_nothing_is_wider_than_the_terminal(name: str, width: int, capsys: pytest.CaptureFixture[str]):
    report = getattr(sample_reports, name)()
    # Code is to be copied: its lines stay whole.
    code = [finding.remedy.code or "" for finding in report.findings if finding.remedy is not None]
    whole = {f"   {clip(line, 200)}" for each in code for line in clean(each, lines=True).split("\n")}
    lines = set(shown(report, width, capsys).splitlines()) - whole
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_stacked_lines_hold_every_number_of_the_bill(width: int, capsys: pytest.CaptureFixture[str]):
    text = words(shown(sample_reports.report(), width, capsys))
    for part in (
        "per step: 4 times, 2.10 MB, toll 9.40 ms, floor 1.20 ms, saving 8.20 ms",
        "remedy: Reduce the gradient over the world group.",
        "train.py:42 (step) · module blocks.0.mlp · aten.mm.default · forward · mesh dim tp · group tp",
        "optimizer · group world · rank 1",
        "saves at most 8.20 ms against: the same step without this all_reduce",
        "'mlp.out': RowwiseParallel(output_layouts=Shard(1)),",
        "latency-bound (likely)",
        "notice capture-stopped: stopped after an error in a hook (rank 3)",
        "fabric loopback-gloo: measured on this machine by calibrate, 4 ranks",
    ):
        assert part in text
    assert text.index("error wrong-gradient") < text.index("warning implicit-redistribute")


def test_a_cost_that_is_not_known_is_unknown_and_one_that_does_not_apply_is_not_there():
    costs = dict.fromkeys(("toll_ns", "floor_ns", "saving_ns", "bytes"))
    late = Finding("latency-bound", "info", "t", **costs, count=1, ranks=(0,))
    wrong = Finding("wrong-gradient", "error", "t", **costs, count=1, ranks=(0,))
    twice = Finding("duplicated-compute", "info", "t", **costs, count=1, ranks=(0,))
    assert [value for _, value in _numbers(late)] == ["1", "unknown", "unknown", "unknown", "unknown"]
    assert [value for _, value in _numbers(wrong)] == ["1", "–", "–", "–", "–"]
    assert [value for _, value in _numbers(twice)] == ["1", "–", "unknown", "–", "unknown"]


@pytest.mark.parametrize("width", [140, 141, 160, 200])
def test_the_table_cuts_no_word(width: int, capsys: pytest.CaptureFixture[str]):
    text = words(shown(sample_reports.report(), width, capsys))
    for finding in sample_reports.FINDINGS:
        remedy = finding.remedy.text if finding.remedy else "none known"
        for word in f"{finding.title} {finding.where.label()} {remedy}".split():
            assert f" {word} " in f"{text} "


def test_the_same_code_is_shown_once_under_all_its_numbers(capsys: pytest.CaptureFixture[str]):
    warning, error, info = sample_reports.FINDINGS
    same = replace(sample_reports.report(), findings=(warning, error, warning, warning, info))
    text = shown(same, 160, capsys)
    assert "remedy of 2-4:\n   parallelize_module(" in text
    assert text.count("parallelize_module(") == 1


@pytest.mark.parametrize("width", [140, 200])
def test_the_table_holds_every_number(width: int, capsys: pytest.CaptureFixture[str]):
    text = shown(sample_reports.report(), width, capsys)
    assert "…" not in text
    row = next(line for line in text.splitlines() if "warning implicit-redistribute" in line)
    assert re.search(r" 4 +2\.10 MB +9\.40 ms +1\.20 ms +8\.20 ms ", row)


def test_the_step_adds_up_as_printed(capsys: pytest.CaptureFixture[str]):
    wide = shown(sample_reports.report(), 80, capsys)
    row = next(line for line in wide.splitlines() if line.startswith("rank 2 slowest"))
    values = [float(value) for value in re.findall(r"([\d.]+) (?:ms|ns)", row)]
    *parts, capture, total = values
    assert (sum(parts), capture, total) == (53.0, 2.0, 53.0)
    narrow = words(shown(sample_reports.report(), 50, capsys))
    assert "rank 2 slowest: 53.0 ms = compute 30.0 ms + exposed comm 15.0 ms" in narrow


def test_many_ranks_are_folded_and_counted(capsys: pytest.CaptureFixture[str]):
    text = words(shown(sample_reports.many(64, 1), 120, capsys))
    assert "the 7 slowest of 64 ranks, the other 57 folded into their mean" in text
    assert "mean of 57 " in text
    assert "rank 63 slowest" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_stay_text(width: int, capsys: pytest.CaptureFixture[str]):
    text = shown(sample_reports.hostile(), width, capsys)
    hidden = [char for char in text if clean(char) != char and char not in "\n\u00a0"]
    assert hidden == []
    flat = re.sub(r"\s", "", text)
    for name in ("markup", "script", "close", "quotes"):
        assert re.sub(r"\s", "", sample_reports.HOSTILE[name]) in flat
    assert "charactersleftout" in flat


@pytest.mark.parametrize("width", [80, 160])
def test_markup_is_text_in_every_place(width: int, capsys: pytest.CaptureFixture[str]):
    def tagged(text: str) -> str:
        return f"[red]{text}[/red]"

    finding = Finding(
        kind="recompute",
        severity="info",
        title=tagged("t"),
        toll_ns=1,
        floor_ns=None,
        saving_ns=1,
        bytes=None,
        count=1,
        ranks=(0,),
        where=Where(source=tagged("s"), module=tagged("m")),
        remedy=Remedy(tagged("r"), tagged("c"), tagged("f")),
    )
    report = replace(
        sample_reports.report(), findings=(finding,), fabric=FabricInfo(tagged("n"), tagged("p"))
    )
    text = shown(report, width, capsys)
    assert {place for place in "tsmrcfnp" if tagged(place) in text} == set("tsmrcfnp")


def test_severity_is_a_word_and_a_colour(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = shown(sample_reports.report(), 100, capsys)
    assert "\x1b[1;31merror\x1b[0m" in text


def test_missing_ranks_are_named(capsys: pytest.CaptureFixture[str]):
    report = sample_reports.report()
    run = replace(report.run, world_size=8)
    text = shown(replace(report, run=run), 100, capsys)
    assert "4 of 8 ranks seen" in text
    assert "missing: ranks 4-7 left no records" in text


def test_report_show_prints_here(capsys: pytest.CaptureFixture[str]):
    sample_reports.report().show(80)
    assert capsys.readouterr().out.startswith("shardtoll  4 of 4 ranks seen")


def test_one_verdict_stands_above_the_step(capsys: pytest.CaptureFixture[str]):
    report = replace(sample_reports.report(), findings=sample_reports.report().findings[2:])
    before = shown(report, 200, capsys)
    after = shown(replace(report, headline="Rank 7 is late, not the network."), 200, capsys)
    assert report.verdict in before
    assert after.replace("Rank 7 is late, not the network.", report.verdict, 1).split() == before.split()


def test_tolls_and_savings_stand_in_a_table_at_80_columns(capsys: pytest.CaptureFixture[str]):
    report = sample_reports.report()
    lines = shown(report, 80, capsys).splitlines()
    head = next(line for line in lines if line.split()[-2:] == ["toll", "saving"])
    table = lines[lines.index(head) + 2 :][: len(report.findings)]
    assert [line.split()[0] for line in table] == [str(n) for n in range(1, len(report.findings) + 1)]
    assert any(line.endswith("9.40 ms 8.20 ms") for line in table)
