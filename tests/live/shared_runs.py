"""Runs one of the outside programs in the shared inputs' folder `programs` under torch's launcher.

The launcher and the ranks are forked from an interpreter that has imported torch, see warm.py.
"""

from __future__ import annotations

import os
import subprocess

from tests.live import warm
from tests.live.launch import ROOT
from tests.shared_inputs import shared

LIMIT_S = 180


def output_of(program: str, ranks: int, *args: str, prefix: tuple[str, ...] = (), **variables: str) -> str:
    """Return what the program printed on all ranks; skips the test where the shared inputs are absent.

    `prefix` comes before the program's path: `("-m", "shardtoll.cli", "run")` audits it unedited.
    """
    path = shared("programs", program)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    launcher = (warm.python(), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    done = subprocess.run(
        [*launcher, *prefix, str(path), *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
