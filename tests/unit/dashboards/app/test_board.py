"""What the server keeps: the state a page was told of, and figures while what they are made of stays."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.dashboards.app.board import Board
from shardtoll.dashboards.app.filters import Filter
from shardtoll.dashboards.app.source import Snapshot
from shardtoll.dashboards.app.state import ReaderPlace


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


def test_a_picked_finding_asks_for_no_other_figure_and_a_zoom_only_for_the_timelines():
    board, state = Board(None), Snapshot(None, "1")  # type: ignore[arg-type]
    place = ReaderPlace(view="timeline")
    key = board.key(state, place)
    assert board.key(state, replace(place, finding="straggler-0")) == key
    near = replace(place, zoom=(("x", 1.0, 2.0),))
    assert board.key(state, near) != key
    assert board.key(state, replace(near, view="bytes")) == board.key(state, ReaderPlace(view="bytes"))
    assert board.key(state, replace(place, only=Filter(ranks=(1,)))) != key
    assert board.key(Snapshot(None, "2"), place) != key
