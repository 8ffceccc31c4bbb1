"""No backtick reaches a terminal: code in sentences has a colour there."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from shardtoll.dashboards.terminal.coded import CODE_STYLE, coded
from shardtoll.dashboards.terminal.first_screen import FirstScreen
from shardtoll.dashboards.terminal.terminal import renderable
from shardtoll.ledger import Remedy
from tests import sample_reports


def test_code_has_its_style_and_no_marks():
    text = coded("Call `zero_grad()` or `a`, not `b", style="dim")
    assert text.plain == "Call zero_grad() or a, not `b"
    assert [text.plain[span.start : span.end] for span in text.spans if span.style == CODE_STYLE] == [
        "zero_grad()",
        "a",
    ]


def test_remedies_show_none():
    report = sample_reports.report()
    remedy = Remedy("Measure it with `shardtoll calibrate`.")
    report = replace(report, findings=tuple(replace(each, remedy=remedy) for each in report.findings))
    for shown in (renderable(report), FirstScreen(report)):
        out = io.StringIO()
        Console(file=out, width=100).print(shown)
        assert "with shardtoll calibrate" in out.getvalue()
