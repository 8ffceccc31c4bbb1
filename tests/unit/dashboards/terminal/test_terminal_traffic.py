"""The table of operations and groups on a terminal, and the line of checks that found nothing."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pyarrow.compute as pc
import pytest
from rich.console import Console

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.terminal.terminal import renderable
from shardtoll.ledger import Notice, Report
from shardtoll.ledger.answers.traffic import SoundCheck, Traffic
from shardtoll.ledger.tables.tables import to_table
from tests.sample_reports import of_ranks, report

MS = 1_000_000
ROW = Traffic("all_reduce", None, "tp", 2, 4.0, 2_097_152, 2_097_152, 9 * MS, 1 * MS)


def printed(width: int, *rows: Traffic) -> str:
    return printed_report(replace(report(), traffic=rows), width)


def printed_report(made: Report, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(renderable(made))
    return out.getvalue().replace("\u00a0", " ")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_each_row_has_its_figures(width: int) -> None:
    gather = Traffic("all_gather", "world", None, 4, 0.5, None, None, None, None)
    text = printed(width, ROW, gather)
    for words in ("all_reduce", "×2 tp", "2.10 MB", "9.00 ms", "1.00 ms", "all_gather", "×4 world", "0.50"):
        assert words in text
    assert text.count("unknown") >= 4


def test_many_rows_are_cut_and_say_so() -> None:
    rows = [replace(ROW, op=f"op_{number}_") for number in range(20)]
    text = printed(100, *rows)
    assert "op_11_" in text
    assert "op_12_" not in text
    assert "and 8 more (-o out.json has all)" in text
    assert "by operation and group" not in printed(100)


def test_checks_that_ran_and_found_nothing_are_one_line() -> None:
    checks = (SoundCheck("gradients", (3, 7)), SoundCheck("reference"), SoundCheck("replicas", (3,)),
              SoundCheck("completeness", groups=4))  # fmt: skip
    made = replace(report(), sound_checks=checks)
    assert summary.sound_checks(made) == (
        "Checks that found nothing: gradients of replicas (steps 3, 7), gradients against a reference, "
        "replicas (step 3), completeness of 4 groups."
    )
    many = replace(made, sound_checks=(SoundCheck("data", tuple(range(0, 40, 2))),))
    assert summary.sound_checks(many) == "Checks that found nothing: batches (20 steps)."
    assert summary.sound_checks(report()) is None


def test_a_run_whose_values_nobody_compared_says_so_and_how_to_compare_them() -> None:
    costs = [finding for finding in report().findings if finding.kind != "wrong-gradient"]
    unasked = replace(report(), findings=tuple(costs))
    line = summary.values_unasked(unasked)
    assert line is not None
    assert "--checks gradients,replicas,data" in line
    assert line.replace("`", "") in " ".join(printed_report(unasked).split())
    assert summary.values_unasked(report()) is None, "a wrong gradient was found, so somebody looked"
    notice = Notice(0, "gradients-checked", "2 gradients are right")
    checked = unasked.tables | {"notices": to_table("notices", [notice])}
    assert summary.values_unasked(replace(unasked, tables=checked)) is None
    for run in (replace(unasked.run, source="trace"), replace(unasked.run, ranks_seen=(0,), rank_hosts=())):
        alone = of_ranks(unasked.tables, (0,)) if len(run.ranks_seen) == 1 else unasked.tables
        assert summary.values_unasked(replace(unasked, run=run, tables=alone)) is None


def test_a_dry_run_says_that_it_looks_for_no_missing_reductions() -> None:
    costs = tuple(finding for finding in report().findings if finding.kind != "wrong-gradient")
    run = replace(report().run, source="dry", ranks_seen=(0,), rank_hosts=())
    dry = replace(report(), findings=costs, run=run, tables=of_ranks(report().tables, (0,)))
    line = summary.values_unasked(dry)
    assert line is not None
    assert "does not look for gradients that no collective reduces" in line
    assert line.replace("`", "") in " ".join(printed_report(dry).split())
    short = summary.values_unasked_in_a_line(dry, 80)
    assert short == "Not looked for in a dry run: gradients that no collective reduces"
    alone = replace(dry, run=replace(run, world_size=1))
    assert summary.values_unasked(alone) is summary.values_unasked_in_a_line(alone, 80) is None


def test_inference_of_several_ranks_is_asked_for_no_gradients() -> None:
    tables = report().tables
    forward = {
        name: tables[name].filter(pc.field("phase") == "forward") for name in ("collectives", "computes")
    }
    assert summary.values_unasked(replace(report(), findings=(), tables=tables | forward)) is None
