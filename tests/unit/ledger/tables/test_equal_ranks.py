"""Parameters that many ranks hold in one way are one row in JSON."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.ledger.records.value import Parameter
from shardtoll.ledger.tables.equal_ranks import without_repeated
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.ledgers import ledger, run_of
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import parameter


def held(rank: int, name: str = "weight", checked: bool | None = False) -> Parameter:
    return parameter(name, rank, group=f"pg{rank}", checked=checked, used_in=0)


def kept(*rows: Parameter) -> list[tuple[int, str]]:
    table = without_repeated(to_table("parameters", rows))
    return [(row["rank"], row["name"]) for row in table.to_pylist()]


def test_the_first_of_equal_rows_stays():
    rows = [held(rank, name) for rank in range(3) for name in ("weight", "bias")]
    assert kept(*rows) == [(0, "weight"), (0, "bias")]
    assert kept() == []


def test_a_rank_that_differs_stays():
    assert kept(held(0), held(1), replace(held(2), used_in=None)) == [(0, "weight"), (2, "weight")]


def test_what_a_check_looked_at_stays():
    for checked in (True, None):
        assert kept(*(held(rank, checked=checked) for rank in range(2))) == [(0, "weight"), (1, "weight")]


def test_a_reports_json_has_them_once():
    made = ledger([], parameters=[held(rank) for rank in range(4)], run=run_of(4))
    report = running("unsynced-parameter")(made)
    read = type(report).from_json(report.to_json())
    assert (report.tables["parameters"].num_rows, read.tables["parameters"].num_rows) == (4, 1)
