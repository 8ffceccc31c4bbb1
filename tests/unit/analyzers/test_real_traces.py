"""Traces of real jobs, across their ranks: which collectives are one, who was late, what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Report, merge
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.shared_inputs import FOLDER, MISSING

ROOT = Path(__file__).resolve().parents[3]
TRACES = FOLDER / "traces"


def report_of(pattern: str) -> Report:
    """Return the report of all ranks of a job; skips where its traces are not here."""
    if not list(TRACES.glob(pattern)):
        pytest.skip(f"{MISSING} {TRACES / pattern}: matching of real ranks was not tried")
    table = load_table()
    return run(merge([rank_ledger(read_trace(file), table) for file in find([str(TRACES / pattern)])]))


def test_eight_ranks_of_a_recommender_wait_for_late_ones():
    report = report_of("param_dlrm_v100_8ranks")
    frame = report.collectives
    assert len(frame) == 64
    assert (frame["wait_ns"] + frame["transfer_ns"] == frame["duration_ns"]).all()
    nth = frame.groupby("rank").cumcount()
    by_place = frame.assign(end=frame["start_ns"] + frame["duration_ns"]).groupby(nth)
    # One clock: what is one collective starts last on the rank that waits not at all, and ends together.
    assert (by_place["wait_ns"].min() == 0).all()
    assert (by_place["end"].max() - by_place["end"].min()).max() < 100_000
    late = [int(group.loc[group["start_ns"].idxmax(), "rank"]) for _, group in by_place]
    assert late == [7, 7, 7, 7, 7, 5, 5, 4]
    assert report.headline is not None
    assert report.headline.startswith("Rank 7 is late, or only began to record later: the others wait ")
    assert "clock-skew" not in {finding.kind for finding in report.findings}
    (straggler,) = (f for f in report.findings if f.kind == "straggler" and f.ranks == (7,))
    assert "it begins its step" in straggler.title


def test_windows_that_are_cut_are_matched_by_their_ends_only():
    report = report_of("hta_sampled_rank*of128.json.gz")
    left = [f.title for f in report.findings if f.kind == "incomplete-input" and "for sure" in f.title]
    # Two all_reduces and two all_gathers end together on both ranks; sizes of the others differ.
    assert left == [left[0]]
    assert left[0].startswith("12 of 20 collectives match none")
    assert "unmatched-collectives" not in {finding.kind for finding in report.findings}
    assert report.headline is not None
    assert "only 2 of 128 ranks were recorded" in report.headline


def test_two_cards_of_one_header_are_one_host_with_one_clock():
    report = report_of("outside/rtx4090_tp2")
    frame = report.collectives
    assert len(frame) == 38
    assert frame["match_id"].notna().all()
    assert set(frame["late_rank"]) == {1}
    assert "clock-skew" not in {finding.kind for finding in report.findings}
    (straggler,) = (f for f in report.findings if f.kind == "straggler")
    assert straggler.title.startswith("rank 1 is last in 19 of 19 collectives")
