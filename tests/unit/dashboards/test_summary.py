from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards import summary
from shardtoll.ledger import Finding, Where
from tests import sample_reports


def test_parts_of_a_rank_add_up():
    times = summary.rank_times(sample_reports.report())
    assert [time.ranks for time in times] == [(0,), (1,), (2,), (3,)]
    for time in times:
        assert sum(time.parts_ns) == pytest.approx(time.total_ns, rel=1e-3)
        assert time.steps == 2
    worst = summary.slowest(times)
    assert worst is not None
    assert (worst.ranks, worst.total_ns) == ((2,), 53_000_000)


def test_no_step_gives_no_times():
    assert summary.rank_times(sample_reports.empty()) == []
    assert summary.slowest([]) is None


def test_folded_ranks_keep_the_slowest_and_the_mean():
    times = summary.rank_times(sample_reports.many(20, 1))
    shown, rest = summary.fold(times, 8)
    assert [time.ranks for time in shown] == [(rank,) for rank in range(13, 20)]
    assert rest is not None
    assert rest.ranks == tuple(range(13))
    assert rest.total_ns == 50_000_000 + 10_000 * 6
    assert sum(rest.parts_ns) == pytest.approx(rest.total_ns)
    assert summary.fold(times, 20) == (times, None)


def test_errors_come_first_and_the_rest_stays_in_order():
    found = summary.by_severity(sample_reports.FINDINGS)
    assert [(at, finding.severity) for at, finding in found] == [(1, "error"), (2, "warning"), (3, "info")]


def test_headlines():
    report = sample_reports.report()
    assert summary.headline(report) == (
        "1 error, to be mended before any cost: gradient of blocks.0.mlp.weight holds a quarter of the "
        "batch: a reduction is missing."
    )
    warning, error, _ = sample_reports.FINDINGS
    assert summary.headline(replace(report, findings=(warning,))) == (
        "Dearest: mm needs its input replicated: DTensor all_reduces 2.1 MB four times a step. "
        "It costs 9.40 ms a step."
    )
    unpriced = replace(warning, toll_ns=None, saving_ns=None)
    assert summary.headline(replace(report, findings=(unpriced,))).endswith("What it costs is unknown.")
    nothing = summary.headline(replace(report, findings=()))
    assert nothing == (
        "Nothing found. Checked: 49 collectives, 4 matmul-like operators and 4 sequence counts in 2 steps "
        "of ranks 0-3."
    )
    assert summary.headline(replace(report, findings=(error, error))).startswith("2 errors, ")


def test_places_name_what_is_known_and_the_root_module():
    assert summary.places(sample_reports.FINDINGS[0])[0] == ("source", "train.py:42 (step)")
    root = Finding("recompute", "info", "t", 1, 1, 1, 1, 1, (0,), Where(module=""))
    assert summary.places(root) == [("module", "(root)")]
    assert summary.places(replace(root, where=Where())) == [("place", "whole step")]


def test_notices_of_several_ranks_are_told_once():
    assert summary.notices(sample_reports.report()) == [
        ("times-unknown", "no profiler: device times are unknown (ranks 0-3)"),
        ("capture-stopped", "stopped after an error in a hook (rank 3)"),
    ]
