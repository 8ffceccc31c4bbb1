"""What goes wrong around a session: a rank that cannot write, a rank that opens one session too many."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.ledger import ShardtollError
from shardtoll.profiler import audit
from shardtoll.profiler.live.session import gather


def openings(folder: str) -> dict[str, Any]:
    """Open sessions that cannot open everywhere, then one that can; tell what each rank saw of it."""
    rank = dist.get_rank()
    file = Path(folder, "file")
    file.write_text("no folder")
    dist.barrier()
    begun = time.monotonic()
    error = ""
    try:
        with audit(out=file / "run" if rank == 1 else Path(folder, "run")):
            pass
    except ShardtollError as raised:
        error = f"{type(raised).__name__}: {raised}"
    took_s = time.monotonic() - begun
    limit_s, gather._OPENING_LIMIT_S = gather._OPENING_LIMIT_S, 0.5  # type: ignore[misc]
    if rank == 1:
        with audit():
            pass
    gather._OPENING_LIMIT_S = limit_s  # type: ignore[misc]
    dist.barrier()
    with audit() as session:
        dist.all_reduce(torch.ones(4))
    ledger = session.ledger
    ranks = [row["rank"] for row in ledger.tables["collectives"].to_pylist()] if ledger else None
    return {"error": error, "took_s": took_s, "ranks": ranks}
