"""`compare` and `verify` give one answer about one change of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from shardtoll.analyzers.compare.compare import compare, slowest_change
from shardtoll.analyzers.two_runs.pair import TwoRuns
from shardtoll.analyzers.verify.verify import verify
from shardtoll.ledger import Finding, Report, Where
from tests.unit.analyzers.compare_runs import MODULES, made, with_run
from tests.unit.analyzers.ledgers import MS

SHORTER = ("kept", "exceeded")


def finding() -> Finding:
    return Finding(
        kind="redundant-collective", severity="warning", title="gathers the weight again", toll_ns=20 * MS,
        floor_ns=None, saving_ns=20 * MS, bytes=4096, count=2, ranks=(0, 1), where=Where(parameter="weight"),
        evidence="made up", remedy=None, confidence="certain",
    )  # fmt: skip


BUSY = {"modules": {name: 0.97 * took for name, took in MODULES.items()}}
"""All operators are faster by one factor: on a shared machine that is as likely the machine."""
FEWER = {"calls": ()}


@pytest.mark.parametrize(("change", "seen"), [(BUSY, False), (FEWER, True)])
@pytest.mark.parametrize("seed", [1, 6, 9, 10])
def test_a_saving_is_kept_only_if_the_step_changed(seed: int, change: dict[str, Any], seen: bool) -> None:
    before = made(0, findings=(finding(),))
    after = made(seed, **change)
    found, saving = compare(before, after, ("a", "b")), verify(before, after, ("a", "b")).saving
    alone = TwoRuns.of(before, after).slowest_change()
    # By itself the time is less each time.
    assert alone.verdict == "less"
    step = slowest_change(found)
    assert step.low is not None
    assert step.high is not None
    assert (saving.low_ns, saving.high_ns) == (round(-step.high), round(-step.low))
    assert (saving.kept in SHORTER) == (step.verdict == "less") == (found.verdict == "changed") == seen
    assert seen or (saving.kept == "not seen" and "but the same operators took 0.9" in saving.why)


def slower(report: Report, extra_ms: tuple[int, int]) -> Report:
    """The run with its ranks idle for so long in each step."""
    steps = report.tables["steps"]
    rows = steps.to_pylist()
    for row in rows:
        row["duration_ns"] += extra_ms[row["rank"]] * MS
        row["idle_ns"] += extra_ms[row["rank"]] * MS
    return replace(report, tables={**report.tables, "steps": pa.Table.from_pylist(rows, schema=steps.schema)})


def test_a_slowest_rank_that_is_faster_is_a_change_though_the_mean_is_not() -> None:
    before, after = slower(made(0, findings=(finding(),)), (0, 60)), slower(made(0), (30, 30))
    found, saving = compare(before, after, ("a", "b")), verify(before, after, ("a", "b")).saving
    assert saving.kept == "exceeded"
    assert not found.step.changed
    assert found.verdict == "changed"
    assert found.headline.startswith("the slowest rank's step takes 30.0 ms less (")
    assert "but the mean of the ranks is within noise (" in found.headline


def test_the_mean_that_changed_comes_after_the_slowest_rank() -> None:
    found = compare(slower(made(0), (60, 0)), slower(made(0), (60, 30)), ("a", "b"))
    assert found.step.changed
    assert not slowest_change(found).changed
    assert found.headline.startswith("the slowest rank's step is within noise (")
    assert "), but the mean of the ranks takes 15.0 ms longer (" in found.headline
    both = compare(made(0), slower(made(0), (30, 10)), ("a", "b"))
    assert both.headline.startswith("the slowest rank's step takes 30.0 ms longer (")
    assert "), the mean of the ranks 20.0 ms longer (" in both.headline


def forecast(speed: float, steps: int, **given: Any) -> Report:
    """A dry run, whose times are those of `speed`."""
    return with_run(made(3, steps=steps, spread=0.0, speed=speed, **given), source="dry", backend="fake")


@pytest.mark.parametrize(
    ("speed", "kept", "why"),
    [
        (1.0005, "not seen", " µs longer, which is at most "),
        (1.0, "not seen", "the step takes as long as before, which is at most "),
        (0.9995, "not seen", " µs shorter, which is at most "),
        (1.1, "longer", " ms longer: what the change costs is more than what it saves"),
        (0.9, "kept", " ms shorter; at most 20.0 ms was predicted"),
        (0.5, "exceeded", " ms shorter; at most 20.0 ms was predicted: the bound was too low"),
    ],
)
@pytest.mark.parametrize("steps", [1, 2, 12])
def test_two_forecasts_are_judged_by_one_rule_and_differ_by_one_figure(
    speed: float, kept: str, why: str, steps: int
) -> None:
    before, after = forecast(1.0, steps, findings=(finding(),)), forecast(speed, steps)
    found, saving = compare(before, after, ("a", "b")), verify(before, after, ("a", "b")).saving
    assert saving.kept == kept
    assert (kept == "not seen") == (slowest_change(found).verdict == "no change")
    assert (kept == "not seen") == (found.verdict == "no change")
    assert why in saving.why
    assert " to " not in saving.why
    assert "steps only" not in saving.why
    assert saving.measured_ns == saving.low_ns == saving.high_ns
