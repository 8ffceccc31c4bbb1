"""What goes wrong around a session: a rank that cannot write, a rank that opens one session too many."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.ledger import ShardtollError
from shardtoll.profiler import audit
from shardtoll.profiler.live.session import gather
from shardtoll.profiler.live.session.schedule import LEVELS


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


def many_sessions() -> dict[str, Any]:
    """Open 12 sessions, one after the other, at every level; return what is there after 4 and after all."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    seen, folders = [], []
    for number in range(12):
        with audit(model, level=LEVELS[number % len(LEVELS)]) as session:
            for _ in range(2):
                with session.step():
                    model(torch.ones(2, 4)).sum().backward()
        folders.append(session._kept.folder)
        del session
        dist.barrier()
        if number in (3, 11):
            seen.append({**_held(), "run folders": sum(folder.exists() for folder in folders)})
        dist.barrier()
    return {"early": seen[0], "late": seen[1]}


def _held() -> dict[str, int]:
    """Return what this process and the store hold, by name."""
    gc.collect()
    ours = Counter(
        type(each).__qualname__
        for each in gc.get_objects()
        if str(getattr(type(each), "__module__", "")).startswith("shardtoll")
    )
    store: Any = dist.distributed_c10d._get_default_store()
    return {
        **ours,
        "keys of the store": store.num_keys(),
        "threads": threading.active_count(),
        "open files": len(os.listdir("/proc/self/fd")),
    }


def missed_session(folder: str) -> dict[str, Any]:
    """Have rank 1 open a session that rank 0 has been through; return for how long it waited."""
    rank, run = dist.get_rank(), Path(folder, "run")
    if rank == 0:
        with audit(out=run):
            pass
    dist.barrier()
    begun = time.monotonic()
    if rank == 1:
        with audit(out=run):
            pass
    took_s = time.monotonic() - begun
    dist.barrier()
    with audit() as session:
        dist.all_reduce(torch.ones(4))
    ledger = session.ledger
    ranks = [row["rank"] for row in ledger.tables["collectives"].to_pylist()] if ledger else None
    return {"took_s": took_s, "ranks": ranks}
