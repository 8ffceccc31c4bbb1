"""The views of a report, in the order of the page: each draws one figure and may tell it as a table.

The page and the server both draw from here, so that they show the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardtoll.dashboards import (
    page_anatomy,
    page_bytes,
    page_duplicated,
    page_heat,
    page_light,
    page_matrix,
    page_modules,
    page_operators,
    page_pipeline,
    page_roofline,
    page_tables,
    page_timeline,
    summary,
)
from shardtoll.dashboards.figure import Figure
from shardtoll.dashboards.sites import sites
from shardtoll.ledger import Report
from shardtoll.ledger.step_roofline import StepRoofline


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at a report."""

    name: str
    """Its id in the page, in links and in the server."""
    title: str
    lead: str
    """What is drawn and how to read it, in plain text."""
    figure: Callable[[Report], Figure]
    """Empty where there is nothing to draw; without notes too the page leaves the view out."""
    numbers: Callable[[Report], str] | None = None
    """The same as an HTML table, escaped."""
    alone: bool = False
    """The table says something where nothing can be drawn, too."""
    always: bool = False
    """It has a figure or a note of every report, which need not be drawn to know that."""

    def says(self, report: Report, figure: Callable[[], Figure] | None = None) -> bool:
        """Whether it has something to show of the report; `figure` returns its figure, where one is kept."""
        if self.always:
            return True
        if self.alone and self.numbers is not None and self.numbers(report):
            return True
        found = self.figure(report) if figure is None else figure()
        return bool(found.notes) or not found.empty


def _roofline(report: Report) -> Figure:
    return page_roofline.figure(sites(report))


def _sites(report: Report) -> str:
    return page_tables.sites(sites(report))


def _hardware(report: Report) -> StepRoofline | None:
    """Return what the hardware allows; None in reports without, which have no view of it."""
    found = report.roofline
    return None if found is None or not found.ranks or summary.no_hardware(report) else found


def _light(report: Report) -> Figure:
    found = _hardware(report)
    return Figure([], {}) if found is None else page_light.figure(found, report.findings)


def _light_numbers(report: Report) -> str:
    found = _hardware(report)
    return "" if found is None else page_light.numbers(found)


def _operators(report: Report) -> Figure:
    found = _hardware(report)
    return Figure([], {}) if found is None or not found.ops else page_operators.figure(found, report.findings)


def _operator_numbers(report: Report) -> str:
    found = _hardware(report)
    return "" if found is None or not found.ops else page_operators.numbers(found)


VIEWS: Final = (
    View(
        "anatomy",
        "Where the step goes",
        page_anatomy.LEAD,
        page_anatomy.figure,
        page_tables.steps,
        always=True,
    ),
    View("roofline", "What the fabric allows", page_roofline.LEAD, _roofline, _sites, always=True),
    View("light", "What the hardware allows", page_light.LEAD, _light, _light_numbers, alone=True),
    View(
        "operators",
        "Operators under the roofline",
        page_operators.LEAD,
        _operators,
        _operator_numbers,
        alone=True,
    ),
    View("timeline", "The ranks in time", page_timeline.LEAD, page_timeline.figure, always=True),
    View("bytes", "Where the bytes go", page_bytes.LEAD, page_bytes.figure, page_bytes.numbers),
    View("matrix", "Bytes from rank to rank", page_matrix.LEAD, page_matrix.figure),
    View("modules", "What each module costs", page_modules.LEAD, page_modules.figure, page_modules.numbers),
    View("heat", "Who is waited for", page_heat.LEAD, page_heat.figure, page_heat.numbers),
    View(
        "duplicated",
        "Work done more than once",
        page_duplicated.LEAD,
        page_duplicated.figure,
        page_duplicated.numbers,
        alone=True,
    ),
    View(
        "pipeline",
        "The pipeline",
        page_pipeline.LEAD,
        page_pipeline.figure,
        page_pipeline.numbers,
        alone=True,
    ),
)
"""In the order of the page."""
