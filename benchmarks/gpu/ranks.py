"""Ranks as processes of their own, on one device: results come back as JSON, late ones are killed."""

from __future__ import annotations

import importlib
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


class RanksError(Exception):
    """A rank left no result; the text has the end of what it printed."""


def run(
    function: Callable[..., Any], world_size: int, backend: str, device: str, *args: Any, limit_s: float
) -> Any:
    """Return what `function(device, *args)` returned on each rank of a `backend` group, by rank.

    Raises RanksError if a rank fails or takes longer than `limit_s`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        task = json.dumps([function.__module__, function.__qualname__, backend, device, args])
        outputs = [Path(folder, f"{rank}.json") for rank in range(world_size)]
        logs = [Path(folder, f"{rank}.log") for rank in range(world_size)]
        processes = [
            _start(rank, world_size, port, logs[rank], [str(outputs[rank]), task])
            for rank in range(world_size)
        ]
        deadline = time.monotonic() + limit_s
        try:
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        # A rank that ended by itself comes first: those that waited for it were killed.
        for rank in sorted(range(world_size), key=lambda rank: processes[rank].returncode == -signal.SIGKILL):
            if not outputs[rank].exists():
                said = logs[rank].read_text(errors="replace")[-2_000:]
                code = processes[rank].returncode
                raise RanksError(f"rank {rank} of {world_size} ended with {code} and no result: {said}")
        return [json.loads(output.read_text(encoding="utf-8")) for output in outputs]


def _start(rank: int, world_size: int, port: int, log: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "NCCL_DEBUG": "ERROR",
        # cuBLAS is deterministic only with workspaces of a fixed size.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    with log.open("wb") as file:
        command = [sys.executable, "-m", "gpu.ranks", *arguments]
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)


def _be_one(output: str, task: str) -> None:
    import torch
    import torch.distributed as dist

    module, name, backend, device, args = json.loads(task)
    torch.manual_seed(0)
    if device == "cuda":
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(backend)
    result = getattr(importlib.import_module(module), name)(device, *args)
    part = Path(output + ".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(output)
    # Nobody leaves while another still needs the store that rank 0 serves.
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _be_one(*sys.argv[1:])
