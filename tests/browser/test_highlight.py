"""A picked finding lights up its marks in every figure; marks, keys and addresses lead back to findings."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.dashboards.page import page as page_module
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.views.views import View
from tests import falling_report, sample_reports
from tests.matched import matched

pytestmark = pytest.mark.browser


def drawn(page: Any, name: str, what: str) -> Any:
    """A part of a figure as Plotly has it now; `g` is its element."""
    return page.evaluate(
        f"(() => {{ const g = document.getElementById('{name}-figure'); return {what}; }})()"
    )


def said(page: Any, name: str) -> str:
    return str(page.locator(f"#{name}-said").text_content())


def edges(page: Any, name: str) -> str:
    """The paths round what is picked; arrivals are joined by other shapes."""
    shapes = drawn(page, name, "(g.layout.shapes || []).map(s => s.path)")
    return "".join(path for path in shapes if path.endswith("Z"))


def test_a_clicked_finding_lights_up_everywhere_and_a_second_click_puts_it_out(open_page):
    seen = open_page(sample_reports.report())
    page = seen.page
    summary = page.locator("#finding-2 > summary")
    summary.click()
    assert page.locator("#picked-words").inner_text() == (
        "highlighted: #2 implicit-redistribute · marks: anatomy 12, roofline 4, timeline 32, bytes 2, "
        "matrix 4, modules 1"
    )
    # Scatter: the four sites of the all_reduce, none of the gather; the ceilings stay as they are.
    assert drawn(page, "roofline", "g.data.map(t => t.selectedpoints || null)") == [
        None,
        None,
        [0, 1, 2, 3],
        [],
    ]
    # Bars: the ranks' exposed time, split or not; compute is dimmed.
    assert drawn(page, "anatomy", "g.data.map(t => t.selectedpoints)")[:4] == [[], *[[0, 1, 2, 3]] * 3]
    # Rectangles: one outline each, and the others are pale.
    assert edges(page, "timeline").count("Z") == 32
    assert drawn(page, "timeline", "g.data.find(t => t.name === 'explicit').opacity") == 0.3
    assert said(page, "timeline") == "Finding #2: 32 marks of this figure are its."
    assert page.evaluate("location.hash") == "#finding-2"
    summary.click()
    assert page.locator("#finding-2").get_attribute("open") is None
    assert drawn(page, "roofline", "g.data.map(t => t.selectedpoints || null)") == [None] * 4
    assert edges(page, "timeline") == ""
    assert drawn(page, "timeline", "g.data.find(t => t.name === 'explicit').opacity") == 0.85
    assert not page.locator("#timeline-said").is_visible()
    assert page.evaluate("location.hash") == ""
    assert seen.console == []
    assert seen.requests == [seen.path.as_uri()]


def test_the_bar_of_a_picked_fix_lights_up(open_page):
    seen = open_page(falling_report.report())
    page = seen.page
    page.locator("#finding-2 > summary").click()
    assert "fixed 1" in page.locator("#picked-words").inner_text()
    assert drawn(page, "fixed", "g.data.map(t => t.selectedpoints)") == [[], [], [0]]
    # Each bar begins where the one above it ends, whole steps at 0.
    assert drawn(page, "fixed", "g.data.map(t => Array.from(t.base))") == [[0, 0, 0], [20], [20]]
    assert seen.console == []


def test_a_figure_without_a_mark_of_it_says_so(open_page):
    page = open_page(sample_reports.report()).page
    # The first is open from the start: a click lights it up and does not close it.
    page.locator("#finding-1 > summary").click()
    assert page.locator("#finding-1").get_attribute("open") is not None
    assert said(page, "anatomy") == "Finding #1 speaks of nothing that is drawn here."
    assert drawn(page, "anatomy", "g.data.map(t => t.selectedpoints || null)") == [None] * 7
    page.keyboard.press("Escape")
    assert page.locator("#picked-words").text_content() == "nothing is highlighted"
    page.locator("#finding-2 > summary").press("Enter")
    assert said(page, "roofline") == "Finding #2: 4 marks of this figure are its."
    page.locator("#picked-clear").click()
    assert not page.locator("#roofline-said").is_visible()


def test_an_address_picks_a_finding(open_page):
    seen = open_page(sample_reports.report())
    page = seen.page
    page.evaluate("location.hash = '#finding-2'")
    page.wait_for_selector("#finding-2.picked[open]")
    assert said(page, "timeline") == "Finding #2: 32 marks of this figure are its."
    page.goto("about:blank")
    page.goto(seen.path.as_uri() + "#finding-2")
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert page.locator("#finding-2.picked[open]").count() == 1
    assert drawn(page, "roofline", "g.data[2].selectedpoints") == [0, 1, 2, 3]
    # What is no finding's number picks nothing.
    page.evaluate("location.hash = '#finding-77'")
    page.wait_for_timeout(50)
    assert page.locator(".finding.picked").count() == 1
    assert seen.console == []


def test_a_click_on_a_mark_opens_its_dearest_finding(open_page):
    page = open_page(sample_reports.report()).page
    area = page.locator("#timeline-figure .nsewdrag")
    area.scroll_into_view_if_needed()
    page.evaluate("Plotly.relayout('timeline-figure', {'xaxis.range': [20, 36]})")
    box = area.bounding_box()
    page.mouse.click(box["x"] + box["width"] * (24.7 - 20) / 16, box["y"] + box["height"] * 4.5 / 8)
    assert page.locator("#finding-2.picked[open]").count() == 1
    page.keyboard.press("Escape")
    bar = page.locator("#anatomy-figure .barlayer .trace").nth(2).locator(".point").first
    bar.scroll_into_view_if_needed()
    place = bar.bounding_box()
    middle = (place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.mouse.move(*middle)
    # Plotly finds what is under the pointer when it has come to rest.
    page.wait_for_selector("#anatomy-figure .hoverlayer .hovertext")
    page.mouse.click(*middle)
    page.wait_for_selector("#finding-2.picked", timeout=5000)


def test_keys_step_from_collective_to_collective_and_join_arrivals(open_page):
    seen = open_page(sample_reports.report())
    page = seen.page
    page.locator("#timeline-figure").focus()
    told = page.locator("#told")
    page.keyboard.press("ArrowRight")
    assert told.text_content().startswith("rank 0: all_reduce ×2 tp, 4.10 kB\n")
    # The two ranks of its group; both came at once, so none was the last.
    joined = drawn(page, "timeline", "g.layout.shapes.map(s => s.path)")
    assert joined == ["M0,-0.07L0,1.93"]
    page.keyboard.press("ArrowRight")
    assert "number 1 of its group" in told.text_content()
    page.keyboard.press("ArrowLeft")
    assert "number 0 of its group" in told.text_content()
    page.keyboard.press("Enter")
    assert page.locator("#finding-2.picked[open]").count() == 1
    page.locator("#roofline-figure").focus()
    page.keyboard.press("ArrowLeft")
    assert "all_reduce ×2 tp" in told.text_content()
    assert "forward, implicit" in told.text_content()
    assert seen.console == []


def test_rectangles_are_where_the_ledger_says(open_page):
    report = sample_reports.report()
    page = open_page(report).page

    def sides(name: str) -> tuple[list[float], list[float]]:
        """The left and the right ends; each rectangle has four corners, and null lies between two rows."""
        xs = drawn(page, "timeline", f"g.data.find(t => t.name === '{name}').x.filter(x => x !== null)")
        return sorted(xs[::4]), sorted(xs[2::4])

    frame = report.collectives
    timed = frame[frame["start_ns"].notna()]
    ends = (timed["start_ns"] + timed["duration_ns"]).astype(float) / 1e6
    implicit = timed["implicit"].fillna(False).astype(bool)
    lefts, rights = sides("implicit")
    assert lefts == pytest.approx(sorted(timed["start_ns"][implicit].astype(float) / 1e6))
    assert rights == pytest.approx(sorted(ends[implicit]))
    # Exposed time is drawn at the end of its collective.
    exposed = timed["exposed_ns"].fillna(0).astype(float) > 0
    lefts, rights = sides("exposed")
    assert rights == pytest.approx(sorted(ends[exposed]))
    lengths = timed["exposed_ns"][exposed].astype(float) / 1e6
    assert sum(rights) - sum(lefts) == pytest.approx(lengths.sum())


def test_the_last_to_arrive_is_marked(open_page):
    late = [
        sample_reports.collective(0, rank, 3, 1 << 20, start_ns=10_000_000 + 2_000_000 * rank)
        for rank in (0, 1)
    ]
    tables = dict(sample_reports.report().tables)
    tables["collectives"] = sample_reports.to_table("collectives", late)
    page = open_page(matched(sample_reports.report(tables=tables))).page
    page.locator("#timeline-figure").focus()
    page.keyboard.press("ArrowRight")
    assert (
        page.locator("#told")
        .text_content()
        .endswith("arrivals of 2 ranks: last is rank 1, 2 ms after the first")
    )
    paths = drawn(page, "timeline", "g.layout.shapes.map(s => s.path)")
    assert paths == ["M10,-0.07L12,0.9299999999999999", "M12,0.625L12,1.375"]
    # Picked with a finding they stand in the legend.
    page.evaluate("document.querySelector('#finding-2 > summary').click()")
    legend = "Array.from(g.querySelectorAll('.legendtext')).map(t => t.textContent)"
    assert "last to arrive" in drawn(page, "timeline", legend)


def other_figures() -> tuple[View, ...]:
    name = "<img src=x onerror=alert(1)>"
    shown = name.replace("<", "&lt;").replace(">", "&gt;")
    heat = {"type": "heatmap", "z": [[1, 2, 3], [4, 5, 6]], "x": [0, 10, 20], "y": ["rank 0", "rank 1"]}
    tiles = {
        "type": "treemap",
        "labels": ["all", shown, "b"],
        "parents": ["", "all", "all"],
        "values": [0, 2, 1],
    }
    flows = {
        "type": "sankey",
        "node": {"label": ["m", shown, "link"]},
        "link": {"source": [0, 1], "target": [1, 2], "value": [3, 3], "color": ["#0072B2", "#0072B2"]},
    }
    marks = {2: {0: [1]}}
    return (
        View("heat", "Heat", "", lambda _: Figure([heat], {"height": 300}, marks={2: {0: [0, 1, 5]}})),
        View("tiles", "Tiles", "", lambda _: Figure([tiles], {"height": 300}, marks=marks)),
        View("flows", "Flows", "", lambda _: Figure([flows], {"height": 300}, marks=marks)),
    )


def test_cells_tiles_and_flows_light_up(open_page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_module, "VIEWS", other_figures())
    seen = open_page(sample_reports.report())
    page = seen.page
    page.locator("#finding-2 > summary").click()
    # Cells beside each other have one edge; those of categories lie around whole numbers.
    assert edges(page, "heat") == "M-5,-0.5L15,-0.5L15,0.5L-5,0.5ZM15,0.5L25,0.5L25,1.5L15,1.5Z"
    assert drawn(page, "tiles", "g.data[0].marker.line.width") == [0.5, 5, 0.5]
    assert drawn(page, "flows", "g.data[0].link.color") == ["rgba(0,114,178,0.12)", "#0072B2b0"]
    page.locator("#tiles-figure").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#told").text_content() == "<img src=x onerror=alert(1)>"
    page.keyboard.press("Escape")
    assert drawn(page, "flows", "g.data[0].link.color") == ["#0072B2", "#0072B2"]
    assert edges(page, "heat") == ""
    flow = page.locator("#flows-figure .sankey-link").nth(1)
    flow.scroll_into_view_if_needed()
    flow.click()
    page.wait_for_selector("#finding-2.picked", timeout=5000)
    assert seen.console == []


def test_paper_is_light(open_page):
    page = open_page(sample_reports.report(), "dark").page
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert drawn(page, "anatomy", "g.layout.font.color") == "#1c2128"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert drawn(page, "anatomy", "g.layout.font.color") == "#e6edf3"
