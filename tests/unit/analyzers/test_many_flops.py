"""FLOPs of many ranks together do not fit 64 bits: they are kept, added up and read again all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.context.compute_dtypes import formats
from shardtoll.analyzers.verify.verify import verify
from shardtoll.dashboards.attempts.side_by_side import Attempt, rows
from shardtoll.dashboards.page.views.duplicated import step_flops
from shardtoll.ledger import Ledger, Report, read_run
from shardtoll.ledger.disk.pack import pack, unpack
from shardtoll.ledger.disk.run_writer import write_rank
from shardtoll.ledger.words import human
from tests.unit.analyzers.ledgers import compute, ledger, run_of, step

FLOPS = 6 * 10**18
"""Of one rank and step here, in one row; two do not fit 64 bits. Real: 1,000 rows of 8 s at 400 TFLOP/s."""


HALVES = {"flops": FLOPS, "shapes": "bf16[8,8] bf16[8,8]", "input_hash": 5, "output_hash": 6}


def _ledger(ranks: int = 4, steps: int = 2) -> Ledger:
    work = [
        compute(
            step=number, rank=rank, flops=FLOPS, shapes="bf16[8,8] bf16[8,8]", input_hash=5, output_hash=6
        )
        for number in range(steps)
        for rank in range(ranks)
    ]
    every = [step(number, rank) for number in range(steps) for rank in range(ranks)]
    return ledger(computes=work, steps=every, run=run_of(ranks))


@pytest.fixture(scope="module")
def report() -> Report:
    return run(_ledger())


def test_a_saved_report_is_opened_again(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report


def test_a_rank_s_ledger_goes_over_the_wire_and_to_disk(tmp_path: Path) -> None:
    whole = _ledger(ranks=1, steps=3)
    mine = replace(whole, run=replace(whole.run, ranks_seen=(0,)))
    assert unpack(pack(mine)) == mine
    write_rank(tmp_path, mine, "run")
    assert read_run(tmp_path).tables["computes"].equals(mine.tables["computes"])


def test_sums_are_the_true_ones(report: Report) -> None:
    (finding,) = [each for each in report.findings if each.kind == "duplicated-compute"]
    assert finding.figure("flops_done") == 4 * FLOPS
    assert finding.figure("flops_needed") == FLOPS
    assert step_flops(report) == 4 * FLOPS
    (flops,) = [row for row in rows([Attempt("a", "lesson", report)]) if row.label.startswith("matmul FLOPs")]
    assert flops.cells[0] == f"{human.work(4 * FLOPS)}, {human.work(FLOPS)} needed (4x)"
    quantities = verify(report, report, ("a", "b"), ()).quantities
    (work,) = [each for each in quantities if each.name.startswith("FLOPs")]
    assert work.before == work.after == pytest.approx(4 * FLOPS)


def test_the_format_of_most_flops_is_that_of_their_true_sum() -> None:
    assert formats(context_of(_ledger(), None)).below("") == "bfloat16"
