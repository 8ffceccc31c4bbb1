"""Ledgers that damage starts from: a job of two ranks, and a pipeline of two stages."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc

from shardtoll.ledger import Ledger
from shardtoll.ledger.tables.tables import SCHEMAS
from tests import sample_reports
from tests.unit.analyzers.ledgers import MS
from tests.unit.analyzers.made_jobs import Own, Program, Recv, Send, job


def pipeline() -> Ledger:
    """Return a traced job of two stages that send two micro-batches to and fro."""
    first: Program = [Own(MS), Send(1, "pp"), Own(MS), Send(1, "pp")] + [
        Recv(1, "pp", "backward"),
        Own(2 * MS),
    ] * 2
    last: Program = [Recv(0, "pp"), Own(MS), Own(2 * MS), Send(0, "pp", "backward")] * 2
    return job({0: first, 1: last}, {"pp": (0, 1)})


def of_rank(rank: int) -> Ledger:
    """Return one rank's part of the ordinary sample, as it stands in a run folder."""
    report = sample_reports.report()
    tables = {
        name: table.filter(pc.equal(table.column("rank"), rank)) if "rank" in table.column_names else table
        for name, table in report.tables.items()
    }
    assert set(tables) == set(SCHEMAS)
    return Ledger(replace(report.run, ranks_seen=(rank,)), report.groups, tables)
