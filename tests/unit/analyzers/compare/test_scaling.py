"""Scaling efficiency against closed forms, and its losses, which add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.compare.compare import Options, compare
from shardtoll.analyzers.compare.scaling import LOSSES, scaling
from shardtoll.dashboards.compare.rows import scaling_words
from shardtoll.ledger import Report
from tests.unit.analyzers.compare_runs import CALLS, MODULES, made, with_run
from tests.unit.analyzers.ledgers import MS

times = st.fixed_dictionaries({name: st.floats(0, 1e9) for name in LOSSES})


@given(times, times, st.integers(1, 4096), st.integers(1, 4096), st.sampled_from(["strong", "weak", "given"]),
       st.floats(1, 1e6), st.floats(1, 1e6))  # fmt: skip
def test_losses_add_up_to_one_less_the_efficiency(one, other, first, second, kind, was, now):
    found = scaling((first, second), (one, other), kind, (was, now))
    if min(sum(one.values()), sum(other.values())) <= 0:
        assert found is None
        return
    assert found is not None
    assert sum(loss.share for loss in found.losses) == pytest.approx(1 - found.efficiency, rel=1e-6, abs=1e-6)
    assert found.ranks == (min(first, second), max(first, second))


def test_strong_scaling_is_amdahls():
    # 90 of 100 ms divide by 4, 10 do not: speedup 1 / (0.1 + 0.9 / 4).
    one = {"compute slowdown": 90.0, "duplicated work": 10.0}
    four = {"compute slowdown": 22.5, "duplicated work": 10.0}
    found = scaling((1, 4), (one, four), "strong", None)
    assert found is not None
    assert found.speedup == pytest.approx(1 / (0.1 + 0.9 / 4))
    assert found.efficiency == pytest.approx(found.speedup / 4)
    lost = {loss.name: loss.share for loss in found.losses}
    assert lost["compute slowdown"] == pytest.approx(0)
    assert lost["duplicated work"] == pytest.approx(30 / 130)


def test_weak_scaling_loses_what_each_step_takes_more():
    eight = {"exposed communication": 20.0, "compute slowdown": 80.0}
    found = scaling((8, 2), (eight, {"compute slowdown": 80.0}), "weak", None)
    assert found is not None
    assert (found.smaller_is, found.ranks, found.efficiency) == ("after", (2, 8), pytest.approx(0.8))
    assert {loss.name: loss.share for loss in found.losses}["exposed communication"] == pytest.approx(0.2)
    assert found.speedup == pytest.approx(3.2)


def test_runs_of_different_world_sizes_have_an_efficiency():
    one, two = made(0, ranks=2), made(1, ranks=4)
    found = compare(one, two, ("a", "b"), Options(scaling="strong")).scaling
    assert found is not None
    assert (found.kind, found.ranks, found.why) == ("strong", (2, 4), "as --scaling says")
    assert found.efficiency == pytest.approx(0.5, abs=0.02)
    weak = compare(one, two, ("a", "b"), Options(scaling="weak")).scaling
    assert weak is not None
    assert weak.efficiency == pytest.approx(1, abs=0.04)
    by_work = compare(one, two, ("a", "b"), Options(work=(8, 16))).scaling
    assert by_work is not None
    assert (by_work.kind, by_work.efficiency) == ("given", pytest.approx(weak.efficiency))
    assert compare(one, made(2), ("a", "b")).scaling is None


def test_where_the_loss_of_a_run_comes_from():
    slow = made(
        1, ranks=4, calls=(*CALLS, {**CALLS[0], "exposed_ns": 40 * MS}), modules={**MODULES, "head": 26.0}
    )
    found = compare(made(0), slow, ("a", "b"), Options(scaling="weak")).scaling
    assert found is not None
    lost = {loss.name: loss.share for loss in found.losses}
    assert sum(lost.values()) == pytest.approx(1 - found.efficiency)
    # Of an exposed call a fifth is waiting; 40 and 20 ms more in a step of about 118.
    assert lost["exposed communication"] == pytest.approx(32 / 118, abs=0.03)
    assert lost["waiting"] == pytest.approx(8 / 118, abs=0.02)
    assert lost["compute slowdown"] == pytest.approx(20 / 118, abs=0.03)


def rows_of(rows: int, **given: object) -> Report:
    """A run whose DataLoader gives each rank so many samples per step."""
    return made(1, fetched={"samples": rows}, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "kind", "efficiency", "why"), [
    (64, "weak", 1.0, "the effective batch is 64 per rank in both, every rank taken to have data of its own"),
    (32, "strong", 0.5, "the effective batch is 128 in both, every rank taken to have data of its own"),
    (48, "batch", 0.75, "effective batch 128 before, 192 after, every rank taken"),
])  # fmt: skip
def test_the_batches_say_how_runs_scale(rows: int, kind: str, efficiency: float, why: str):
    found = compare(rows_of(64, ranks=2), rows_of(rows, ranks=4), ("a", "b"))
    assert found.scaling is not None
    assert (found.scaling.kind, found.scaling.efficiency) == (kind, pytest.approx(efficiency, abs=0.02))
    assert found.scaling.why.startswith(why)
    assert why in scaling_words(found)


def test_where_ranks_may_share_data_strong_and_weak_cannot_be_told_apart():
    runs = [with_run(rows_of(64, ranks=ranks), mesh={"tp": ranks}) for ranks in (2, 4)]
    found = compare(runs[0], runs[1], ("a", "b"))
    assert found.scaling is not None
    assert found.scaling.kind == "unknown"
    words = scaling_words(found)
    assert "strong and weak scaling look the same (which ranks share data is not known" in words
    assert "--scaling strong|weak" in words
    assert "50.0 % if strong, as below; 100.0 % if weak" in words
    # Rows of a matrix multiplication are no samples.
    unfed = compare(made(1, ranks=2), made(1, ranks=4), ("a", "b"))
    assert "the effective batch is not known" in scaling_words(unfed)
    plain = [with_run(run, mesh={"dp": at}) for at, run in zip((2, 4), runs, strict=True)]
    assert scaling_words(compare(plain[0], plain[1], ("a", "b"))).startswith("weak scaling, 2 -> 4 ranks")
