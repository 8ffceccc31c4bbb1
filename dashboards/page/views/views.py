"""The views of a report, in the order of the page: each draws one figure and may show it as a table.

The page and the server both draw from here, so that they show the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.sites import sites
from shardtoll.dashboards.page.html import tables
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.views import (
    anatomy,
    bytes,
    duplicated,
    heat,
    if_fixed,
    light,
    matrix,
    modules,
    operators,
    page_pipeline,
    page_roofline,
    timeline,
)
from shardtoll.ledger import Report
from shardtoll.ledger.answers.step_roofline import StepRoofline


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at a report."""

    name: str
    """Its id in the page, in links and in the server."""
    title: str
    lead: str
    """The content of the drawing and how to read it, in plain text."""
    figure: Callable[[Report], Figure]
    """Empty if there is nothing to draw; without notes too the page leaves the view out."""
    numbers: Callable[[Report], str] | None = None
    """The same as an HTML table, escaped."""
    alone: bool = False
    """The table says something if nothing can be drawn, too."""
    always: bool = False
    """It has a figure or a note of every report, which need not be drawn to know that."""

    def says(self, report: Report, figure: Callable[[], Figure] | None = None) -> bool:
        """Whether it has something to show of the report; `figure` returns its figure, if one is kept."""
        if self.always:
            return True
        if self.alone and self.numbers is not None and self.numbers(report):
            return True
        drawing = self.figure(report) if figure is None else figure()
        return bool(drawing.notes) or not drawing.empty


def _roofline(report: Report) -> Figure:
    return page_roofline.figure(sites(report))


def _sites(report: Report) -> str:
    return tables.sites(sites(report))


def _hardware(report: Report) -> StepRoofline | None:
    """Return the hardware's limits; None in reports without, which have no view of it."""
    roofline = report.roofline
    return None if roofline is None or not roofline.ranks or summary.no_hardware(report) else roofline


def _light(report: Report) -> Figure:
    roofline = _hardware(report)
    return Figure([], {}) if roofline is None else light.figure(roofline, report.findings)


def _light_numbers(report: Report) -> str:
    roofline = _hardware(report)
    return "" if roofline is None else light.numbers(roofline)


def _operators(report: Report) -> Figure:
    roofline = _hardware(report)
    return (
        Figure([], {})
        if roofline is None or not roofline.ops
        else operators.figure(roofline, report.findings)
    )


def _operator_numbers(report: Report) -> str:
    roofline = _hardware(report)
    return "" if roofline is None or not roofline.ops else operators.numbers(roofline)


VIEWS: Final = (
    View(
        "anatomy",
        "Where the step goes",
        anatomy.LEAD,
        anatomy.figure,
        tables.steps,
        always=True,
    ),
    View("fixed", "If it were fixed", if_fixed.LEAD, if_fixed.figure, if_fixed.numbers),
    View("roofline", "What the fabric allows", page_roofline.LEAD, _roofline, _sites, always=True),
    View("light", "What the hardware allows", light.LEAD, _light, _light_numbers, alone=True),
    View(
        "operators",
        "Operators under the roofline",
        operators.LEAD,
        _operators,
        _operator_numbers,
        alone=True,
    ),
    View("timeline", "The ranks in time", timeline.LEAD, timeline.figure, always=True),
    View("bytes", "Where the bytes go", bytes.LEAD, bytes.figure, bytes.numbers),
    View("matrix", "Bytes from rank to rank", matrix.LEAD, matrix.figure),
    View("modules", "What each module costs", modules.LEAD, modules.figure, modules.numbers),
    View("heat", "Who is waited for", heat.LEAD, heat.figure, heat.numbers),
    View(
        "duplicated",
        "Work done more than once",
        duplicated.LEAD,
        duplicated.figure,
        duplicated.numbers,
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
