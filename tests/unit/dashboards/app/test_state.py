"""An address restores what a reader chose, and an odd address is no error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardtoll.dashboards.app.filters import Filter
from shardtoll.dashboards.app.state import ReaderPlace, keys
from shardtoll.dashboards.page.views.views import VIEWS
from tests import sample_reports

TEXT = st.text(st.sampled_from([*'a/&=?#%+ <"é', "\u202e"]), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    run=st.none() | TEXT,
    view=st.sampled_from([view.name for view in VIEWS]),
    finding=st.none() | TEXT,
    low=st.integers(-1000, 1000),
    only=st.builds(Filter, phases=st.sampled_from([(), ("forward",), ("forward", "backward")])),
)
def test_what_is_written_is_read_again(run, view, finding, low, only):
    place = ReaderPlace(run, view, finding, (("x", low / 8, low / 8 + 1),), only)
    assert ReaderPlace.from_query(place.to_query()) == place


def test_nothing_chosen_is_an_empty_query():
    assert ReaderPlace().to_query() == ""
    assert ReaderPlace.from_query("") == ReaderPlace.from_query("?") == ReaderPlace()


@pytest.mark.parametrize(
    "query",
    ["?view=none", "?zoom=x:1", "?zoom=x:nan:inf", "?zoom=x:1:1", "?zoom=z:1:2", "?zoom=" + "x:1:2," * 9000,
     "?%ff=%ff", "?&&&===", "?view=" + "a" * 100_000, "?ranks=x,-1,99999999999999999999"],
)  # fmt: skip
def test_what_cannot_be_meant_is_left_out(query: str):
    place = ReaderPlace.from_query(query)
    assert place.view == VIEWS[0].name
    assert all(low != high and abs(low) < 10 for _, low, high in place.zoom)


def test_lone_surrogates_of_file_names_end_nothing():
    assert ReaderPlace.from_query(ReaderPlace(run="a\udcff").to_query()).run == "a?"


def test_keys_stay_while_numbers_change():
    first, error, last = sample_reports.FINDINGS[:3]
    before = keys((first, error, last))
    grown = replace(last, toll_ns=99_000_000, title="other numbers")
    after = keys((grown, first, error))
    assert list(before) != list(after)
    assert set(before) == set(after)
    assert sorted(before.values()) == sorted(after.values()) == [1, 2, 3]


def test_findings_of_one_place_have_keys_of_their_own():
    finding = sample_reports.FINDINGS[0]
    assert len(keys((finding, finding, finding))) == 3
    # A key stands in addresses and ids: no character of a name may be in it.
    for key in keys(sample_reports.hostile().findings):
        assert key.replace("-", "").isalnum()
