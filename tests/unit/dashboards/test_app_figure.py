"""The server's figures: rectangles where the ledger says, marks lit, names shown letter for letter."""

from __future__ import annotations

import json

import pytest

from shardtoll.dashboards import page_timeline
from shardtoll.dashboards.app_board import Board
from shardtoll.dashboards.app_figure import COLOURS, plotted
from shardtoll.dashboards.app_lit import FADED
from shardtoll.dashboards.figure import Figure
from shardtoll.dashboards.page_style import STYLE
from shardtoll.dashboards.source import Snapshot
from shardtoll.dashboards.views import VIEWS
from tests import sample_reports


def named(drawn: dict, name: str) -> dict:
    return next(trace for trace in drawn["data"] if trace.get("name") == name)


def test_rectangles_are_where_the_ledger_says():
    report = sample_reports.report()
    drawn = plotted(page_timeline.figure(report))
    frame = report.collectives
    implicit = named(drawn, "implicit")
    rows = frame[frame["implicit"].fillna(False) & frame["start_ns"].notna()]
    assert implicit["base"] == pytest.approx([float(start) / 1e6 for start in rows["start_ns"]])
    assert implicit["x"] == pytest.approx([float(took) / 1e6 for took in rows["duration_ns"]])
    assert (implicit["type"], implicit["orientation"]) == ("bar", "h")
    # Exposed time is drawn at the end of its collective.
    exposed = named(drawn, "exposed")
    some = frame[frame["start_ns"].notna() & (frame["exposed_ns"].fillna(0) > 0)]
    ends = [
        float(start + took) / 1e6 for start, took in zip(some["start_ns"], some["duration_ns"], strict=True)
    ]
    assert [start + took for start, took in zip(exposed["base"], exposed["x"], strict=True)] == pytest.approx(
        ends
    )


def test_every_view_is_plain_json_without_what_only_the_page_knows():
    for view in VIEWS:
        for report in (sample_reports.report(), sample_reports.hostile(), sample_reports.empty()):
            text = json.dumps(plotted(view.figure(report)), allow_nan=False)
            assert '"rects"' not in text
            assert '"strings"' not in text


def test_hover_shows_names_letter_for_letter():
    drawn = plotted(page_timeline.figure(sample_reports.hostile()))
    texts = "".join(text for trace in drawn["data"] for text in trace.get("hovertext", []))
    assert "<script" not in texts
    assert "&lt;script" in texts
    assert set(texts.replace("<br>", "")) & {"<", ">"} == set()


def test_a_picked_finding_is_lit_with_all_parts_of_its_collectives():
    figure = page_timeline.figure(sample_reports.report())
    drawn = plotted(figure, picked=2)
    assert "selectedpoints" not in named(drawn, "step")
    implicit, exposed = named(drawn, "implicit"), named(drawn, "exposed")
    assert implicit["unselected"]["marker"]["opacity"] == FADED
    lit = {implicit["base"][at] for at in implicit["selectedpoints"]}
    assert lit
    assert len(exposed["selectedpoints"]) == len(implicit["selectedpoints"]) < len(exposed["x"])
    # Another number lights nothing, and nothing fades.
    assert plotted(figure, picked=99) == plotted(figure)


def test_arrivals_are_joined_through_all_ranks_of_a_group():
    figure = page_timeline.figure(sample_reports.report())
    at = next(at for at, trace in enumerate(figure.data) if trace["name"] == "explicit")
    drawn = plotted(figure, clicked=(at, 0))
    lines = named(drawn, "arrivals of one collective")
    assert len(lines["x"]) == 5  # Four ranks of the all_gather, and the end of the line.
    last = named(drawn, "last to arrive")
    # What is drawn over the timeline is told in its legend.
    assert (lines["showlegend"], last["showlegend"]) == (True, True)
    assert last["x"] == [max(x for x in lines["x"] if x is not None)]
    assert plotted(figure, clicked=(0, 0)) == plotted(figure, clicked=(99, -1)) == plotted(figure)


def heat(marks: dict) -> Figure:
    trace = {"type": "heatmap", "z": [[1, 2, 3], [4, 5, 6]], "x": ["a", "b", "c"], "y": ["r0", "r1"]}
    return Figure([trace], {}, marks={1: marks})


def test_cells_of_a_heat_map_get_squares():
    over = plotted(heat({0: [2, 4]}), picked=1)["data"][1]
    assert list(zip(over["x"], over["y"], strict=True)) == [("c", "r0"), ("b", "r1")]


def test_tiles_and_links_are_told_apart():
    tree = {"type": "treemap", "labels": ["all", "a", "b"], "marker": {"colors": ["#000"] * 3}}
    flow = {"type": "sankey", "node": {}, "link": {"value": [1, 2], "color": ["#111111", "#222222"]}}
    drawn = plotted(Figure([tree, flow], {}, marks={3: {0: [2], 1: [0]}}), picked=3)["data"]
    assert drawn[0]["marker"]["line"]["width"] == [0.5, 0.5, 4]
    assert drawn[0]["marker"]["colors"] == ["#000"] * 3
    assert drawn[1]["link"]["color"] == ["#111111", "rgba(128,128,128,0.12)"]
    # The figure itself stays as it was: others draw from it too.
    assert flow["link"]["color"] == ["#111111", "#222222"]


def test_zoom_is_the_range_and_legends_keep_their_choices():
    figure = page_timeline.figure(sample_reports.report())
    near = plotted(figure, zoom=(("x", 20.0, 30.0),), kept="a")["layout"]
    far = plotted(figure, kept="a")["layout"]
    assert near["xaxis"]["range"] == [20.0, 30.0]
    assert near["uirevision"] == far["uirevision"]
    assert near["xaxis"]["uirevision"] != far["xaxis"]["uirevision"]
    assert near["yaxis"]["uirevision"] == far["yaxis"]["uirevision"]


def test_colours_are_the_pages_own():
    for scheme in COLOURS.values():
        for name, value in scheme.items():
            assert f"--{name}: {value};" in STYLE


def test_many_rectangles_are_one_outline_at_the_same_places(monkeypatch: pytest.MonkeyPatch):
    figure = page_timeline.figure(sample_reports.report())
    bars = named(plotted(figure), "implicit")
    monkeypatch.setattr("shardtoll.dashboards.app_figure.BARS_MOST", 2)
    drawn = plotted(figure, picked=2)
    outline = named(drawn, "implicit")
    assert outline["x"][::6] == bars["base"]
    assert outline["x"][1::6] == pytest.approx([a + b for a, b in zip(bars["base"], bars["x"], strict=True)])
    assert [(a + b) / 2 for a, b in zip(outline["y"][::6], outline["y"][2::6], strict=True)] == pytest.approx(
        bars["y"]
    )
    # The whole outline fades, and its lit part is drawn over it.
    over = [trace for trace in drawn["data"] if trace["name"] == "implicit"][1]
    assert outline["opacity"] == FADED < over["opacity"]
    assert over["x"] == outline["x"]  # All of them are the finding's.


def test_all_parts_of_a_page_show_the_state_it_was_told_of():
    board = Board(None)  # type: ignore[arg-type]
    first, second = Snapshot(None, "1"), Snapshot(None, "2")
    board.tell("a", first)
    board.tell("a", second)
    assert board.told("a", {"run": "a", "version": "1"}) is first
    assert board.told("b", {"run": "a", "version": "1"}) is None
    assert board.told("a", {"run": "a", "version": "3"}) is None
    assert board.told("a", "1") is None
    # Few are kept.
    board.tell("b", first)
    assert board.told("a", {"run": "a", "version": "1"}) is None
