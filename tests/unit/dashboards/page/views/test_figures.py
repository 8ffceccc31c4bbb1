from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shardtoll.dashboards.facts.sites import sites
from shardtoll.dashboards.page.html.figure import literal, log_axis
from shardtoll.dashboards.page.views import page_roofline, timeline
from shardtoll.ledger.records.volume import busbw_factor
from shardtoll.ledger.words import human
from tests import sample_reports


def test_sites_count_every_collective_once():
    report = sample_reports.report()
    found = sites(report)
    assert sum(site.calls for site in found) == report.tables["collectives"].num_rows
    assert [site.exposed_ns for site in found] == sorted(
        (s.exposed_ns or 0 for s in found), reverse=True
    ) or None in [site.exposed_ns for site in found]
    dearest = found[0]
    assert (dearest.op, dearest.message_bytes, dearest.calls) == ("all_reduce", 1 << 21, 8)
    assert dearest.exposed_ns == 8 * ((200_000 + (1 << 20)) // 2)
    assert dearest.cause() == (
        "train.py:42 (step) · aten.mm.default · module blocks.0.mlp · (Partial(sum),) → (Replicate(),) · "
        "forward, implicit"
    )


def test_sites_keep_unknown_apart_from_zero():
    (site,) = sites(sample_reports.unknown())
    assert (site.calls, site.exposed_ns, site.busbw_gbps, site.floor_ns) == (2, None, None, None)
    assert (site.asked, site.cause()) == ("unknown", "cause unknown")
    last = sites(sample_reports.report())[-1]
    assert (last.calls, last.exposed_ns, last.message_bytes) == (1, None, None)


def test_no_collectives_no_sites():
    assert sites(sample_reports.empty()) == []


def test_both_bounds_are_drawn_where_they_are_known():
    own = sites(sample_reports.report())
    assert not [trace for trace in page_roofline.figure(own).data if "speed of light" in trace["name"]]
    known = [replace(site, light_ns=site.floor_ns and site.floor_ns // 2) for site in own]
    drawn = page_roofline.figure(known)
    names = {trace["name"] for trace in drawn.data}
    assert {"ceiling all_reduce ×2 tp", "speed of light all_reduce ×2 tp"} <= names
    marks = {"all_reduce": "circle-open", "all_gather": "square-open"}
    for trace in (trace for trace in drawn.data if "line" in trace):
        # Without colour: light is dotted, what a library reaches is solid, and marks tell the collective.
        light_line = trace["name"].startswith("speed of light ")
        assert trace["line"]["dash"] == ("dot" if light_line else "solid")
        assert (
            trace["marker"]["symbol"] == marks[next(word for word in trace["name"].split() if word in marks)]
        )
    # Also of one size: a stroke around it, not a mark, which has no dash.
    for name in ("ceiling all_gather ×4 group world", "speed of light all_gather ×4 group world"):
        (stroke,) = [trace for trace in drawn.data if trace["name"] == name]
        assert (stroke["mode"], len(stroke["x"]), len(set(stroke["y"]))) == ("lines", 2, 1)
    light, floor = page_roofline.ceilings(known, "light_ns"), page_roofline.ceilings(known)
    for key, curve in floor.items():
        assert [gbps for _, gbps in light[key]] == pytest.approx([2 * gbps for _, gbps in curve], rel=1e-4)
    assert any("speed of light: " in words for words in drawn.strings)


def test_ceilings_are_the_floors_bandwidth():
    curves = page_roofline.ceilings(sites(sample_reports.report()))
    assert set(curves) == {("all_reduce", 2, "tp"), ("all_gather", 4, "group world")}
    points = curves[("all_reduce", 2, "tp")]
    assert [message for message, _ in points] == [1 << 12, 1 << 15, 1 << 18, 1 << 21]
    message, gbps = points[-1]
    floor_ns = 100_000 + message // 4
    assert gbps == pytest.approx(message / floor_ns * 1.0)
    ((gathered, peak),) = curves[("all_gather", 4, "group world")]
    assert peak == pytest.approx(gathered / (100_000 + gathered // 4) * (busbw_factor("all_gather", 4) or 0))


@pytest.mark.parametrize(("low", "high"), [(296.0, 440.0), (300.0, 300.0), (2.01, 4.99), (0.004, 9_000.0)])
def test_an_axis_shows_at_least_two_of_its_numbers(low, high):
    axis = log_axis("bus bandwidth", [low, high], human.rate)
    first, last = (10**end for end in axis["range"])
    assert first < low <= high < last
    shown = [tick for tick in axis["tickvals"] if first * 0.999 <= tick <= last * 1.001]
    assert len(shown) >= 2


@pytest.mark.parametrize("values", [[], [math.nan, 0.0, -1.0, math.inf], [1e-320], [1e308]])
def test_an_axis_of_nothing_that_can_be_drawn_is_one_still(values):
    axis = log_axis("bus bandwidth", values, human.rate)
    assert [round(10**end) for end in axis["range"]] == [1, 10]
    assert all(0 < tick < math.inf for tick in axis["tickvals"])


def test_damaged_values_do_not_stretch_an_axis():
    sound = log_axis("bus bandwidth", [2.0, 50.0], human.rate)
    assert log_axis("bus bandwidth", [math.nan, 2.0, math.inf, 0.0, 50.0], human.rate) == sound


def test_an_axis_of_many_decades_has_no_more_numbers_than_fit():
    axis = log_axis("bus bandwidth", [1e-28, 1e28], human.rate)
    first, last = axis["range"]
    shown = [tick for tick in axis["tickvals"] if first <= math.log10(tick) <= last]
    assert 5 <= len(shown) <= 15


def test_points_of_the_roofline_are_measured_and_coloured_by_cause():
    figure = page_roofline.figure(sites(sample_reports.report()))
    marks = {trace["name"]: trace for trace in figure.data if trace.get("legendgroup") == "sites"}
    assert set(marks) == {"all_reduce, implicit", "all_gather, explicit"}
    implicit, explicit = marks["all_reduce, implicit"], marks["all_gather, explicit"]
    assert implicit["marker"]["color"] != explicit["marker"]["color"]
    assert implicit["marker"]["symbol"] != explicit["marker"]["symbol"]
    took = 200_000 + (1 << 20)
    at = implicit["x"].index(1 << 21)
    assert implicit["y"][at] == pytest.approx((1 << 21) / took, rel=1e-5)
    words = figure.strings[implicit["hovertext"][at]]
    assert "train.py:42 (step)<br>aten.mm.default" in words
    assert figure.notes == ["2 sites of 7 not drawn: size or bandwidth is unknown or zero."]


def test_more_sites_than_can_be_drawn_are_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_roofline, "SITES_DRAWN", 3)
    figure = page_roofline.figure(sites(sample_reports.report()))
    assert sum(len(trace["x"]) for trace in figure.data if trace.get("legendgroup") == "sites") == 3
    assert figure.notes[-1] == "Only the 3 sites with the most exposed time of 5 are drawn."


def test_timeline_holds_each_collective_with_its_parts():
    figure = timeline.figure(sample_reports.report())
    calls = figure.columns["calls"]
    assert len(calls["row"]) == 48
    assert figure.notes == ["1 collective of 49 not drawn: start or duration is unknown."]
    first = 3
    assert (calls["start"][first], calls["length"][first]) == (24.0, 1.248576)
    assert (calls["exposed"][first], calls["wait"][first]) == (0.624288, 0.0)
    assert figure.strings[calls["text"][first]].startswith("all_reduce ×2 tp, 2.10 MB\ntrain.py:42")
    picks = {trace["name"]: trace["rects"]["pick"] for trace in figure.data}
    whole = [*picks["implicit"], *picks["explicit"], *picks["origin unknown"]]
    assert sorted(whole) == list(range(48))
    assert picks["exposed"] == list(range(48))
    assert picks["waiting"] == [at for at in range(48) if calls["wait"][at]]
    assert picks["step"] == list(range(8))
    assert figure.layout["yaxis"]["ticktext"] == [
        f"rank {rank} · {group}" for rank in range(4) for group in ("tp", "world")
    ]


def test_timeline_folds_the_cheapest_and_says_so():
    report = sample_reports.many(4, 500)
    figure = timeline.figure(report, drawn=300)
    calls, folded = figure.columns["calls"], figure.columns["folded"]
    assert len(calls["row"]) == 300
    assert sum(folded["calls"]) == 1700
    exposed = report.collectives["exposed_ns"].sort_values(ascending=False)
    assert min(calls["exposed"]) * 1e6 >= exposed.iloc[300] - 1
    assert len(folded["row"]) <= 4 * timeline.STRETCHES
    assert figure.notes[0].startswith("The 300 most expensive of 2,000 collectives are drawn one by one")
    assert "The other 1,700 are folded into grey bars" in figure.notes[0]
    assert all(length > 0 for length in folded["length"])


def test_timeline_draws_all_when_they_are_few():
    figure = timeline.figure(sample_reports.many(4, 50), drawn=200)
    assert len(figure.columns["calls"]["row"]) == 200
    assert figure.columns["folded"]["row"] == []
    assert figure.notes == []


def test_many_ranks_have_a_number_at_every_few_rows():
    ticks = timeline.figure(sample_reports.many(64, 1)).layout["yaxis"]
    assert ticks["tickvals"] == list(range(0, 64, 2))
    assert ticks["ticktext"][1] == "rank 2"


def test_literal_is_what_plotly_shows_as_it_is():
    assert literal("<b>&lt;") == "&lt;b&gt;&amp;lt;"
