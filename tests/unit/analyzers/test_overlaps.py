"""Findings that bill time of the same collectives: what they cost together at most, and how it is said."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from shardtoll.analyzers import run
from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.findings.trust.overlaps import overlaps
from shardtoll.analyzers.whatif.saved_twice import saved_twice
from shardtoll.dashboards.exports.markdown import markdown
from shardtoll.dashboards.facts.first_screen import together
from shardtoll.dashboards.page.html.page_bill import bill as page_bill
from shardtoll.dashboards.terminal.terminal_bill import bill
from shardtoll.ledger import Finding, Report, Rows
from shardtoll.ledger.answers.overlap import Overlap
from shardtoll.profiler.traces import read_traces
from tests.shared_inputs import shared
from tests.unit.analyzers.ledgers import MS, collective, ledger, step

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import synthetic_job
from synthetic.spec import Spec

ROWS = [
    collective(step=number, rank=rank, seq=seq, exposed_ns=(1 + rank) * MS, duration_ns=5 * MS)
    for number in (0, 1)
    for rank in (0, 1)
    for seq in (0, 1, 2)
]
"""Per step rank 1 has 2 ms exposed in each of three collectives."""
LEDGER = ledger(ROWS, steps=[step(number, rank) for number in (0, 1) for rank in (0, 1)])


def made(seqs, toll_ms, kind="exposed-communication"):
    places = [place for place, row in enumerate(ROWS) if row.seq in seqs]
    return Finding(
        kind, "info", "x", toll_ms * MS, None, None, None, 1, (0, 1), rows=Rows.of(collectives=places)
    )


def of(*findings):
    return overlaps(context_of(LEDGER), findings)


def test_together_they_cost_what_their_collectives_are_exposed():
    assert of(made((0, 1), 4), made((1, 2), 4)) == (Overlap((1, 2), 6 * MS),)
    assert of(made((0,), 2), made((1,), 2), made((0, 1), 4)) == (Overlap((1, 2, 3), 4 * MS),)


def test_waiting_that_a_late_rank_is_billed_for_is_none_of_theirs():
    # 60 ms of each 70 ms are waiting for rank 1: 10 ms of transfer are billed twice, not 140 ms.
    rows = [
        collective(
            step=number,
            rank=rank,
            start_ns=(100 * number + start) * MS,
            issue_ns=(100 * number + start) * MS,
            duration_ns=(90 - start) * MS,
            exposed_ns=(90 - start) * MS,
            transfer_ns=10 * MS,
        )
        for number in (0, 1)
        for rank, start in ((0, 20), (1, 80))
    ]
    steps = [step(number, rank, start_ns=100 * number * MS) for number in (0, 1) for rank in (0, 1)]
    made_ledger = ledger(rows, steps=steps)
    straggler, exposed = (
        next(each for each in run(made_ledger).findings if each.kind == kind)
        for kind in ("straggler", "exposed-communication")
    )
    assert (straggler.toll_ns, exposed.toll_ns) == (60 * MS, 10 * MS)
    slow = replace(exposed, kind="below-roofline")
    found = overlaps(context_of(made_ledger), (straggler, exposed, slow))
    assert found == (Overlap((2, 3), 10 * MS),)


def test_what_would_hide_behind_the_same_compute_is_saved_once():
    (read,) = read_traces([str(shared("traces", "outside", "rtx4090_tp2"))], cache=False, jobs=1)
    report = run(read.ledger)
    exposed = [n for n, each in enumerate(report.findings, 1) if each.kind == "exposed-communication"]
    savings = [report.findings[number - 1].saving_ns for number in exposed]
    (overlap,) = report.overlaps
    assert overlap == Overlap(tuple(exposed), max(savings), saved=True)
    assert together.overlaps(report) == ["Findings 1 and 3 overlap: fixing both saves at most 23.2 ms."]
    assert Report.from_json(report.to_json()).overlaps == report.overlaps


def test_fixes_of_one_cause_save_its_time_once(tmp_path):
    knobs = {"ranks": 8, "steps": 4, "layers": 6, "strategy": "ddp", "straggler": 3, "cause": "data"}
    synthetic_job.write_job(tmp_path / "job", Spec(**knobs, extra_ns=3 * MS))
    (read,) = read_traces([str(tmp_path / "job")], cache=False, jobs=1)
    report = run(read.ledger)
    kinds = [each.kind for each in report.findings]
    both = tuple(sorted(kinds.index(kind) + 1 for kind in ("data-stall", "straggler")))
    (overlap,) = report.overlaps
    assert (overlap.findings, overlap.saved) == (both, True)
    assert overlap.most_ns < 1.1 * max(report.findings[number - 1].saving_ns for number in both)
    assert overlap.most_ns == pytest.approx(report.whatif(*both).saving_ns, abs=2)


def test_what_a_fix_saves_before_the_step_is_on_top_of_what_fixes_share_in_it(tmp_path):
    knobs = {"ranks": 8, "steps": 4, "layers": 6, "strategy": "ddp", "straggler": 3, "cause": "data"}
    synthetic_job.write_job(tmp_path / "job", Spec(**knobs, extra_ns=3 * MS))
    (read,) = read_traces([str(tmp_path / "job")], cache=False, jobs=1)
    report, context = run(read.ledger), context_of(read.ledger)
    (shared_once,) = report.overlaps
    # As where each step waits 50 ms more for its batch before it begins: the replayed step has none of that.
    findings = list(report.findings)
    first = findings[shared_once.findings[0] - 1]
    more = {name: getattr(first, name) + 50 * MS for name in ("toll_ns", "saving_ns", "saving_high_ns")}
    findings[shared_once.findings[0] - 1] = replace(first, **more)
    (beyond,) = saved_twice(context, findings, report.foreseen, ())
    assert beyond.most_ns == pytest.approx(shared_once.most_ns + 50 * MS, abs=2)


def test_parts_of_one_time_do_not_overlap():
    assert of(made((0, 1), 2), made((0, 1), 2)) == (), "one may be the waiting in them, one the transfer"
    assert of(made((0, 1), 4), made((2,), 2)) == ()
    assert of(made((0, 1), 4), made((0, 1), 4, "data-stall")) == (), "idle time is none of theirs"


def test_steps_that_one_of_them_does_not_rest_on_make_it_no_cheaper():
    surveyed = [place for place, row in enumerate(ROWS) if row.step == 0 and row.seq in (0, 1)]
    first = replace(made((0, 1), 4), rows=Rows.of(collectives=surveyed))
    assert of(first, made((1, 2), 4)) == (Overlap((1, 2), 6 * MS),)


def test_unknown_exposed_time_makes_no_claim():
    hidden = [replace(row, exposed_ns=None) if row.seq == 0 else row for row in ROWS]
    context = context_of(ledger(hidden, steps=[step(number, rank) for number in (0, 1) for rank in (0, 1)]))
    assert overlaps(context, (made((0, 1), 4), made((1, 2), 4))) == ()


def test_every_renderer_says_so_in_one_sentence_and_json_keeps_it():
    report = replace(
        run(LEDGER), findings=(made((0, 1), 4), made((1, 2), 4)), overlaps=(Overlap((1, 2), 6 * MS),)
    )
    (sentence,) = together.overlaps(report)
    assert sentence == "Findings 1 and 2 overlap: together they cost at most 6.00 ms."
    out = io.StringIO()
    Console(file=out, width=100).print(bill(report, 100))
    assert sentence in out.getvalue()
    assert sentence in page_bill(report)
    assert sentence in markdown(report)
    assert Report.from_json(report.to_json()).overlaps == report.overlaps
    assert together.overlaps(replace(report, findings=report.findings[:1])) == []
