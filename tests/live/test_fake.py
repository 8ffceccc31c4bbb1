"""A step on fake tensors: counts and bytes of a big job, in one process and without its memory."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.live import fake_programs as job
from tests.live import warm
from tests.live.launch import ROOT

pytestmark = pytest.mark.live


def test_a_step_on_fake_tensors_has_the_closed_form_of_64_ranks(tmp_path: Path) -> None:
    done = subprocess.run(
        [warm.python(), "-m", "tests.live.fake_programs", str(tmp_path / "rows.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads((tmp_path / "rows.json").read_text())
    # A block's weights are split over tp and gathered over dp; activations are whole on each rank of tp.
    weights = 2 * job.WIDTH * job.HIDDEN // job.TP * 4
    activations = job.BATCH * job.WIDTH * 4
    found = Counter(
        (c["op"], c["phase"], c["mesh_dim"], c["message_bytes"], c["wire_bytes"]) for c in rows["collectives"]
    )
    over_dp = ("dp", weights, weights * (job.DP - 1) // job.DP)
    over_tp = ("tp", activations, 2 * activations * (job.TP - 1) // job.TP)
    assert found == {
        ("all_gather", "forward", *over_dp): job.BLOCKS,
        ("all_gather", "backward", *over_dp): job.BLOCKS,
        ("reduce_scatter", "backward", *over_dp): job.BLOCKS,
        ("all_reduce", "forward", *over_tp): job.BLOCKS,
        ("all_reduce", "backward", *over_tp): job.BLOCKS,
    }
    assert {c["module"] for c in rows["collectives"]} == {"0", "1", *("0.up", "0.down", "1.up", "1.down")}
    assert all(c["duration_ns"] is None and c["input_hash"] is None for c in rows["collectives"])
    # Each linear layer has one matmul in forward and two in backward; DTensor's own ones for shapes are none.
    one = 2 * job.BATCH * job.WIDTH * job.HIDDEN // job.TP
    assert [c["flops"] for c in rows["computes"]] == [one] * (3 * 2 * job.BLOCKS)
    assert [n["text"] for n in rows["notices"] if "fake tensors" in n["text"]], rows["notices"]
