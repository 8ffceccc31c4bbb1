"""A remedy that only measures saves nothing: no view shows a saving next to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.exports import markdown, sarif
from shardtoll.dashboards.facts.applies import applies
from shardtoll.dashboards.facts.first_screen import first_facts
from shardtoll.dashboards.facts.first_screen.legend import legend
from shardtoll.dashboards.page import notebook
from shardtoll.dashboards.page.html.page_bill import bill
from shardtoll.dashboards.terminal import terminal
from shardtoll.ledger import Finding, Remedy, Report, Where
from tests import sample_reports

MS = 1_000_000
pytestmark = pytest.mark.usefixtures("plain_terminal")


def reported(*, measures: bool) -> Report:
    remedy = Remedy(
        "Record again with trace=True.", counterfactual="the same step on time", measures=measures
    )
    late = Finding(
        "straggler", "warning", "rank 1 is late", 9 * MS, None, 7 * MS, None, 1, (1,), Where(), remedy=remedy
    )
    return replace(sample_reports.report(), findings=(late,))


@pytest.mark.parametrize("measures", [True, False])
def test_only_a_fix_has_a_saving(measures: bool, capsys: pytest.CaptureFixture[str]):
    report = reported(measures=measures)
    (finding,) = report.findings
    assert finding.remedy_saves_ns == (None if measures else 7 * MS)
    assert applies(finding, "saving") != measures
    assert first_facts.figures(finding)[0] == "toll 9.00 ms" + ("" if measures else " · saving 7.00 ms")
    names = first_facts.figure_names(finding)[0]
    assert ("saving" in (legend(report, report.findings, names) or "")) != measures
    terminal.show(report, 140)
    shown = " ".join(capsys.readouterr().out.split())
    assert (shown.count("7.00 ms") > 1) != measures, "the detail alone names it"
    page = bill(report)
    # Not unknown: there is none.
    assert ('data-name="saving">–' in page, "| saving | – |" in markdown.markdown(report)) == (
        measures,
        measures,
    )
    assert ("7.00 ms</td>" in notebook.render(report)) != measures
    assert ('data-name="saving">7.00 ms' in page) != measures
    assert ("| 7.00 ms |" in markdown.markdown(report)) != measures
    # The finding whole says what a fix would save, so that verify has a promise to hold it to.
    said = (
        "a fix of what it shows saves at most 7.00 ms against:"
        if measures
        else "saves at most 7.00 ms against:"
    )
    assert said in shown
    assert ("can be saved" in sarif._message(finding)) != measures
    assert finding.saving_ns == 7 * MS
