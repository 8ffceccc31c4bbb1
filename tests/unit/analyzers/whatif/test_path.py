"""The critical path and the headline speak of one step, and name whose it is."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardtoll.analyzers.replay.points import point_graph
from shardtoll.analyzers.whatif import path
from shardtoll.dashboards.facts import replayed_words as words
from shardtoll.ledger import Report, analyze
from shardtoll.ledger.answers.what_if import what_if_to_json
from shardtoll.profiler.traces import read_traces
from tests.unit.analyzers.made_jobs import Meet, Own, job, pipelines

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
import synthetic_job
from synthetic.spec import Spec

MS = 1_000_000


@pytest.fixture(scope="module")
def from_events(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("job") / "job"
    spec = Spec(ranks=4, steps=2, layers=4, strategy="ddp", straggler=3, cause="backward", data_ns=2 * MS)
    synthetic_job.write_job(folder, spec)
    (read,) = read_traces([str(folder)], cache=False, jobs=1)
    return analyze(read.ledger)


def points() -> Report:
    return analyze(pipelines(3, 2, 5, slow={4: 1.5}))


@pytest.fixture(scope="module")
def from_points() -> Report:
    return points()


@pytest.mark.parametrize(
    "asked", [{"gpu": 1.3}, {"network": 4.0}, {"ranks": (3,)}, {"batch_ready": True, "gpu": 2.0}]
)
def test_the_path_after_is_as_long_as_the_step_after(from_events: Report, asked: dict[str, Any]) -> None:
    holds(from_events, asked)


@pytest.mark.parametrize("asked", [{"gpu": 1.3}, {"micro_batches": 20}, {"ranks": (4,), "gpu": 3.0}])
def test_the_path_after_of_points_is_as_long_as_the_step_after(
    from_points: Report, asked: dict[str, Any]
) -> None:
    holds(from_points, asked)


def holds(report: Report, asked: dict[str, Any]) -> None:
    assert report.foreseen is not None
    answer = report.whatif(**asked)
    for chain, step in ((report.foreseen.path, report.foreseen.before), (answer.path, answer.after)):
        assert chain.step_ns == step.step_ns
        assert sum(part.ns for part in chain.parts) == pytest.approx(step.step_ns, rel=1e-3)
        assert sum(part.share for part in chain.parts) == pytest.approx(1, abs=1e-3)
    # Said once, in the headline.
    assert words.path_words(replace(answer.path, hops=5, unknown_share=0.25)) == (
        "changes ranks 5 times per step; gaps without a reason on record are 25 % of it"
    )


def test_parts_that_are_too_many_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "MOST_PARTS", 3)
    report = points()
    holds(report, {"gpu": 1.3})
    assert report.foreseen is not None
    assert [part.name for part in report.foreseen.path.parts][2:] == ["smaller parts"]


def two_ranks() -> Report:
    """Rank 0 computes most, rank 1 waits for its network: a faster GPU leaves rank 1 behind."""
    made = job(
        {0: [Meet("pair"), Own(20 * MS)], 1: [Meet("pair"), Own(4 * MS), Meet("solo", ns=14 * MS)]},
        {"pair": (0, 1), "solo": (1,)},
    )
    return analyze(made)


def test_the_slowest_rank_is_named_before_and_after() -> None:
    answer = two_ranks().whatif(gpu=4.0)
    assert (answer.slowest_before, answer.slowest_after) == (0, 1)
    assert answer.path.step_ns == answer.after.step_ns
    assert json.loads(json.dumps(what_if_to_json(answer)))["slowest_after"] == 1
    assert "Rank 1 is the slowest then, in place of rank 0." in words.headline(answer)
    assert ("rank", "0", "1", "") in words.part_rows(answer)
    same = two_ranks().whatif(gpu=1.01)
    assert (same.slowest_before, same.slowest_after) == (0, 0)
    assert "slowest" not in words.headline(same)


def test_whatif_replays_steps_of_more_collectives_than_a_report_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_graph, "MOST_ROWS", 1)
    report = points()
    assert report.foreseen is None
    assert len(report.whatif(gpu=1.3).steps) == 3
