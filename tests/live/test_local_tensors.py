"""torch's LocalTensorMode as an independent witness: it has the gradients that the gloo ranks have.

Private in torch and young (2.9 on): skipped where torch lacks it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from typing import Any

import pytest
import torch

from tests.live import local_programs as programs
from tests.live import warm
from tests.live.launch import ROOT, run_ranks

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        importlib.util.find_spec("torch.distributed._local_tensor") is None,
        reason="torch has no LocalTensorMode",
    ),
]


@pytest.fixture(scope="module")
def simulated() -> dict[str, Any]:
    done = subprocess.run(
        [warm.python(), "-m", "tests.live.local_programs"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def real() -> list[dict[str, Any]]:
    return run_ranks(programs.by_gloo, programs.DP * programs.TP)


@pytest.mark.parametrize("variant", programs.VARIANTS)
def test_every_rank_has_the_gradients_that_one_process_plays_for_it(
    simulated: dict[str, Any], real: list[dict[str, Any]], variant: str
) -> None:
    for rank, seen in enumerate(real):
        played = simulated[variant]["gradients"][rank]
        own = seen[variant]["gradients"]
        assert list(own) == list(played)
        for name in own:
            torch.testing.assert_close(torch.tensor(own[name]), torch.tensor(played[name]), msg=name)


@pytest.mark.parametrize("variant", programs.VARIANTS)
def test_the_check_flags_what_is_wrong_there(
    simulated: dict[str, Any], real: list[dict[str, Any]], variant: str
) -> None:
    assert real[0][variant]["flagged"] == simulated[variant]["wrong"]
    assert simulated[variant]["wrong"] == ([] if variant == "right" else [programs.BROKEN])
