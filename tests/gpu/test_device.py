"""Audits on a CUDA device: what one GPU can show. Everything here is skipped where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.gpu import programs
from tests.live.launch import run_ranks

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.live, pytest.mark.slow]

LEVELS = {"survey": {"survey"}, "schedule": {"survey", "watch"}}
"""Level of an audit -> those of its steps."""


def run_nccl(function: Any, *args: Any) -> dict[str, Any]:
    # A process that has begun to use CUDA cannot be forked.
    (found,) = run_ranks(function, 1, *args, backend="nccl", fresh=True)
    return found  # type: ignore[no-any-return]


def parts_add_up(found: dict[str, Any]) -> None:
    """Exposed time is known for every collective, and shares add up to each rank's step."""
    assert found["steps"]
    for step in found["steps"]:
        own = [
            row["exposed_ns"]
            for row in found["collectives"]
            if (row["step"], row["rank"]) == (step["step"], step["rank"])
        ]
        assert None not in own
        assert sum(own) == step["exposed_comm_ns"]
        assert step["duration_ns"] > 0
        assert step["exposed_comm_ns"] + step["unattributed_ns"] == step["duration_ns"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", programs.MODELS)
def test_steps_are_recorded_whole_and_disturbed_by_nothing(kind: str, level: str) -> None:
    """Each step ran with torch raising at any synchronisation."""
    found = run_nccl(programs.audited, kind, level)
    assert found["losses"] == found["bare"]
    assert found["device"] == torch.cuda.get_device_name()
    parts_add_up(found)
    assert [step["step"] for step in found["steps"]] == list(range(programs.STEPS))
    assert {step["level"] for step in found["steps"]} == LEVELS[level]
    assert found["counts"]
    for count in found["counts"]:
        assert count["issued"] == count["recorded"]
    assert "unmatched-collectives" not in found["findings"]
    notices = Counter(notice["kind"] for notice in found["notices"])
    assert "capture-stopped" not in notices
    sizes = Counter(
        (row["op"], row["message_bytes"]) for row in found["collectives"] if row["step"] is not None
    )
    if kind == "ddp":
        parameters = 2 * 2 * programs.D * 64 * 4
        assert sizes == {("all_reduce", parameters): programs.STEPS}
    elif kind == "functional":
        rows, d = programs.ROWS, programs.D
        assert sizes == {
            ("all_reduce", rows * d * 4): 2 * programs.STEPS,
            ("all_gather", rows * d * 4): programs.STEPS,
            ("all_reduce", rows * 4): programs.STEPS,
        }


def is_subsequence(small: Sequence[str], large: Sequence[str]) -> bool:
    rest = iter(large)
    return all(name in rest for name in small)


@pytest.mark.parametrize("kind", programs.MODELS)
def test_a_watched_step_runs_the_same_kernels_in_the_same_order(kind: str) -> None:
    found = run_nccl(programs.kernels, kind, "watch")
    assert sum(map(len, found["bare"])) > 10
    assert found["audited"] == found["bare"]


@pytest.mark.parametrize("kind", programs.MODELS)
def test_a_surveyed_step_runs_the_same_kernels_and_fingerprints_between_them(kind: str) -> None:
    found = run_nccl(programs.kernels, kind, "survey")
    assert len(found["bare"][-1]) > 10
    for stream in found["bare"]:
        assert any(is_subsequence(stream, audited) for audited in found["audited"])


def test_exposed_time_is_what_compute_does_not_hide() -> None:
    found = run_nccl(programs.overlap, programs.SHORT, programs.LONG)
    assert found["device"] == torch.cuda.get_device_name()
    parts_add_up(found)
    (row,) = found["collectives"]
    unhidden_ns = 9 * found["short_ns"]
    # The device's clock may change its rate between the two measurements.
    assert 0.7 * unhidden_ns < row["exposed_ns"] < 1.4 * unhidden_ns
    (step,) = found["steps"]
    assert step["duration_ns"] > row["exposed_ns"] + 0.5 * found["short_ns"]


def test_a_collective_behind_longer_compute_exposes_nothing() -> None:
    found = run_nccl(programs.overlap, programs.LONG, programs.SHORT)
    parts_add_up(found)
    (row,) = found["collectives"]
    assert row["exposed_ns"] < 0.2 * found["short_ns"]


def test_ranks_of_gloo_that_share_a_gpu() -> None:
    found = run_ranks(programs.shared_device, 4, limit_s=240, fresh=True)[0]
    parts_add_up(found)
    parameters = 2 * 2 * programs.D * 64 * 4
    inside = [row for row in found["collectives"] if row["step"] is not None]
    assert Counter((row["rank"], row["op"], row["message_bytes"]) for row in inside) == {
        (rank, "all_reduce", size): 2 for rank in range(4) for size in (parameters, 4000)
    }
    # Gloo blocks the host, and the device with it: that is seen.
    assert all(step["exposed_comm_ns"] > 0 for step in found["steps"])
    assert len(found["steps"]) == 8
