"""Code in sentences of a page."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from shardtoll.dashboards.page.html.coded_html import coded_html
from shardtoll.dashboards.page.html.page_bill import bill
from shardtoll.ledger import Remedy
from tests import sample_reports


def test_backticks_become_code_and_nothing_else_becomes_html():
    assert coded_html(escape("call `a < b` once")) == "call <code>a &lt; b</code> once"
    assert coded_html("one ` alone") == "one ` alone"


def test_a_remedy_on_the_page_shows_its_code_without_backticks():
    report = sample_reports.report()
    finding = replace(report.findings[0], remedy=Remedy("Use `x.tolist()` once.", "", ""))
    shown = bill(replace(report, findings=(finding,)))
    assert "Use <code>x.tolist()</code> once." in shown
    assert "`" not in shown.partition("<h4>Remedy</h4>")[2].partition("</p>")[0]


def test_code_that_was_cut_stays_as_it_is():
    assert coded_html("set `a=1` and `b=") == "set `a=1` and `b="
