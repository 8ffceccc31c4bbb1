"""Starts real gloo ranks for a test: free port, a time limit, and results back as JSON.

A rank's function is named by module and attribute, runs in a process of its own and returns what json
can write. Workers leave through os._exit after flushing: interpreter shutdown with gloo threads alive
sometimes aborts ("terminate called without an active exception") after all results were written.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    limit_s: float = LIMIT_S,
    may_die: tuple[int, ...] = (),
    **kwargs: Any,
) -> list[Any]:
    """Run `function(*args, **kwargs)` on `world_size` gloo ranks; return what each returned, by rank.

    Ranks in `may_die` may end without a result (theirs is None); any other failure raises with that
    rank's output.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"{rank}.json") for rank in range(world_size)]
        logs = [Path(folder, f"{rank}.log") for rank in range(world_size)]
        task = json.dumps([function.__module__, function.__qualname__, args, kwargs])
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": "default",
        }
        processes = []
        for rank in range(world_size):
            with logs[rank].open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.live.launch", str(outputs[rank]), task],
                        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
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
        results = []
        for rank in range(world_size):
            if outputs[rank].exists():
                results.append(json.loads(outputs[rank].read_text()))
            elif rank in may_die:
                results.append(None)
            else:
                code = processes[rank].returncode
                raise AssertionError(
                    f"rank {rank} left no result (exit {code}):\n{logs[rank].read_text()[-4000:]}"
                )
        return results


def _worker() -> None:
    import importlib

    import torch
    import torch.distributed as dist

    output, task = sys.argv[1:]
    module, name, args, kwargs = json.loads(task)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    result = getattr(importlib.import_module(module), name)(*args, **kwargs)
    part = Path(output + ".part")
    part.write_text(json.dumps(result))
    part.rename(output)
    # Nobody leaves while another may still need the store that rank 0 serves.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"left/{dist.get_rank()}", "1")
    if dist.get_rank() == 0:
        deadline = time.monotonic() + 10
        ranks = range(dist.get_world_size())
        while time.monotonic() < deadline and not all(store.check([f"left/{rank}"]) for rank in ranks):
            time.sleep(0.01)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    _worker()
