from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from shardtoll.dashboards.page import page
from shardtoll.dashboards.page.html import frame
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.page import tab_title
from shardtoll.dashboards.page.views import anatomy
from shardtoll.dashboards.words.text import clean
from shardtoll.ledger import Evidence, Report
from tests import sample_reports


class Seen(HTMLParser):
    """What a browser would make of a page: its elements, their attributes, its text and its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


def figures(html: str) -> dict[str, Any]:
    return dict(json.loads(Seen(html).scripts[0]))


@pytest.fixture(scope="module")
def ordinary() -> str:
    return page.render(sample_reports.report())


@pytest.fixture(scope="module")
def hostile() -> str:
    return page.render(sample_reports.hostile())


def test_same_report_same_bytes_in_every_process(ordinary: str):
    again = Report.from_json(sample_reports.report().to_json())
    assert page.render(again) == ordinary
    program = (
        "import hashlib; from tests import sample_reports; from shardtoll.dashboards.page import page;"
        "print(hashlib.sha256(page.render(sample_reports.report()).encode()).hexdigest())"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "TZ": "Asia/Tokyo"},
        )
        assert done.stdout.strip() == hashlib.sha256(ordinary.encode()).hexdigest()


def test_nothing_is_fetched(ordinary: str):
    seen = Seen(ordinary)
    loading = [
        value for name, value in seen.attributes if name in ("src", "href", "action", "data", "srcset")
    ]
    drawn = {"anatomy", "roofline", "timeline", "bytes", "matrix", "modules", "heat"}
    findings = {f"#finding-{number}" for number in (1, 2, 3)}
    assert set(loading) == {"data:,", "#bill", *(f"#{name}" for name in drawn), *findings}
    assert not {"img", "iframe", "object", "embed", "form", "base"} & set(seen.tags)
    policy = next(value for _, value in seen.attributes if value and value.startswith("default-src"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"https?:|\*|'unsafe-eval'|connect-src|script-src[^;]*unsafe-inline", policy)


def test_policy_allows_the_two_scripts_and_no_other(ordinary: str):
    seen = Seen(ordinary)
    policy = next(value for _, value in seen.attributes if value and value.startswith("default-src"))
    data, plotly, ours = seen.scripts
    found = re.findall(r"'sha256-([^']+)'", policy)
    wanted = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (plotly, ours)]
    assert found == wanted
    json.loads(data)


def test_hostile_names_stay_text(ordinary: str, hostile: str):
    seen, plain = Seen(hostile), Seen(ordinary)
    assert set(seen.tags) == set(plain.tags)
    assert len(seen.scripts) == 3
    assert seen.scripts[1:] == plain.scripts[1:]
    assert {name for name, _ in seen.attributes} == {name for name, _ in plain.attributes}
    for key in ("script", "close", "quotes", "markup", "plotly", "escape", "rtl", "surrogate"):
        assert clean(sample_reports.HOSTILE[key]) in seen.text
    assert "\u202e" not in hostile
    assert "\x1b" not in hostile
    hostile.encode()
    assert len(hostile) - len(ordinary) < 300_000


def test_plotly_gets_no_tags_from_names(hostile: str):
    def strings(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for item in value.values() for text in strings(item)]
        if isinstance(value, list):
            return [text for item in value for text in strings(item)]
        return [value] if isinstance(value, str) else []

    drawn = figures(hostile)
    # The timeline's strings are shown by textContent, all others by Plotly, which reads some HTML.
    drawn["timeline"]["strings"] = []
    tags = {tag for text in strings(drawn) for tag in re.findall(r"<[^>]*>?", text)}
    assert tags <= {"<b>", "</b>", "<br>", "<extra>", "</extra>"}
    assert any("&lt;script&gt;" in text for text in strings(drawn))


def test_json_in_the_page_cannot_end_its_element():
    text = frame.embedded({"a": "</script><!-- & \u2028"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        frame.embedded(float("nan"))


def test_safe_isolates_direction():
    assert safe('<b a="1">\u202e') == "<bdi>&lt;b a=&quot;1&quot;&gt;\\u202e</bdi>"


def test_bars_of_a_rank_add_up(ordinary: str):
    data = figures(ordinary)["anatomy"]["data"]
    assert [trace["name"] for trace in data] == [
        "compute",
        "exposed: waiting",
        "exposed: moving",
        "exposed: waiting or moving unknown",
        "exposed copies",
        "idle",
        "unattributed",
    ]
    assert [round(sum(trace["x"][rank] for trace in data), 6) for rank in range(4)] == [50, 50, 53, 50]
    assert data[0]["y"][2] == "rank 2 (slowest)"
    assert "of which capture: 2.00 ms" in anatomy.figure(sample_reports.report()).data[-1]["hovertext"][0]


def test_evidence_does_not_break_within_a_number_and_tells_shares_in_percent():
    facts = (
        Evidence("share of the step", 0.2568, "share"),
        Evidence("ideal bubble, share of the step", 0.03, "share"),
        Evidence("longest", 256_800, "ns"),
        Evidence("kernel", "own kernel"),
    )
    report = sample_reports.report()
    finding = replace(report.findings[0], ranks=(3,), evidence=facts)
    html = page.render(replace(report, findings=(finding,)))
    row = html[html.index('id="finding-1"') :]
    assert '<td class="number"><bdi>26 %</bdi>' in row
    assert '<td class="number"><bdi>3.0 %</bdi>' in row
    assert '<td class="number"><bdi>257 µs</bdi>' in row
    assert '<td class="text"><bdi>own kernel</bdi>' in row
    assert ".evidence .number { white-space: nowrap; }" in html
    # The row itself says whose it is, where it is not everybody's.
    assert "· rank 3</small>" in row
    every = replace(finding, ranks=report.run.ranks_seen)
    assert "· rank" not in page.render(replace(report, findings=(every,)))


def test_findings_in_order_with_evidence_remedy_and_source(ordinary: str):
    places = [ordinary.index(f'id="finding-{at}"') for at in (1, 2, 3)]
    assert places == sorted(places)
    second = ordinary[places[1] : places[2]]
    assert "warning" in second
    text = Seen(second).text
    for part in (
        "train.py:42 (step)",
        "(Partial(sum),) -> (Replicate(),)",
        "470 MB/s",
        "bandwidth at the floorunknown",
        "'mlp.out': RowwiseParallel(output_layouts=Shard(1)),",
        "Saves at most 8.20 ms per step, against: the same step without this all_reduce.",
        "4 per step and rank",
    ):
        assert part in text
    assert ordinary.index("<title>shardtoll: 1 error") < ordinary.index('id="headline"') < places[0]


def test_the_title_of_a_tab_is_short_whatever_the_verdict_is():
    report = sample_reports.report()
    assert tab_title(report) == "shardtoll: 1 error (wrong-gradient) · 4 ranks"
    assert tab_title(replace(report, headline="word " * 200)) == tab_title(report)
    assert tab_title(replace(report, findings=report.findings[1:])).startswith(
        "shardtoll: 1 warning (implicit-"
    )
    assert tab_title(replace(report, findings=())) == "shardtoll: nothing found · 4 ranks"
    for made in (report, sample_reports.hostile(), sample_reports.empty()):
        assert len(tab_title(made)) < 80


def test_unknown_is_a_word(ordinary: str):
    first = ordinary[ordinary.index('id="finding-1"') : ordinary.index('id="finding-2"')]
    third = ordinary[ordinary.index('id="finding-3"') :]
    assert 'data-name="saving"><em class="unknown">unknown</em>' in third
    # A wrong gradient has no toll that one could know.
    assert [first.count(f'data-name="{name}">–') for name in ("floor", "saving")] == [1, 1]
    assert "unknown" not in first[: first.index('<div class="body">')]
    assert "0 ns" not in first


def test_pages_without_steps_collectives_or_times():
    empty = Seen(page.render(sample_reports.empty())).text
    assert "Nothing found." in empty
    assert "Checked: 0 collectives" in empty
    assert "No step finished, so there is no time to divide." in empty
    assert "There are no collectives." in empty
    assert "rank 1 left no records" in empty
    assert figures(page.render(sample_reports.empty())) == {}
    unknown = page.render(sample_reports.unknown())
    assert set(figures(unknown)) == {"anatomy"}
    assert "2 collectives of 2 not drawn: start or duration is unknown." in Seen(unknown).text
    assert "1 site of 1 not drawn: size or bandwidth is unknown or zero." in Seen(unknown).text


def test_headline_of_a_clean_report_is_not_an_alarm():
    clean_page = page.render(replace(sample_reports.report(), findings=()))
    assert 'class="headline fine"' in clean_page
    assert 'class="headline fine"' not in page.render(sample_reports.report())


def test_the_verdict_is_text_and_stands_alone():
    said = page.render(replace(sample_reports.report(), headline="<b>Rank 7</b> is late"))
    verdict = re.search(r'<p class="headline" id="headline">(.*?)</p>', said)
    assert verdict is not None
    assert verdict[1].startswith("<bdi>1 error to fix first: ")
    assert verdict[1].endswith(" &lt;b&gt;Rank 7&lt;/b&gt; is late</bdi>")
    assert "<b>Rank 7" not in said
    assert 'id="second-line"' not in said


def test_no_upload_button(ordinary: str):
    script = Seen(ordinary).scripts[2]
    buttons = re.search(r"const BUTTONS = \[(.*?)\]", script)
    assert buttons is not None
    assert "sendChartToCloud" not in buttons.group(1)
    assert "modeBarButtons: [BUTTONS]" in script
