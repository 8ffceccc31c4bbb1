"""The file of scores: lines are added, read with distrust, and one pair of runs counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardtoll.analyzers.verify.saved import history
from shardtoll.ledger import UsageError
from shardtoll.ledger.report import scores as scores_file
from shardtoll.ledger.report.scores import Score, ScoredFinding, append, pair_of, read
from tests import sample_reports


def score(pair: str = "ab", kind: str = "straggler", verdict: Any = "gone", **given: Any) -> Score:
    values: dict[str, Any] = {
        "pair": pair,
        "before": "runs/a",
        "after": "runs/b",
        "findings": (ScoredFinding(kind, "weight", verdict, 100),),
        "gradients": "equal",
        "kept": "kept",
        "measured_ns": 80,
        "low_ns": 70,
        "high_ns": 90,
        "predicted_ns": 100,
    }
    return Score(**{**values, **given})


def test_what_is_added_is_read(tmp_path: Path):
    path = tmp_path / "scores.jsonl"
    made = [score(), score("cd", predicted_ns=None, low_ns=None)]
    for one in made:
        append(path, one)
    assert list(read(path).scores) == made
    assert len(path.read_text().splitlines()) == 2


def test_half_a_line_costs_that_line_only(tmp_path: Path):
    path = tmp_path / "scores.jsonl"
    append(path, score())
    path.write_bytes(path.read_bytes() + b'{"pair": "x')
    append(path, score("cd"))
    found = read(path)
    assert [one.pair for one in found.scores] == ["ab", "cd"]
    assert found.damaged == (2,)


@pytest.mark.parametrize("change", [
    {"pair": 3}, {"measured_ns": 1.5}, {"measured_ns": "1"}, {"kept": "maybe"}, {"gradients": None},
    {"findings": [{"kind": "nonsense", "place": "x", "verdict": "gone", "predicted_ns": None}]},
    {"findings": [{"kind": "straggler", "place": "x", "verdict": "lost", "predicted_ns": None}]},
    {"score_version": 2}, {"measured_ns": 10**30},
])  # fmt: skip
def test_lines_that_are_no_score_are_numbered(tmp_path: Path, change: dict[str, Any]):
    path = tmp_path / "scores.jsonl"
    append(path, score())
    document = json.loads(path.read_text())
    with path.open("a") as file:
        file.write(json.dumps({**document, **change}) + "\n[" + "[" * 100_000 + "\n\n")
    found = read(path)
    assert (len(found.scores), found.damaged) == (1, (2, 3))


def test_a_file_that_holds_no_score_at_all(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xff\xfe\n{}\n")
    with pytest.raises(UsageError, match="holds no score in 2 lines: name a file that"):
        read(path)


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.jsonl"
    append(path, score())
    monkeypatch.setattr(scores_file, "MOST_BYTES", 10)
    with pytest.raises(UsageError, match="larger than"):
        read(path)


def test_a_missing_file_says_what_to_do(tmp_path: Path):
    with pytest.raises(UsageError, match="verify a pair of runs first"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="give --scores FILE, or --no-scores"):
        append(tmp_path / "no" / "x.jsonl", score())


def test_the_same_pair_verified_again_counts_once_as_it_was_last():
    (line,) = history([score(verdict="still there"), score(), score("cd", verdict="smaller")])
    assert (line.verified, line.gone, line.smaller, line.still) == (2, 1, 1, 0)


def test_the_ratio_is_over_what_could_be_told():
    vague = score("v", low_ns=-500, high_ns=900)
    unclaimed = score("u", findings=(ScoredFinding("straggler", "weight", "gone", None),))
    still = score("s", verdict="still there")
    (line,) = history([score(), score("cd", measured_ns=40, kept="exceeded"), vague, unclaimed, still])
    assert line.ratio == pytest.approx(0.6)
    assert (line.timed, line.exceeded, line.verified) == (2, 1, 5)


def test_kinds_are_apart_and_the_most_verified_comes_first():
    lines = history([score("a", "recompute"), score("b"), score("c")])
    assert [(line.kind, line.verified) for line in lines] == [("straggler", 2), ("recompute", 1)]
    assert history([]) == []


def test_a_pair_is_its_runs_in_their_order_and_not_where_they_lie():
    one, other = sample_reports.report(), sample_reports.unknown()
    assert pair_of(one, other) == pair_of(sample_reports.report(), sample_reports.unknown())
    assert len({pair_of(one, other), pair_of(other, one), pair_of(one, one)}) == 3


def test_bands_that_held_are_counted_of_replayed_savings_only(tmp_path: Path):
    replayed = (ScoredFinding("straggler", "weight", "gone", 100, True),)
    scores = [
        score("a", findings=replayed, predicted_low_ns=60, predicted_high_ns=100, held=True),
        score("b", findings=replayed, predicted_low_ns=95, predicted_high_ns=100, held=False),
        score("c", findings=replayed),
        score("d", held=True),
    ]
    for one in scores:
        append(tmp_path / "x.jsonl", one)
    assert read(tmp_path / "x.jsonl").scores == tuple(scores)
    (line,) = history(scores)
    assert (line.bands, line.held) == (2, 1)


def test_a_verification_counts_once_however_many_findings_it_judged() -> None:
    def judged(verdict: Any, place: str) -> ScoredFinding:
        return ScoredFinding("straggler", place, verdict, 100, True)

    several = (judged("gone", "a"), judged("gone", "b"))
    scores = [
        score("a", findings=several, kept="exceeded", held=True),
        score("b", findings=(judged("smaller", "a"),), held=True),
        score("c", findings=several, kept="cannot be told", held=True),
    ]
    (line,) = history(scores)
    assert (line.verified, line.bands, line.held) == (5, 1, 1)
    assert (line.exceeded, line.timed) == (1, 2)
