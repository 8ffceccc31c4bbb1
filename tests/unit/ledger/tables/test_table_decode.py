"""A report's tables are read without a dict a row, and come out as the slower reader makes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardtoll.ledger import Report, SchemaError
from shardtoll.ledger.report import report
from shardtoll.ledger.tables import table_decode
from shardtoll.ledger.tables.tables import SCHEMAS
from tests import sample_reports

SAMPLES = ("report", "hostile", "unknown", "empty")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The reader through dicts alone."""

    def refuse(text: str) -> Any:
        raise ValueError(text[:1])

    def read(text: str) -> Report:
        with monkeypatch.context() as patched:
            patched.setattr(table_decode, "split", refuse)
            return Report.from_json(text)

    return read


@pytest.mark.parametrize("name", SAMPLES)
def test_both_ways_give_the_same_report(name: str, slow: Any):
    text = getattr(sample_reports, name)().to_json()
    assert Report.from_json(text) == slow(text)
    # Written by others, with blanks and escapes.
    assert Report.from_json(json.dumps(json.loads(text), indent=1)) == slow(text)


def test_no_row_of_a_sound_report_becomes_a_dict(monkeypatch: pytest.MonkeyPatch):
    text = sample_reports.report().to_json()
    loaded: list[object] = []
    loads = json.loads

    def seen(part: Any) -> Any:
        loaded.append(loads(part))
        return loaded[-1]

    monkeypatch.setattr(report.json, "loads", seen)
    Report.from_json(text)
    assert loaded
    assert not any(isinstance(part, dict) and set(SCHEMAS) & set(part) for part in loaded)
    assert not any(isinstance(part, list) and part and "duration_ns" in part[0] for part in loaded)


@pytest.mark.parametrize(
    "row",
    [
        {"step": None},
        {"duration_ns": None},
        {"duration_ns": 2**70},
        {"duration_ns": "1"},
        {"duration_ns": True},
        {"duration_ns": -1},
        {"level": None},
        {"level": "guess"},
    ],
)
def test_both_ways_say_the_same_of_an_unfit_row(row: dict[str, object], slow: Any):
    document = json.loads(sample_reports.report().to_json())
    document["steps"][1] |= row
    text = json.dumps(document)
    with pytest.raises(SchemaError) as fast:
        Report.from_json(text)
    with pytest.raises(SchemaError) as wanted:
        slow(text)
    assert str(fast.value) == str(wanted.value)


def test_rows_of_earlier_versions_and_of_later_ones_are_read(slow: Any):
    document = json.loads(sample_reports.report().to_json())
    for one in document["steps"]:
        del one["level"]
        one["later"] = {"much": [1]}
    del document["leadups"]
    text = json.dumps(document)
    found = Report.from_json(text)
    assert found == slow(text)
    assert set(found.steps["level"]) == {"survey"}
