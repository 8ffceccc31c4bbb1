"""What a reader did is found whatever brought the question, also where the answers before it were dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.app_acts import Controls, chosen, picked, values
from shardtoll.dashboards.app_state import Place
from shardtoll.dashboards.filters import Filter

SOME = Filter(ranks=(0, 1), kinds=("latency-bound",))
EMPTY = values(Filter())
NOISE = [(), ("figure",), ("subject",), ("address",), ("some-finding",)]


@pytest.mark.parametrize("causes", NOISE)
def test_an_address_that_was_not_answered_yet_wins_over_fields_nobody_touched(causes):
    heard = Controls(EMPTY).heard(Place())
    place = Place(only=SOME)
    assert chosen(place, Controls(EMPTY), heard, causes) == place
    assert chosen(place, Controls({}), None, causes) == place
    back = Controls(values(SOME)).heard(place)
    assert chosen(Place(), Controls(values(SOME)), back, causes) == Place()


@pytest.mark.parametrize("causes", [*NOISE, ("ranks",)])
def test_a_field_that_was_touched_wins_over_the_address_and_the_others_do_not(causes):
    heard = Controls(EMPTY).heard(Place())
    now = Controls({**EMPTY, "ranks": "3,2"})
    after = chosen(Place(only=Filter(phases=("forward",))), now, heard, causes)
    assert after.only == Filter(ranks=(2, 3), phases=("forward",))
    # What was heard is not done again.
    again = Controls(values(after.only)).heard(after)
    assert chosen(Place(), Controls(values(after.only)), again) == Place()


def test_a_field_of_nonsense_is_no_filter_and_is_emptied():
    after = chosen(Place(), Controls({**EMPTY, "ranks": "x"}), Controls(EMPTY).heard(Place()))
    assert values(after.only)["ranks"] == ""


@pytest.mark.parametrize("causes", [*NOISE, ("clear",), ("ranks", "clear")])
def test_clear_is_heard_once_and_wins_over_a_field_that_was_left_for_it(causes):
    place = Place(only=SOME)
    heard = Controls(values(SOME)).heard(place)
    now = Controls({**values(SOME), "ranks": "2"}, clear=1)
    assert chosen(place, now, heard, causes) == Place()
    assert chosen(place, replace(now, fields=EMPTY), now.heard(Place())) == place


def test_a_field_that_is_filled_in_after_clear_stays():
    place = Place(only=SOME)
    now = Controls({**values(SOME), "ranks": "2"}, clear=1)
    after = chosen(place, now, Controls(values(SOME)).heard(place), ("ranks",))
    assert after.only == Filter(ranks=(2,))


def test_a_zoom_is_heard_once_and_only_in_its_view():
    now = Controls(EMPTY, moved={"xaxis.range": [1, 2]})
    heard = Controls(EMPTY).heard(Place(view="timeline"))
    after = chosen(Place(view="timeline"), now, heard, ("some-finding",))
    assert after.zoom == (("x", 1.0, 2.0),)
    assert chosen(Place(view="timeline"), now, now.heard(after)).zoom == ()
    assert chosen(Place(view="modules"), now, heard).zoom == ()
    assert chosen(after, replace(now, unzoom=1), now.heard(after), ("subject",)).zoom == ()


def test_what_was_done_to_another_run_is_not_done_to_this_one():
    heard = Controls(EMPTY).heard(Place(run="a"))
    now = Controls({**EMPTY, "ranks": "1"}, clear=1, unzoom=1, picks={"k": 1}, moved={"xaxis.range": [1, 2]})
    place = Place(run="b", only=SOME)
    assert chosen(place, now, heard) == place
    assert picked(now, place, heard) == []


@pytest.mark.parametrize(
    ("count", "last", "causes", "wanted"),
    [
        (0, 0, ("k",), False),
        (1, 0, ("k",), True),
        # The answer to the click was dropped for the one to another question.
        (1, 0, ("figure",), True),
        (1, 1, ("figure",), False),
        # Opened and shut again before an answer came.
        (3, 1, ("k",), False),
        # The line is drawn anew, and counts from 0.
        (0, 2, ("k",), False),
        (1, 2, (), True),
        (1, 1, ("k",), True),
    ],
)
def test_a_click_on_a_finding_is_heard_once(count, last, causes, wanted):
    heard = Controls(EMPTY, picks={"k": last}).heard(Place())
    assert picked(Controls(EMPTY, picks={"k": count}), Place(), heard, causes) == (["k"] if wanted else [])


@pytest.mark.parametrize("heard", [7, [], {}, {"fields": 3, "picks": 3, "clear": 0, "unzoom": 0}])
def test_what_the_page_kept_may_be_anything(heard):
    assert chosen(Place(), Controls(EMPTY, picks={"k": 1}), heard) == Place()
    assert picked(Controls(EMPTY, picks={"k": 1}), Place(), heard) == ["k"]
