"""What a reader did is found whatever brought the question, also where the answers before it were dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.app.acts import Controls, chosen, values
from shardtoll.dashboards.app.filters import Filter
from shardtoll.dashboards.app.state import ReaderPlace

SOME = Filter(ranks=(0, 1), kinds=("latency-bound",))
EMPTY = values(Filter())
NOISE = [(), ("subject",), ("address",)]


@pytest.mark.parametrize("causes", NOISE)
def test_an_address_that_was_not_answered_yet_wins_over_fields_nobody_touched(causes):
    heard = Controls(EMPTY).heard(ReaderPlace())
    place = ReaderPlace(only=SOME)
    assert chosen(place, Controls(EMPTY), heard, causes) == place
    assert chosen(place, Controls({}), None, causes) == place
    back = Controls(values(SOME)).heard(place)
    assert chosen(ReaderPlace(), Controls(values(SOME)), back, causes) == ReaderPlace()


@pytest.mark.parametrize("causes", [*NOISE, ("ranks",)])
def test_a_field_that_was_touched_wins_over_the_address_and_the_others_do_not(causes):
    heard = Controls(EMPTY).heard(ReaderPlace())
    now = Controls({**EMPTY, "ranks": "3,2"})
    after = chosen(ReaderPlace(only=Filter(phases=("forward",))), now, heard, causes)
    assert after.only == Filter(ranks=(2, 3), phases=("forward",))
    # What was heard is not done again.
    again = Controls(values(after.only)).heard(after)
    assert chosen(ReaderPlace(), Controls(values(after.only)), again) == ReaderPlace()


def test_a_field_of_nonsense_is_no_filter_and_is_emptied():
    after = chosen(ReaderPlace(), Controls({**EMPTY, "ranks": "x"}), Controls(EMPTY).heard(ReaderPlace()))
    assert values(after.only)["ranks"] == ""


@pytest.mark.parametrize("causes", [*NOISE, ("clear",), ("ranks", "clear")])
def test_clear_is_heard_once_and_wins_over_a_field_that_was_left_for_it(causes):
    place = ReaderPlace(only=SOME)
    heard = Controls(values(SOME)).heard(place)
    now = Controls({**values(SOME), "ranks": "2"}, clear=1)
    assert chosen(place, now, heard, causes) == ReaderPlace()
    assert chosen(place, replace(now, fields=EMPTY), now.heard(ReaderPlace())) == place


def test_a_field_that_is_filled_in_after_clear_stays():
    place = ReaderPlace(only=SOME)
    now = Controls({**values(SOME), "ranks": "2"}, clear=1)
    after = chosen(place, now, Controls(values(SOME)).heard(place), ("ranks",))
    assert after.only == Filter(ranks=(2,))


def test_what_was_done_to_another_run_is_not_done_to_this_one():
    heard = Controls(EMPTY).heard(ReaderPlace(run="a"))
    now = Controls({**EMPTY, "ranks": "1"}, clear=1)
    place = ReaderPlace(run="b", only=SOME)
    assert chosen(place, now, heard) == place


@pytest.mark.parametrize("heard", [7, [], {}, {"fields": 3, "clear": 0}])
def test_what_the_page_kept_may_be_anything(heard):
    assert chosen(ReaderPlace(), Controls(EMPTY), heard) == ReaderPlace()
