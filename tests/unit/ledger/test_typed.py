"""Values of the wrong type in a file are told when it is read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shardtoll.ledger import Evidence, Finding, Remedy, Report, SchemaError, Where
from shardtoll.ledger.comparison import Change
from shardtoll.ledger.typed import typed
from shardtoll.ledger.verification import Quantity
from tests import sample_reports

WRONG: list[tuple[str, Any]] = [
    ("run.hosts", [1]),
    ("run.mesh", None),
    ("run.mesh", {"tp": "two"}),
    ("run.world_size", True),
    ("run.ranks_seen", [None]),
    ("run.source", "guessed"),
    ("fabric.name", 3),
    ("groups.0.name", None),
    ("findings.0.title", 5),
    ("findings.0.ranks", ["0"]),
    ("findings.0.toll_ns", 1.5),
    ("findings.0.where.source", 7),
    ("findings.0.evidence.0.label", None),
    ("findings.0.remedy.text", []),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{path}={value}" for path, value in WRONG])
def test_a_report_with_a_value_of_another_type_is_damaged(path: str, value: Any) -> None:
    document = json.loads(sample_reports.report().to_json())
    assert Report.from_json(json.dumps(document)).findings, "it is whole before"
    *parents, name = path.split(".")
    at: Any = document
    for parent in parents:
        at = at[int(parent) if parent.isdigit() else parent]
    at[name] = value
    with pytest.raises(SchemaError, match="is damaged") as told:
        Report.from_json(json.dumps(document))
    assert "\n" not in str(told.value)


def test_deep_nesting_is_no_report() -> None:
    with pytest.raises(SchemaError, match="is not a shardtoll report"):
        Report.from_json("[" * 100_000)


def test_what_fits_is_returned_unchanged() -> None:
    finding = Finding(
        "latency-bound",
        "info",
        "t",
        5,
        None,
        None,
        3,
        1,
        (0, 1),
        Where(op="x"),
        (Evidence("a", 1.5, "ns"),),
        Remedy("r"),
    )
    assert typed(finding) is finding


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_refused(wrong: float) -> None:
    for make in (
        lambda value: Quantity("step", "ns", 1.0, value),
        lambda value: Change("step", "ns", 1.0, 2.0, "more", low=value),
    ):
        make(None)
        with pytest.raises(ValueError, match=rf"^step is {wrong}: unknown is None$"):
            make(wrong)
