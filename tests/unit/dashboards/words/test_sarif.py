from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardtoll.dashboards.exports import sarif
from shardtoll.dashboards.exports.sarif import SourceLine, source_line
from shardtoll.dashboards.words.kind_words import WORDS
from shardtoll.ledger import KINDS, Finding, Report, Where
from tests import sample_reports

SCHEMA = Path(__file__).parents[3] / "data" / "sarif-2.1.0-rtm.5.json"


def validate(log: object) -> None:
    """Raise what the published schema has against it."""
    _checker().validate(log)


@cache
def _checker() -> Any:
    # Takes a second and a half to import: whoever collects this file need not wait for that.
    import jsonschema

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())


def run_of(report: Report) -> Mapping[str, Any]:
    log = sarif.sarif(report)
    validate(log)
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def at(source: str | None, **changes: Any) -> Finding:
    return replace(
        sample_reports.FINDINGS[0], where=Where("forward", "blocks.0.mlp", source=source), **changes
    )


def result_of(*findings: Finding) -> list[dict[str, Any]]:
    found = run_of(sample_reports.report(findings=findings))["results"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("make", ["report", "empty", "unknown", "hostile"])
def test_every_sample_has_the_schema(make: str, tmp_path: Path):
    report = getattr(sample_reports, make)()
    assert sarif.write(report, tmp_path / "x.sarif") == [tmp_path / "x.sarif"]
    log = json.loads((tmp_path / "x.sarif").read_text(encoding="ascii"))
    validate(log)
    (run,) = log["runs"]
    assert sum(
        map(len, (run["results"], run["invocations"][0].get("toolExecutionNotifications", [])))
    ) >= len(report.findings)


def test_the_schema_would_refuse_a_mistake():
    from jsonschema import ValidationError

    log = sarif.sarif(sample_reports.report())
    log["runs"][0]["results"][0]["level"] = "info"
    with pytest.raises(ValidationError, match="'info' is not one of"):
        validate(log)


def test_a_finding_stands_at_its_line():
    run = run_of(sample_reports.report())
    (result,) = run["results"]
    rules = run["tool"]["driver"]["rules"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "implicit-redistribute"
    assert result["level"] == "warning"
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 42},
    }
    assert "It costs 9.40 ms per step, of which at most 8.20 ms can be saved." in result["message"]["text"]
    told = run["invocations"][0]["toolExecutionNotifications"]
    assert [(one["level"], one.get("associatedRule", {}).get("id")) for one in told[:2]] == [
        ("error", "wrong-gradient"),
        ("note", "latency-bound"),
    ]


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("a/b c.py:7 (f)", "a/b%20c.py"),
        ("/home/u/train.py:7 (f)", "file:///home/u/train.py"),
        ("//host/x.py:7", "file:///host/x.py"),
        ("../../etc/x.py:7", "etc/x.py"),
        ("a:1:7 (f)", "a%3A1"),
        ("é%#?.py:7 (<lambda>)", "%C3%A9%25%23%3F.py"),
    ],
)
def test_paths_are_uris(source: str, uri: str):
    (result,) = result_of(at(source))
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == uri
    assert place["region"]["startLine"] == 7
    assert ("uriBaseId" in place["artifactLocation"]) is not uri.startswith("file:")


@pytest.mark.parametrize(
    ("source", "traced", "base"),
    [
        ("train.py:7 (f)", False, "%SRCROOT%"),
        ("src/job/train.py:7 (f)", False, "%SRCROOT%"),
        # It may be all of the path, or the end of /opt/lib/utils.py.
        ("lib/utils.py:7 (f)", False, "%PATHENDS%"),
        ("../lib/utils.py:7 (f)", False, "%PATHENDS%"),
        ("train.py:7 (f)", True, "%PATHENDS%"),
        ("torch/nn/modules/linear.py:7 (f)", True, "%PATHENDS%"),
        ("/opt/lib/utils.py:7 (f)", True, None),
    ],
)
def test_what_may_be_the_end_of_a_longer_path_claims_no_folder(source: str, traced: bool, base: str | None):
    report = sample_reports.report(findings=(at(source),))
    run = run_of(replace(report, run=replace(report.run, source="trace" if traced else "live")))
    (result,) = run["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact.get("uriBaseId") == base
    assert ("longer path" in artifact.get("description", {}).get("text", "")) is (base == "%PATHENDS%")
    # SARIF 2.1.0, 3.14.14: a base without a URI is one that the reader has to supply, or to do without.
    assert all("uri" not in one for one in run["originalUriBaseIds"].values())
    assert set(run["originalUriBaseIds"]) == {"%SRCROOT%", "%PATHENDS%"}


@pytest.mark.parametrize(
    "source", [None, "", "<string>:1 (<module>)", "train.py", "train.py:0 (f)", "a\n.py:1 (f)"]
)
def test_what_is_no_line_of_a_file_is_a_notification(source: str | None):
    assert source_line(source) is None
    assert result_of(at(source)) == []


def test_a_source_is_read_as_capture_writes_it():
    assert source_line("pkg/train.py:42 (step)") == SourceLine("pkg/train.py", 42, "step")
    assert source_line("train.py:42") == SourceLine("train.py", 42, None)


def test_fingerprints_outlive_edits_above_the_line_and_other_costs():
    def prints(*findings: Finding) -> list[str]:
        return [one["partialFingerprints"]["shardtollFinding/v1"] for one in result_of(*findings)]

    first = at("train.py:42 (step)")
    (before,) = prints(first)
    (after,) = prints(replace(at("train.py:57 (step)"), toll_ns=77_000_000, title="other numbers", count=9))
    assert before == after
    assert prints(first, first) == [before, before[:-1] + "2"]
    for other in (
        at("other.py:42 (step)"),
        at("train.py:42 (eval)"),
        at("train.py:42 (step)", kind="wide-dtype"),
    ):
        assert prints(other) != [before]


def test_messages_hold_no_links():
    (result,) = result_of(at("x.py:1", title="see [here](http://evil) and \\ more"))
    assert "\\[here\\](http://evil) and \\\\ more" in result["message"]["text"]


def test_every_kind_has_its_words():
    assert list(WORDS) == list(KINDS)
    assert all(words.endswith(".") for words in WORDS.values())
