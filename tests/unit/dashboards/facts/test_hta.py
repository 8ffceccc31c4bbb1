"""HTA's answers on the terminal and the page: all widths, nothing cut, nothing unescaped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from shardtoll.dashboards.facts import step_times
from shardtoll.dashboards.facts.hta_tables import contradiction, hta_tables, named_ranks
from shardtoll.dashboards.page import page
from shardtoll.dashboards.terminal.terminal import renderable
from shardtoll.ledger import Report, SchemaError
from shardtoll.ledger.answers.hta_figures import (
    CriticalPath,
    HtaFigures,
    LaunchStats,
    QueueLength,
    StreamIdle,
)
from tests import sample_reports

MS = 1_000_000
EVIL = "rank 0: HTA gave no events (ValueError: <script>alert(1)</script>\x1b[31m)"


def figures(ranks: int = 2) -> HtaFigures:
    return HtaFigures(
        "0.5.0",
        tuple(
            CriticalPath(rank, 3, (10 + rank) * MS, 4 * MS, 3 * MS, 2 * MS, MS, rank * MS)
            for rank in range(ranks)
        ),
        tuple(StreamIdle(rank, 7, 5 * MS, 6_000, 0) for rank in range(ranks)),
        tuple(LaunchStats(rank, 1234, 56, 7, 8, 9_000, 2 * MS) for rank in range(ranks)),
        tuple(QueueLength(rank, 7, 2.5, 25) for rank in range(ranks)),
        (EVIL,),
    )


def with_hta(ranks: int = 2) -> Report:
    return replace(sample_reports.report(), hta=figures(ranks))


def printed(report: Report, width: int) -> str:
    console = Console(width=width, record=True, highlight=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(renderable(report))
    return console.export_text()


@pytest.mark.parametrize("width", [40, 60, 80, 140, 200])
def test_every_figure_is_on_the_terminal_at_every_width(width: int) -> None:
    text = printed(with_hta(), width).replace("\u00a0", " ")
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    for value in ("11.0 ms", "6.00 µs", "1,234", "9.00 µs", "2.5", "25"):
        assert value in flat
    assert "\x1b" not in flat


def test_without_hta_there_is_no_word_of_it() -> None:
    report = sample_reports.report()
    assert "HTA" not in printed(report, 120)
    assert 'id="hta"' not in page.render(report)
    assert "hta" not in json.loads(report.to_json())


def test_the_page_has_the_answers_and_runs_nothing_of_a_trace() -> None:
    html = page.render(with_hta())
    assert '<h2 id="hta">What HTA says</h2>' in html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert "11.0 ms" in html


def test_of_many_ranks_those_that_matter_are_shown_and_the_rest_counted() -> None:
    paths = hta_tables(figures(100), 8)[0]
    assert [row[0] for row in paths.rows] == [str(rank) for rank in range(92, 100)]
    assert paths.left_out == 92
    assert "92 more rows" in printed(with_hta(100), 120)


def test_the_rank_a_finding_names_is_shown_though_others_weigh_more() -> None:
    tables = hta_tables(figures(100), 8, (3,))
    for table in tables:
        assert "3" in [row[0] for row in table.rows]
        assert (len(table.rows), table.left_out) == (8, 92)
    alone = replace(sample_reports.FINDINGS[0], ranks=(3,))
    report = replace(with_hta(100), findings=(alone,))
    # Rank 2 has the longest step in the sample.
    assert named_ranks(report) == (3, 2)


def test_communication_that_hta_calls_gaps_is_explained() -> None:
    report = with_hta(4)
    exposed = step_times.rank_times(report)[0].parts_ns[1]
    assert exposed > 4 * MS
    text = contradiction(report)
    assert text is not None
    assert "HTA's critical path 2.00 ms" in text
    assert "synchronisation events" in " ".join(printed(report, 100).split())
    assert "synchronisation events" in page.render(report)
    same = tuple(replace(path, communication_ns=round(exposed)) for path in figures(4).critical_paths)
    assert contradiction(replace(report, hta=replace(figures(4), critical_paths=same))) is None
    assert contradiction(sample_reports.report()) is None


def test_a_report_with_hta_survives_json() -> None:
    report = with_hta()
    again = Report.from_json(report.to_json())
    assert again.hta == report.hta
    assert again.to_json() == report.to_json()
    assert Report.from_json(sample_reports.report().to_json()).hta is None


@pytest.mark.parametrize("damage", ["<b>", [], {"version": 3}, {"version": "1", "notices": 5}])
def test_damaged_figures_are_refused_in_one_line(damage: object) -> None:
    document = json.loads(with_hta().to_json())
    document["hta"] = damage
    with pytest.raises(SchemaError, match="is damaged"):
        Report.from_json(json.dumps(document))
