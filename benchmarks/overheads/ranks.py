"""Runs one case of a benchmark on ranks of its own: gloo's, or one of a fake group."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from shardtoll.cli.jobs.ranks import free_port

RANKS: Final = {"gloo": 2, "fake": 8}
LIMIT_S: Final = 1200

Samples: TypeAlias = dict[str, list[float]]
"""Name of what was timed -> seconds a step, one a repeat."""
Measure: TypeAlias = Callable[[str, int, argparse.Namespace], dict[str, Any]]
"""Kind of program, ranks and options -> what one rank found; `samples` is among it."""


def _work(rank: int, case: str, measure: Measure, options: argparse.Namespace, port: int, out: str) -> None:
    """One rank of one case; writes what it found and leaves without interpreter shutdown."""
    backend, _, kind = case.partition("-")
    torch.set_num_threads(1)
    # Both come of CommDebugMode's hooks on modules; no other tool's steps give them.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    torch.manual_seed(0)
    ranks = RANKS[backend]
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    else:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    found = measure(kind, ranks, options)
    Path(out, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo's threads can abort an interpreter that shuts down in the usual way.
    os._exit(0)


def run_case(case: str, measure: Measure, options: argparse.Namespace) -> dict[str, Any]:
    """Run a case in processes of its own; each sample is the slower rank's, all else is rank 0's."""
    ranks = RANKS["gloo"] if case.startswith("gloo") else 1
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as out:
        port = free_port()
        workers = [
            context.Process(target=_work, args=(rank, case, measure, options, port, out))
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        deadline_s = time.monotonic() + LIMIT_S
        for worker in workers:
            worker.join(max(0.0, deadline_s - time.monotonic()))
        for worker in workers:
            worker.kill()
            worker.join()
        found = sorted(Path(out).glob("*.json"))
        if len(found) != ranks:
            raise SystemExit(f"{case}: {ranks - len(found)} of {ranks} ranks died or were late")
        by_rank = [json.loads(path.read_text(encoding="utf-8")) for path in found]
    samples = {
        name: [max(times) for times in zip(*(one["samples"][name] for one in by_rank), strict=True)]
        for name in by_rank[0]["samples"]
    }
    return {**by_rank[0], "samples": samples}
