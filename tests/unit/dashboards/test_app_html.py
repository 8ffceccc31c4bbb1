"""Our HTML becomes Dash's components with the same elements and the same letters."""

from __future__ import annotations

import json
from html import escape

import pytest

from shardtoll.dashboards import summary
from shardtoll.dashboards.app_html import components
from shardtoll.dashboards.app_layout import POLL_MS, findings, head, layout
from shardtoll.dashboards.app_state import keys
from shardtoll.dashboards.filters import Filter, apply
from shardtoll.dashboards.page_bill import safe
from shardtoll.dashboards.text import clean
from tests import sample_reports


def plain(part: object) -> str:
    """The text of a component and all in it."""
    if part is None:
        return ""
    if isinstance(part, (list, tuple)):
        return "".join(map(plain, part))
    return plain(part.children) if hasattr(part, "children") else str(part)


def walk(part: object):
    if isinstance(part, (list, tuple)):
        for one in part:
            yield from walk(one)
    elif hasattr(part, "to_plotly_json"):
        yield part
        yield from walk(getattr(part, "children", None))


def test_elements_attributes_and_text():
    (made,) = components('<td class="num" colspan="2" data-name="x">a<br><b>&lt;b&gt;</b></td>')
    told = json.loads(json.dumps(made, default=lambda one: one.to_plotly_json()))
    assert told["type"] == "Td"
    assert {k: v for k, v in told["props"].items() if k != "children"} == {
        "className": "num",
        "colSpan": "2",
        "data-name": "x",
    }
    assert [one if isinstance(one, str) else one["type"] for one in told["props"]["children"]] == [
        "a",
        "Br",
        "B",
    ]
    assert plain(made) == "a<b>"


@pytest.mark.parametrize("key", sorted(sample_reports.HOSTILE))
def test_names_stay_text(key: str):
    name = sample_reports.HOSTILE[key]
    made = components(f"<p>{safe(name)}</p>")
    assert plain(made) == clean(name)
    assert [one._type for one in walk(made)] == ["P", "Bdi"]


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", '<img src=x onerror="alert(1)">', "<iframe></iframe>",
     "<svg/onload=alert(1)>",
     '<form action="x"></form>'],
)  # fmt: skip
def test_what_our_renderers_never_write_becomes_no_element(text: str):
    made = components(text)
    assert list(walk(made)) == []
    assert "<" in plain(made)


def test_attributes_that_run_or_fetch_are_dropped():
    (made,) = components(
        '<a href="javascript:alert(1)" onclick="x()" style="background:url(http://x);width:5%">x</a>'
    )
    assert made.to_plotly_json()["props"] == {"children": ["x"], "style": {"width": "5%"}}


def test_the_bill_has_every_finding_with_its_key():
    report = sample_reports.hostile()
    known = keys(report.findings)
    opened = list(known)[1]
    made = [one for one in walk(findings(report, report, [opened])) if one._type == "Details"]
    assert [one.id["key"] for one in made] == list(known)
    assert [one.id["key"] for one in made if one.open] == [opened]
    picks = [one.id for one in walk(made) if one._type == "Summary"]
    assert picks == [{"part": "pick", "key": key} for key in known]
    assert escape(sample_reports.HOSTILE["script"]) not in plain(made)
    assert sample_reports.HOSTILE["script"] in plain(made)


def test_filters_that_leave_no_finding_are_no_praise_of_the_run():
    whole = sample_reports.report()
    left = apply(whole, Filter(ranks=(7,)))
    headline, *rest = head(left, whole)
    assert plain(headline) == "Nothing of this run fits the filters. Without them there are 3 findings."
    assert headline.className == "headline"
    assert plain(findings(left, whole, [])) == plain(headline)
    # What is known of the run does not depend on what is shown of it.
    assert plain(rest) == plain(head(whole, whole)[1:])
    assert plain(head(whole, whole)[0]) == summary.headline(whole)
    assert head(sample_reports.empty(), sample_reports.empty())[0].className == "headline fine"


def test_a_page_asks_for_news_often_enough_to_show_a_step_within_five_seconds():
    (clock,) = (one for one in walk(layout()) if getattr(one, "id", None) == "clock")
    assert type(clock).__name__ == "Interval"
    assert clock.interval == POLL_MS
    # As `POLL_MS` says: a step is shown within two polls; a second is left for its analysis.
    assert 2 * clock.interval <= 4_000
    assert getattr(clock, "disabled", None) in (None, False)
    assert getattr(clock, "max_intervals", None) in (None, -1)
