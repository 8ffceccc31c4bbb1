"""Small whole records for the ledger's tests; every argument can be replaced by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import (
    Collective,
    Compute,
    Count,
    DeviceOp,
    Evidence,
    Finding,
    Group,
    Leadup,
    Ledger,
    Notice,
    Parameter,
    RankWriter,
    Remedy,
    Run,
    Stall,
    Step,
    StepRows,
    Value,
    Where,
)
from shardtoll.ledger.records.event import Event
from shardtoll.ledger.tables.tables import SCHEMAS, to_table


class Make:
    """Makers of records that pass every check."""

    EPOCH_NS = 1_800_000_000_000_000_000

    def run(self, **given: Any) -> Run:
        base: dict[str, Any] = {
            "world_size": 4,
            "backend": "gloo",
            "device": "cpu",
            "torch": "2.13.0",
            "hosts": ("node-a",),
            "mesh": {"tp": 4},
            "source": "live",
            "ranks_seen": (0,),
            "epoch_ns": self.EPOCH_NS,
        }
        return Run(**{**base, **given})

    def step(self, step: int = 0, rank: int = 0, **given: Any) -> Step:
        base: dict[str, Any] = {
            "step": step,
            "rank": rank,
            "start_ns": 1000 * step,
            "duration_ns": 1000,
            "compute_ns": 500,
            "exposed_comm_ns": 200,
            "exposed_copy_ns": 0,
            "idle_ns": 250,
            "unattributed_ns": 50,
        }
        return Step(**{**base, **given})

    def collective(self, step: int | None = 0, rank: int = 0, **given: Any) -> Collective:
        base: dict[str, Any] = {
            "step": step,
            "rank": rank,
            "group": "tp",
            "group_size": 4,
            "mesh_dim": "tp",
            "seq": 7,
            "op": "all_reduce",
            "dtype": "float32",
            "message_bytes": 4096,
            "wire_bytes": 6144,
            "issue_ns": 100,
            "start_ns": 120,
            "duration_ns": 300,
            "exposed_ns": 200,
            "phase": "forward",
            "implicit": True,
            "placements_from": "(Partial(sum),)",
            "placements_to": "(Replicate(),)",
            "caused_by_op": "aten.add.Tensor",
            "module": "block.0.mlp",
            "source": "train.py:12 (forward)",
        }
        return Collective(**{**base, **given})

    def compute(self, step: int | None = 0, rank: int = 0, **given: Any) -> Compute:
        base: dict[str, Any] = {
            "step": step,
            "rank": rank,
            "index": 0,
            "op": "aten.mm.default",
            "flops": 2 * 64 * 32 * 16,
            "start_ns": 10,
            "duration_ns": 80,
            "phase": "forward",
            "shapes": "f32[64,32] f32[32,16]",
        }
        return Compute(**{**base, **given})

    def value(self, step: int | None = 0, rank: int = 0, **given: Any) -> Value:
        base: dict[str, Any] = {
            "step": step,
            "rank": rank,
            "kind": "gradient",
            "name": "block.weight",
            "nth": 0,
            "dtype": "float32",
            "shape": "[16, 32]",
            "placements": "(Shard(0))",
            "mesh_dims": "tp",
            "numel": 512,
            "hash": -7,
            "constant": False,
            "square": 2.5,
            "sketch_0": -1.5,
        }
        return Value(**{**base, **given})

    def rows(self, step: int = 0, rank: int = 0, collectives: int = 2) -> StepRows:
        return StepRows(
            step=self.step(step, rank),
            collectives=tuple(self.collective(step, rank, seq=index) for index in range(collectives)),
            computes=(self.compute(step, rank),),
            counts=(Count(step, rank, "tp", collectives, collectives),),
            notices=(Notice(rank, "times-unknown", f"step {step}", step),),
            leadups=(Leadup(step, rank, 0, 5, 4, 3, 2, 1, 0, 0, "forward", "block", "gemm", 4),),
            stalls=(Stall(step, rank, "data", "enumerate(DataLoader)", "other", 1, 9, 8, bytes=None),),
            values=(self.value(step, rank),),
            parameters=(Parameter(rank, "block.weight", "[64, 32]", "[16, 32]", "float32", 512, True, True),),
            device_ops=(DeviceOp(step, rank, "aten::mm", "forward", "f32[2,3] f32[3,4]", 1, 9, 48, 104),),
            events=(Event(step, rank, 0, "compute", "aten::mm", "forward", 7, None, 10, 5, module="block"),),
        )

    def group(self, **given: Any) -> Group:
        base: dict[str, Any] = {"name": "tp", "ranks": (0, 1, 2, 3), "mesh_dim": "tp", "backend": "gloo"}
        return Group(**{**base, **given})

    def finding(self, **given: Any) -> Finding:
        base: dict[str, Any] = {
            "kind": "implicit-redistribute",
            "severity": "warning",
            "title": "an all_reduce nobody wrote",
            "toll_ns": 900,
            "floor_ns": 100,
            "saving_ns": 800,
            "bytes": 4096,
            "count": 2,
            "ranks": (0, 1),
            "where": Where(phase="forward", module="block.0", source="train.py:12 (forward)"),
            "evidence": (Evidence("factor", 1.5, "x"), Evidence("unknown", None)),
            "remedy": Remedy("keep it sharded", "x.redistribute(...)", "the same step without it"),
            "confidence": "likely",
        }
        return Finding(**{**base, **given})

    def ledger(self, rank: int = 0, steps: int = 2, **run: Any) -> Ledger:
        rows = [self.rows(step, rank) for step in range(steps)]
        records: dict[str, list[Any]] = {
            "steps": [row.step for row in rows],
            **{
                table: [record for row in rows for record in getattr(row, table, ())]
                for table in SCHEMAS
                if table != "steps"
            },
        }
        return Ledger(
            run=self.run(**{"ranks_seen": (rank,), **run}),
            groups=(self.group(),),
            tables={table: to_table(table, records[table]) for table in SCHEMAS},
            findings=(self.finding(),),
        )

    def written(
        self,
        folder: Path,
        rank: int = 0,
        steps: int = 2,
        *,
        closed: bool = True,
        run_id: str = "one",
        **run: Any,
    ) -> Path:
        """Write one rank's run and return the folder."""
        writer = RankWriter(folder, rank, run_id)
        about = self.run(**{"ranks_seen": (rank,), **run})
        writer.describe(about, [self.group()])
        for step in range(steps):
            writer.append(self.rows(step, rank))
        if closed:
            writer.close(about, [self.group()], [self.finding()])
        else:
            writer.abandon()
        return folder


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()
