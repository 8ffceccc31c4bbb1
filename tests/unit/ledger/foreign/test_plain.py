"""Values of the wrong type in a file are told when it is read."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.ledger import Evidence, Finding, Remedy, Report, Run, SchemaError, Where
from shardtoll.ledger.answers.comparison import Change
from shardtoll.ledger.answers.hta_figures import QueueLength
from shardtoll.ledger.answers.step_roofline import StepRoofline, roofline_from_plain
from shardtoll.ledger.answers.verification import Quantity
from shardtoll.ledger.foreign.plain import from_plain, to_plain
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


FINDING = Finding(
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


def test_what_fits_comes_back_equal_whole_numbers_and_fractions_apart() -> None:
    for value in (1, 1.0, "1", None):
        finding = replace(FINDING, evidence=(Evidence("a", value),))
        back = from_plain(Finding, json.loads(json.dumps(to_plain(finding))))
        assert back == finding
        assert type(back.evidence[0].value) is type(value)
    run = Run(2, None, None, None, (), {"dp": 2}, "trace", (0, 1))
    assert from_plain(Run, json.loads(json.dumps(to_plain(run)))) == run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": [0, 2**63]}, "Number does not fit 64 signed bits - at `$.ranks`"),
        ({"ranks": [-(2**63) - 1]}, "Number does not fit 64 signed bits - at `$.ranks`"),
        ({"bytes": 2**63}, "Number does not fit 64 signed bits - at `$.bytes`"),
        ({"evidence": [{"label": "a", "value": 2**63}]}, "64 signed bits - at `$.evidence[0].value`"),
        ({"evidence": [{"label": "a", "value": math.nan}]}, "say what that means in words, or None - at"),
        ({"surprise": 1}, "unknown field `surprise` - at `$`"),
        ({"where": {"line": 1}}, "unknown field `line` - at `$.where`"),
        ({"evidence": [{"label": "a", "value": 1, "of": 2}]}, "unknown field `of` - at `$.evidence[0]`"),
        ({"evidence": {}}, "Expected `array`, got `object` - at `$.evidence`"),
        ({"remedy": {}}, "missing required field `text` - at `$.remedy`"),
        ({"count": True}, "Expected `int`, got `bool` - at `$.count`"),
        ({"saving_ns": 9}, "saving 9 ns above toll 5 ns"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_plain(Finding, {**json.loads(json.dumps(to_plain(FINDING))), **change})


def test_a_fraction_that_is_no_number_is_refused() -> None:
    queue = {"rank": 0, "stream": 1, "mean": math.inf, "most": 2}
    with pytest.raises(ValueError, match=r"inf is no number: unknown is null - at `\$\.mean`"):
        from_plain(QueueLength, queue)


def test_a_roofline_with_a_figure_below_zero_or_beyond_measure_is_refused() -> None:
    plain = json.loads(json.dumps(to_plain(StepRoofline("gpu", None, {"bf16": 1.0}))))
    assert roofline_from_plain(plain).peak_tflops == {"bf16": 1.0}
    for change in ({"memory_gbps": -1}, {"peak_tflops": {"bf16": 1e31}}, {"reached_tflops": -0.5}):
        with pytest.raises(ValueError, match="is negative, no number, or beyond measure"):
            roofline_from_plain({**plain, **change})


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_refused(wrong: float) -> None:
    for make in (
        lambda value: Quantity("step", "ns", 1.0, value),
        lambda value: Change("step", "ns", 1.0, 2.0, "more", low=value),
    ):
        make(None)
        with pytest.raises(ValueError, match=rf"^step is {wrong}: unknown is None$"):
            make(wrong)
