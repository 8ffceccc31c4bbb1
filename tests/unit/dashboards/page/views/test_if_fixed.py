"""The way from today's step to the floor: bars that meet, in order, and what is not among them."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.dashboards.page.views import if_fixed
from shardtoll.dashboards.terminal.terminal import path
from shardtoll.ledger.answers.what_if import WITHOUT_CAPTURE, Path, PathPart
from tests.falling_report import MS, report


def test_each_bar_begins_where_the_one_above_it_ends():
    figure = if_fixed.figure(report())
    drawn = {trace["name"]: trace for trace in figure.data}
    assert list(drawn) == ["the step", "shorter by", "longer by"]
    assert (drawn["the step"]["base"], drawn["the step"]["x"]) == ([0, 0, 0], [30, 22, 12])
    assert (drawn["shorter by"]["base"], drawn["shorter by"]["x"]) == ([20], [10])
    assert (drawn["longer by"]["base"], drawn["longer by"]["x"]) == ([20], [2])
    order = figure.layout["yaxis"]["categoryarray"]
    first, second = "1 straggler: &lt;b&gt;gone&lt;/b&gt;", "2 recompute: &lt;b&gt;gone&lt;/b&gt;"
    assert order == ["today", first, second, "with these fixes", "collectives at their floor too"]
    assert (drawn["shorter by"]["y"], drawn["longer by"]["y"]) == ([first], [second])
    (text,) = drawn["shorter by"]["hovertext"]
    assert "shorter by 10.0 ms, then 20.0 ms<br>alone it saves 10.0 ms (9.00 ms to 11.0 ms)" in text


def test_a_picked_finding_lights_up_its_own_bar():
    assert if_fixed.figure(report()).marks == {1: {1: [0]}, 2: {2: [0]}}


def test_what_is_not_in_the_fall_and_what_its_times_leave_out_is_said():
    notes = if_fixed.figure(report()).notes
    assert notes[:2] == [if_fixed.FLOOR, "Not shown: finding 3, whose fix cannot be replayed."]
    assert if_fixed.FLOOR not in if_fixed.figure(report(floor_ns=None)).notes
    untried = if_fixed.figure(report(tried=2)).notes
    assert "Not shown: finding 3. Only the first 2 with a toll are replayed." in untried
    assert not any("cannot be replayed" in note for note in untried)
    assert WITHOUT_CAPTURE not in notes
    assert WITHOUT_CAPTURE in if_fixed.figure(report(without_capture=True)).notes


def test_the_terminal_says_what_its_times_leave_out():
    way = Path(30 * MS, (PathPart("compute", "", "forward", 30 * MS, 1.0, (0,)),), 0.0, 0)
    for without in (False, True):
        lines = path(report(path=way, without_capture=without), 100)
        assert any(str(line) == WITHOUT_CAPTURE for line in lines) == without


def test_no_floor_has_no_bar_and_no_replay_no_figure():
    drawn = if_fixed.figure(report(floor_ns=None)).data[0]
    assert drawn["y"] == ["today", "with these fixes"]
    assert if_fixed.figure(report(changes=())).empty
    assert not if_fixed.numbers(report(changes=()))
    none = replace(report(), foreseen=None)
    assert if_fixed.figure(none).empty
    assert not if_fixed.figure(none).notes


def test_the_table_says_the_same():
    table = if_fixed.numbers(report())
    assert "cumulative step" in table
    assert "-2.00 ms" in table
    assert "&lt;b&gt;gone" in table
