"""Starts real gloo ranks for a test: free port, a time limit, and results back as JSON.

A rank's function is named by module and attribute, runs in a process of its own (nursery.py makes them)
and returns what json can write; what it leaves behind in its process, hooks, modes or patches, fails the
test. Workers leave through os._exit after flushing: interpreter shutdown with gloo threads alive sometimes
aborts ("terminate called without an active exception") after all results were written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardtoll.cli.jobs.fork_server import LATE
from shardtoll.cli.jobs.ranks import free_port
from tests import leftovers
from tests.live.nursery import Nursery

__all__ = ["ROOT", "free_port", "run_ranks"]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
CUT_OFF = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""The words of gloo on a rank whose partner ended before it."""
LEAVING_S = 10.0
"""How long rank 0 waits for the others at the end; not at all for those that may have died."""
_nursery = Nursery(ROOT)


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    limit_s: float = LIMIT_S,
    may_die: tuple[int, ...] = (),
    fresh: bool = False,
    foreign: bool = False,
    backend: str = "gloo",
    **kwargs: Any,
) -> list[Any]:
    """Run `function(*args, **kwargs)` on `world_size` ranks of `backend`; return what each returned, by rank.

    Ranks in `may_die` may end without a result (theirs is None); any other failure raises with that
    rank's output. Ranks are forked from a process that has imported torch and ours; `fresh` gives each
    an interpreter of its own. `foreign` says that the function uses a trainer library: what such a
    library does to the environment, to warnings and to the working folder is not held against us.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"{rank}.json") for rank in range(world_size)]
        logs = [Path(folder, f"{rank}.log") for rank in range(world_size)]
        task = json.dumps([function.__module__, function.__qualname__, args, kwargs, foreign, may_die])
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
            "SHARDTOLL_TEST_BACKEND": backend,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": "default",
        }
        environments = [
            {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)
        ]
        run = _fresh if fresh else _nursery.run
        codes = run(task, outputs, logs, environments, limit_s)
        lost = [rank for rank in range(world_size) if not outputs[rank].exists() and rank not in may_die]
        if lost:
            raise AssertionError(_why(lost, codes, [path.read_text(errors="replace") for path in logs]))
        return [json.loads(path.read_text()) if path.exists() else None for path in outputs]


def _why(lost: Sequence[int], codes: Sequence[int], logs: Sequence[str]) -> str:
    """Say how ranks ended, first the one that is why the others lost their connections."""
    first, *others = sorted(
        lost, key=lambda rank: (codes[rank] >= 0, any(end in logs[rank] for end in CUT_OFF))
    )
    parts = [f"rank {first} left no result ({_ending(codes[first])}; all: {codes}):\n{logs[first][-4000:]}"]
    parts += [f"rank {rank} ({_ending(codes[rank])}) said last:\n{logs[rank][-600:]}" for rank in others[:3]]
    return "\n".join(parts)


def _ending(code: int) -> str:
    return "too late" if code == LATE else f"exit {code}"


def _fresh(
    task: str,
    outputs: Sequence[Path],
    logs: Sequence[Path],
    environments: Sequence[Mapping[str, str]],
    limit_s: float,
) -> list[int]:
    """Run the ranks in new interpreters; what `Nursery.run` does, without one."""
    processes = []
    for output, path, environment in zip(outputs, logs, environments, strict=True):
        with path.open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.live.launch", str(output), task],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                )
            )
    try:
        deadline = time.monotonic() + limit_s
        for process in processes:
            process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    return [process.returncode for process in processes]


def work(output: str, task: str) -> None:
    """Be one rank: join the group the environment names, do the task, write its result and leave."""
    import importlib

    import torch
    import torch.distributed as dist

    module, name, args, kwargs, foreign, may_die = json.loads(task)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backend = os.environ["SHARDTOLL_TEST_BACKEND"]
    if backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(backend)
    # torch's compiler adds to the warnings filters as it is imported; an audit would import it anyway.
    importlib.import_module("torch._dynamo")
    function = getattr(importlib.import_module(module), name)
    with leftovers.none_expected(foreign=foreign):
        result = function(*args, **kwargs)
    part = Path(output + ".part")
    part.write_text(json.dumps(result))
    part.rename(output)
    # Nobody leaves while another may still need the store that rank 0 serves.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"left/{dist.get_rank()}", "1")
    if dist.get_rank() == 0:
        deadline = time.monotonic() + LEAVING_S
        ranks = set(range(dist.get_world_size())) - set(may_die)
        while time.monotonic() < deadline and not all(store.check([f"left/{rank}"]) for rank in ranks):
            time.sleep(0.01)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    work(*sys.argv[1:])
