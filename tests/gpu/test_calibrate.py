"""Calibration with NCCL between the devices of this machine. Skipped where there are not two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardtoll.analyzers.roofline import load_fabric

if torch.cuda.device_count() < 2:
    pytest.skip("needs two CUDA devices", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.live, pytest.mark.slow]


def test_nccl_collectives_are_timed_on_each_ranks_own_device(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "shardtoll.profiler.calibrate", "--limit-s", "20", "-o", "fabric.toml"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    fabric = load_fabric(tmp_path / "fabric.toml")
    assert fabric.device_names == (torch.cuda.get_device_name(),)
    (curve,) = (one for one in fabric.curves if one.op == "all_reduce")
    first, last = curve.points[0], curve.points[-1]
    assert last.message_bytes > 1 << 26
    # Launching takes microseconds; no link between devices carries a terabyte a second.
    assert first.time_ns > 1_000
    assert last.time_ns > last.message_bytes / 1_000
