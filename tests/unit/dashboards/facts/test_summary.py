from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.ledger import Finding, Stall, Step, Where
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.matched import with_unbilled


def test_parts_of_a_rank_add_up():
    times = step_times.rank_times(sample_reports.report())
    assert [time.ranks for time in times] == [(0,), (1,), (2,), (3,)]
    for time in times:
        assert sum(time.parts_ns) == pytest.approx(time.total_ns, rel=1e-3)
        assert time.steps == 2
    worst = step_times.slowest(times)
    assert worst is not None
    assert (worst.ranks, worst.total_ns) == ((2,), 53_000_000)


def test_no_step_gives_no_times():
    assert step_times.rank_times(sample_reports.empty()) == []
    assert step_times.slowest([]) is None


def test_folded_ranks_keep_the_slowest_and_the_mean():
    times = step_times.rank_times(sample_reports.many(20, 1))
    shown, rest = step_times.fold(times, 8)
    assert [time.ranks for time in shown] == [(rank,) for rank in range(13, 20)]
    assert rest is not None
    assert rest.ranks == tuple(range(13))
    assert rest.total_ns == 50_000_000 + 10_000 * 6
    assert sum(rest.parts_ns) == pytest.approx(rest.total_ns)
    assert step_times.fold(times, 20) == (times, None)


def test_errors_come_first_and_the_rest_stands_by_toll():
    found = list(enumerate(sample_reports.report().findings, start=1))
    assert [(at, finding.severity) for at, finding in found] == [(1, "error"), (2, "warning"), (3, "info")]


def idle_report(idle, stalls=(), **changes):
    """A job of one step on a device: 10 ms of compute, `idle` ms without work."""
    ms = 1_000_000
    row = Step(0, 0, 0, (10 + idle) * ms, 10 * ms, 0, 0, idle * ms, 0)
    base = sample_reports.report()
    source = changes.pop("source", "trace")
    run = replace(base.run, device="NVIDIA H100", source=source, ranks_seen=(0,), rank_hosts=())
    tables = {**sample_reports.of_ranks(base.tables, (0,)), "steps": to_table("steps", [row])}
    tables["stalls"] = to_table("stalls", list(stalls))
    small = replace(sample_reports.FINDINGS[0], toll_ns=2 * ms, saving_ns=None)
    return with_unbilled(replace(base, run=run, tables=tables, findings=(small,), **changes))


def test_idle_time_that_no_finding_explains_is_said():
    assert summary.second_line(idle_report(70)) == (
        "No finding explains 70.0 ms (88 %) of rank 0's 80.0 ms step: the device is idle, as its host has "
        "launched nothing; trace with_stack=True to see its code."
    )
    # A small share, or less than the toll, is not worth a line.
    assert summary.second_line(idle_report(2)) is None
    billed = replace(idle_report(70).findings[0], toll_ns=75_000_000)
    assert summary.second_line(replace(idle_report(70), findings=(billed,))) is None


def test_idle_time_of_a_surveyed_device_may_be_the_surveys():
    """The verdict says so: a line that asks what the host does would blame the program."""
    assert idle_report(70, source="live").unbilled is None


def test_idle_time_that_a_finding_prices_is_billed():
    stall = Stall(0, 0, "data", "next", "other", 1, 69_000_000, 69_000_000)
    small = idle_report(70, [stall])
    assert summary.second_line(small).startswith("No finding explains 70.0 ms")
    data = replace(small.findings[0], kind="data-stall", toll_ns=69_000_000)
    assert summary.second_line(with_unbilled(replace(small, findings=(data,)))) is None


def test_unattributed_time_that_no_finding_explains_is_said():
    row = Step(0, 0, 0, 16_000_000, 11_000_000, 0, 0, 0, 5_000_000)
    report = idle_report(1)
    report = with_unbilled(replace(report, tables={**report.tables, "steps": to_table("steps", [row])}))
    assert summary.second_line(report) == (
        "No finding explains 5.00 ms (31 %) of rank 0's 16.0 ms step: that time is unattributed."
    )


def test_an_empty_bill_says_what_was_checked():
    assert summary.second_line(replace(sample_reports.report(), findings=())) == (
        "Checked: 49 collectives, 4 matmul-like operators and 4 sequence counts in 2 steps of ranks 0-3."
    )


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
