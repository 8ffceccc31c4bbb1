"""Kills ranks of real jobs at random moments and counts the finished steps that their files lack.

Data parallel, tensor parallel and FSDP2 programs of overhead.py on two to four gloo ranks, at every level of
`audit`; SIGKILL goes to one rank or to all. Each rank notes in a file of its own when it finished a step, and
whether it was surveyed or watched. Then the run folder is read: a finished step that is not there is lost.
No surveyed step may be, and a watched one only if it was finished in the last quarter second. Rows are
written where a step ends: how old the oldest lost step was when its rank last ended one is told too, and the
machine's load of one minute, as on a busy machine a step may suddenly take long.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from harness import Result, main
from overheads import cases as overhead_cases

from shardtoll.cli.jobs.ranks import free_port
from shardtoll.ledger.disk.run_reader import read_run
from shardtoll.profiler import audit
from shardtoll.profiler.live.session.schedule import LEVELS

KINDS: Final = ("ddp", "tp", "fsdp2")
QUARTER_S: Final = 0.25
_DONE: Final = struct.Struct("<qqd")
"""Step, whether it was surveyed, and when it was finished on the monotonic clock."""
_LONGEST_S: Final = 120.0
_OLDER: Final = "watched_lost_older_than_quarter_second"


def be_rank(rank: int, ranks: int, port: int, kind: str, level: Any, out: Path) -> NoReturn:
    """Be one rank until it is killed."""
    log = os.open(out.parent / f"log{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    done = os.open(out.parent / f"done{rank}", os.O_WRONLY | os.O_CREAT)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    program = overhead_cases.build(kind, ranks)
    with contextlib.suppress(Exception), audit(out=out, level=level, survey_every=7) as session:
        for number in range(1_000_000):
            with session.step():
                region = session._capture.recorder.region
                surveyed = region is not None and not region.watched
                program.step()
            os.write(done, _DONE.pack(number, surveyed, time.monotonic()))
    os._exit(0)


def finished_steps(folder: Path, rank: int) -> list[tuple[int, int, float]]:
    """Return the steps that a rank noted: number, whether it was surveyed, and when it was finished."""
    data = (folder / f"done{rank}").read_bytes() if (folder / f"done{rank}").exists() else b""
    return list(_DONE.iter_unpack(data[: len(data) // _DONE.size * _DONE.size]))


def forked_ranks(ranks: int, kind: str, level: str, out: Path) -> list[int]:
    """Fork the ranks of one job; return their processes."""
    port = free_port()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            be_rank(rank, ranks, port, kind, level, out)
        pids.append(pid)
    return pids


def all_have_stepped(folder: Path, ranks: int, limit_s: float, pause_s: float) -> bool:
    """Wait until every rank has finished a step; return whether that came within the limit."""
    deadline = time.monotonic() + limit_s
    while not all(finished_steps(folder, rank) for rank in range(ranks)):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


def one_kill(chance: random.Random, folder: Path, told: Counter[str]) -> tuple[float, float]:
    """Run one job, kill it, and add what was lost.

    Returns how long before the kill, and how long before its rank last ended a step, the oldest lost watched
    step was finished, in s.
    """
    kind, level = chance.choice(KINDS), chance.choice(LEVELS)
    # What is tensor parallel is cut into as many parts as there are ranks.
    ranks = chance.choice((2, 4) if kind == "tp" else (2, 3, 4))
    out = folder / "run"
    pids = forked_ranks(ranks, kind, level, out)
    try:
        if not all_have_stepped(folder, ranks, _LONGEST_S, pause_s=0.02):
            told["not_started"] += 1
            return 0.0, 0.0
        time.sleep(chance.uniform(0.0, 2.0))
        victims = list(range(ranks)) if chance.random() < 0.5 else [chance.randrange(ranks)]
        before_s = time.monotonic()
        for rank in victims:
            os.kill(pids[rank], signal.SIGKILL)
        finished = {
            rank: [one for one in finished_steps(folder, rank) if one[2] <= before_s] for rank in victims
        }
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    told.update({"kills": 1, "killed_ranks": len(victims), f"kills_{kind}": 1, f"kills_{level}": 1})
    rows = read_run(out).tables["steps"]
    kept = set(zip(rows.column("rank").to_pylist(), rows.column("step").to_pylist(), strict=True))
    oldest_s = oldest_at_end_s = 0.0
    for rank, steps in finished.items():
        last_s = max((at_s for _, _, at_s in steps), default=0.0)
        for step, surveyed, at_s in steps:
            what = "surveyed" if surveyed else "watched"
            told[f"{what}_finished"] += 1
            if (rank, step) in kept:
                continue
            told[f"{what}_lost"] += 1
            if not surveyed:
                age_s = before_s - at_s
                oldest_s = max(oldest_s, age_s)
                oldest_at_end_s = max(oldest_at_end_s, last_s - at_s)
                told[_OLDER] += age_s > QUARTER_S
    return oldest_s, oldest_at_end_s


def kill(options: argparse.Namespace) -> Result:
    """Kill as often as asked, or until the time is over."""
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"):
        # Ranks are forks: what they would import is there already.
        importlib.import_module(name)
    chance, told = random.Random(options.seed), Counter[str]()
    oldest_s = oldest_at_end_s = 0.0
    begun, loads = time.monotonic(), [os.getloadavg()[0]]
    for number in range(options.kills):
        if time.monotonic() - begun > options.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            ages_s = one_kill(chance, Path(folder), told)
        oldest_s, oldest_at_end_s = max(oldest_s, ages_s[0]), max(oldest_at_end_s, ages_s[1])
        loads.append(os.getloadavg()[0])
        if number % 10 == 9:
            print(f"{number + 1} kills, {dict(told)}, oldest lost {oldest_s:.3f} s", flush=True)
            sys.stdout.flush()
    names = ("surveyed_finished", "surveyed_lost", "watched_finished", "watched_lost")
    kinds = [f"kills_{name}" for name in (*KINDS, *LEVELS)]
    figures = {
        name: float(told[name])
        for name in (
            "kills",
            "not_started",
            "killed_ranks",
            *names,
            "watched_lost_older_than_quarter_second",
            *kinds,
        )
    }
    figures["oldest_watched_lost_s"] = round(oldest_s, 4)
    figures["oldest_watched_lost_at_last_step_end_s"] = round(oldest_at_end_s, 4)
    # The ranks' own share is in it: two to four of them.
    figures["load_least"], figures["load_most"] = min(loads), max(loads)
    figures["load_mean"] = round(sum(loads) / len(loads), 2)
    return Result(figures, {"surveyed_lost": 0.0, _OLDER: 0.0})


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=3_600.0)
    parser.add_argument("--seed", type=int, default=17)


if __name__ == "__main__":
    main(kill, about=__doc__ or "", options=_options)
