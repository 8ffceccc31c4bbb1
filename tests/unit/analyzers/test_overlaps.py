"""Findings that bill time of the same collectives: what they cost together at most, and how it is said."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from shardtoll.analyzers import run
from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.findings.trust.overlaps import overlaps
from shardtoll.dashboards.exports.markdown import markdown
from shardtoll.dashboards.facts import together
from shardtoll.dashboards.page.html.page_bill import bill as page_bill
from shardtoll.dashboards.terminal.terminal_bill import bill
from shardtoll.ledger import Finding, Report, Rows
from shardtoll.ledger.answers.overlap import Overlap
from tests.unit.analyzers.ledgers import MS, collective, ledger, step

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
    assert sentence == "Findings 1 and 2 overlap: together at most 6.00 ms; savings do not add up."
    out = io.StringIO()
    Console(file=out, width=100).print(bill(report, 100))
    assert sentence in out.getvalue()
    assert sentence in page_bill(report)
    assert sentence in markdown(report)
    assert Report.from_json(report.to_json()).overlaps == report.overlaps
    assert together.overlaps(replace(report, findings=report.findings[:1])) == []
