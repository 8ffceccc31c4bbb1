"""A run that is being written, in a real browser: new steps appear, and nothing the reader did is lost."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.cli.inputs.serve_source import make_source
from shardtoll.ledger import RankWriter
from shardtoll.ledger.records.step_rows import StepRows
from tests import sample_reports
from tests.browser.test_serve import reader, serve, visit  # noqa: F401

pytestmark = pytest.mark.browser


class Job:
    """Four ranks that write steps when they are told."""

    def __init__(self, folder: Path) -> None:
        self.writers = [RankWriter(folder, rank, "job") for rank in range(4)]
        self.rows = sample_reports.collectives()
        for writer in self.writers:
            writer.describe(*self.known(writer.rank))

    def known(self, rank: int) -> tuple:
        groups = [group for group in sample_reports.GROUPS if rank in group.ranks]
        return replace(sample_reports.RUN, ranks_seen=(rank,)), groups

    def step(self, number: int) -> None:
        late = 60 * sample_reports.MS * (number - 1)
        for writer in self.writers:
            mine = tuple(
                replace(row, step=number, start_ns=row.start_ns + late)
                for row in self.rows
                if row.rank == writer.rank and row.step == 1
            )
            writer.append(StepRows(sample_reports.step(number, writer.rank), mine))

    def close(self) -> None:
        for writer in self.writers:
            writer.close(*self.known(writer.rank))


def test_new_steps_appear_and_zoom_filter_and_findings_stay(serve, visit, tmp_path: Path):  # noqa: F811
    job = Job(tmp_path / "a")
    job.step(0)
    source = make_source(str(tmp_path / "a"))
    seen = visit(serve(source))
    status = "document.getElementById('status').textContent"
    try:
        seen.go("/?view=timeline&ranks=0-2&zoom=x:0:45")
        seen.until(status, "live, 1 step")
        seen.page.locator("#findings summary").first.click()
        seen.until("document.querySelectorAll('.finding.picked').length", 1)
        key = seen.page.locator(".finding.picked").get_attribute("data-key")
        job.step(1)
        seen.until(status, "live, 2 steps")
        figure = "document.querySelector('#shown .js-plotly-plot')"
        assert seen.page.evaluate(f"{figure}.layout.xaxis.range") == [0, 45]
        assert seen.page.evaluate("document.getElementById('filter-ranks').value") == "0-2"
        picked = seen.page.locator(".finding.picked")
        assert (picked.get_attribute("data-key"), picked.get_attribute("open")) == (key, "")
        seen.page.click("#unzoom")
        # Four corners each; what is null lies between two rows.
        corners = (
            f"({figure}.data.find(t => t.name === 'step') || {{x: []}}).x.filter(x => x !== null).length"
        )
        seen.until(corners, 4 * 2 * 3)
        job.close()
        seen.until(status, "2 steps")
        # Deleted while it is looked at: told in words, and what was read stays.
        shutil.rmtree(tmp_path / "a")
        seen.until("document.querySelectorAll('#trouble p').length", 1)
        assert "a" in seen.page.locator("#trouble").inner_text()
        assert seen.page.locator("#board").is_visible()
        seen.clean()
    finally:
        source.close()


def test_a_folder_of_runs_shows_each_as_it_comes(serve, visit, tmp_path: Path):  # noqa: F811
    first = Job(tmp_path / "first")
    first.step(0)
    first.close()
    source = make_source(str(tmp_path))
    seen = visit(serve(source))
    try:
        seen.go(wait="#page h2, .runs")
        rows = "document.querySelectorAll('.runs tbody tr').length"
        seen.until(rows, 1)
        second = Job(tmp_path / "second")
        second.step(0)
        seen.until(rows, 2)
        seen.until("document.querySelectorAll('.runs .badge.live').length", 1)
        (tmp_path / "first" / "run.rank00000.json").write_text("{damaged")
        seen.page.get_by_text("second", exact=True).click()
        seen.page.wait_for_selector("#shown .main-svg")
        seen.page.get_by_text("All runs").click()
        seen.page.get_by_text("first", exact=True).click()
        seen.until("document.getElementById('trouble').textContent.includes('damaged')")
        assert "Traceback" not in seen.page.locator("body").inner_text()
        second.close()
        seen.clean()
    finally:
        source.close()
