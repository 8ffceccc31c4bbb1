"""A dry run whose collectives have no price has no time; a barrier has that of an empty all_reduce."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardtoll.analyzers.forecast.dry.priced import price_dry
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.dashboards.terminal.answers import show
from shardtoll.dashboards.terminal.dry_shown import renderable
from shardtoll.ledger import Ledger, analyze
from shardtoll.ledger.records.record import Collective
from shardtoll.ledger.tables.tables import to_records, to_table
from tests.dry_runs import recorded

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    def train() -> None:
        dist.init_process_group("nccl")
        model = DDP(nn.Linear(64, 64).cuda())
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 64, device="cuda")).square().mean().backward()
            adam.step()
            adam.zero_grad()
            dist.barrier()

    return recorded(train, world=16)


def test_every_collective_has_a_price(ledger: Ledger) -> None:
    filled, answer = price_dry(ledger, load_fabric("h100x8-ib400"))
    rows = filled.tables["collectives"].to_pylist()
    assert answer.unpriced == {}
    assert answer.step_ns is not None
    assert all(row["duration_ns"] > 0 for row in rows), rows


def test_without_a_price_the_time_is_unknown(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Collective] = to_records("collectives", ledger.tables["collectives"])
    unsized = [replace(row, message_bytes=None) if row.op == "all_reduce" else row for row in rows]
    changed = replace(ledger, tables={**ledger.tables, "collectives": to_table("collectives", unsized)})
    filled, answer = price_dry(changed, load_fabric("h100x8-ib400"), tokens=4, price_per_gpu_hour=2.0)
    count = sum(row.op == "all_reduce" for row in rows)
    assert count > 0
    assert sum(answer.unpriced.values()) == count
    unknown = (answer.step_ns, answer.tokens_per_s_gpu, answer.mfu, answer.price_per_step)
    assert unknown == (None, None, None, None)
    assert answer.memory is not None
    assert filled.tables["steps"].num_rows == 0
    for row in filled.tables["collectives"].to_pylist():
        assert row["start_ns"] is None
        assert row["exposed_ns"] is None
        assert (row["duration_ns"] is None) == (row["op"] == "all_reduce")
    assert min(filled.tables["dry_ops"]["duration_ns"].to_pylist()) > 0
    show(lambda columns: renderable(answer, columns), 200)
    shown = capsys.readouterr().out
    assert f"The time of a step is unknown: collectives without a price on this fabric ({count} of " in shown
    assert "Gradients that no collective reduces were not looked for" in shown
    assert analyze(filled).run.source == "dry"


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_tokens_are_those_of_sequences_not_of_positions(before: bool, batched: bool) -> None:
    """Some programs look up the positions first, once for all sequences."""

    def train() -> None:
        tokens, places = nn.Embedding(100, 8).cuda(), nn.Embedding(16, 8).cuda()
        adam = torch.optim.AdamW([*tokens.parameters(), *places.parameters()])
        ids = torch.zeros(4, 16, dtype=torch.long, device="cuda")
        where = torch.arange(16, device="cuda")
        where = where[None] if batched else where

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tokens, self.places = tokens, places

            def forward(self) -> torch.Tensor:
                if before:
                    added = self.places(where)
                    return added + self.tokens(ids)
                looked_up: torch.Tensor = self.tokens(ids)
                return looked_up + self.places(where)

        model = Model()
        for _ in range(2):
            model().square().mean().backward()
            adam.step()
            adam.zero_grad()

    _, answer = price_dry(recorded(train), load_fabric("h100x8"))
    assert answer.step_ns is not None
    assert answer.tokens_per_s_gpu is not None
    assert answer.tokens_per_s_gpu.expected * answer.step_ns.expected / 1e9 == pytest.approx(64)


@pytest.mark.parametrize(
    ("op", "mesh", "tokens"),
    [
        ("all_reduce", None, None),
        ("all_reduce", "mesh_tp", 64),
        ("all_reduce", "rows", None),
        ("all_reduce", "dp", 128),
        ("all_reduce", "dp_cp", 128),
        ("all_reduce", "dp_rows", None),
        ("all_reduce", "dp_tp", None),
        ("send", None, None),
        ("send", "pp", 64),
        ("send", "cp", 128),
        ("all_gather", None, 128),
    ],
)
@pytest.mark.parametrize("size", [8, 1 << 20])
def test_tokens_are_unknown_if_ranks_may_share_them(
    op: str, mesh: str | None, tokens: int | None, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that forward reduces is small; messages between ranks are of stages whatever their size."""

    def train() -> None:
        dist.init_process_group("nccl")
        model = DDP(nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 8)).cuda())
        adam = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.zeros(4, 16, dtype=torch.long, device="cuda")).square().mean().backward()
            adam.step()
            adam.zero_grad()

    made = recorded(train, world=2)
    rows: list[Collective] = to_records("collectives", made.tables["collectives"])
    added = replace(rows[0], op=op, mesh_dim=mesh, phase="forward", message_bytes=size, group_size=2)
    tables = {**made.tables, "collectives": to_table("collectives", [*rows, added])}
    _, answer = price_dry(replace(made, tables=tables), load_fabric("h100x8"))
    # Part of a flattened dimension is tensor parallel, however little it reduces.
    if op == "all_reduce" and size == 8 and tokens is None and mesh != "dp_tp":
        tokens = 128
    assert answer.tokens == tokens
    assert answer.no_tokens == ("shared by unknown ranks" if tokens is None else None)
    show(lambda columns: renderable(answer, columns), 200)
    shown = capsys.readouterr().out
    assert ("unknown, as ranks may share tokens, and no mesh says which: give --tokens" in shown) is (
        tokens is None
    )
