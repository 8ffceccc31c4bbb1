"""Asks `shardtoll hang` about sound jobs on a busy machine, then kills one rank or all and asks again.

Data parallel, tensor parallel and FSDP2 programs of overhead.py on two to four gloo ranks, at every level of
`audit`, beside processes that only burn time. Each job is asked about four times a second: every hang that is
told is a false alarm. Then one rank is killed, and the verdict has to name it; or all are, and no rank had
waited for long: a hang that is told then is a false alarm too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from harness import Result, main
from kill_test import KINDS, all_have_stepped, forked_ranks

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import flights_of
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.profiler.live.session.schedule import LEVELS

LOOK_S: Final = 0.25
NOTICED_S: Final = 3.0
"""So long after one rank was killed the others are asked about."""
_STARTED_S: Final = 120.0


@contextlib.contextmanager
def burning(processes: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    burners = []
    for _ in range(processes):
        pid = os.fork()
        while pid == 0:
            pass
        burners.append(pid)
    try:
        yield
    finally:
        for pid in burners:
            _end(pid)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _asked(out: Path) -> HangAnswer:
    flights, now_ns, _ = flights_of(out)
    return diagnose(flights, now_ns)


def one_job(chance: random.Random, folder: Path, told: Counter[str]) -> None:
    """Run one job, look at it, end it, and add what was told."""
    kind, level = chance.choice(KINDS), chance.choice(LEVELS)
    ranks = chance.choice((2, 4) if kind == "tp" else (2, 3, 4))
    out = folder / "run"
    pids = forked_ranks(ranks, kind, level, out)
    try:
        if not all_have_stepped(folder, ranks, _STARTED_S, pause_s=0.05):
            told["not_started"] += 1
            return
        told["jobs"] += 1
        until = time.monotonic() + chance.uniform(2.0, 6.0)
        while time.monotonic() < until:
            answer = _asked(out)
            told["looks"] += 1
            _note(told, "false_alarms", answer.hang, answer)
            time.sleep(LOOK_S)
        if chance.random() < 0.5:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for pid in pids:
                os.waitpid(pid, 0)
            pids.clear()
            answer = _asked(out)
            told["all_killed"] += 1
            _note(told, "all_killed_false_alarms", answer.hang, answer)
        else:
            victim = chance.randrange(ranks)
            os.kill(pids[victim], signal.SIGKILL)
            time.sleep(NOTICED_S)
            answer = _asked(out)
            told["one_killed"] += 1
            named = answer.why == "dead" and answer.verdict.startswith(f"Rank {victim} died")
            _note(told, "one_killed_not_named", not named, answer)
    finally:
        for pid in pids:
            _end(pid)


def _note(told: Counter[str], what: str, wrong: bool, answer: HangAnswer) -> None:
    if wrong:
        told[what] += 1
        print(f"{what}: {answer.verdict}", flush=True)


def measure(options: argparse.Namespace) -> Result:
    """Run jobs until the time is over."""
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"):
        # Ranks are forks: what they would import is there already.
        importlib.import_module(name)
    chance, told = random.Random(options.seed), Counter[str]()
    begun, loads = time.monotonic(), [os.getloadavg()[0]]
    with burning(options.burners):
        while time.monotonic() - begun < options.seconds:
            with tempfile.TemporaryDirectory() as folder:
                one_job(chance, Path(folder), told)
            loads.append(os.getloadavg()[0])
    wrong = ("false_alarms", "one_killed_not_named", "all_killed_false_alarms")
    names = ("jobs", "not_started", "looks", "one_killed", "all_killed", *wrong)
    figures = {name: float(told[name]) for name in names}
    # The ranks' own share is in it: two to four of them.
    figures["load_mean"], figures["load_most"] = round(sum(loads) / len(loads), 2), max(loads)
    return Result(figures, dict.fromkeys(wrong, 0.0))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--burners", type=int, default=2, help="processes that only burn time")
    parser.add_argument("--seed", type=int, default=17)


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
