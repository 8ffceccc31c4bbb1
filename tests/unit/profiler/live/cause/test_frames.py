"""Which frames are the user's, and what known functions of torch say about an operator."""

from __future__ import annotations

import os
import sys
from types import FrameType

import pytest
import torch

from shardtoll.profiler.live.cause.cause import Cause
from shardtoll.profiler.live.cause.frames import Stack


def cause_in(filename: str, function: str = "train") -> Cause:
    """The cause seen from a function that claims to be from that file."""
    source = f"def {function}(look):\n    return look()\n"
    scope: dict[str, object] = {}
    exec(compile(source, filename, "exec"), scope)

    def look() -> Cause:
        caller: FrameType | None = sys._getframe(1)
        assert caller is not None
        return Stack().cause(caller)

    made = scope[function]
    assert callable(made)
    found: Cause = made(look)
    return found


TORCH = os.path.dirname(torch.__file__)


@pytest.mark.parametrize("filename", ["/home/me/train.py", "<stdin>", "<string>", "<ipython-input-3-abc>"])
def test_the_users_own_code_is_the_source(filename: str) -> None:
    source = cause_in(filename).source or ""
    assert source.endswith(":2 (train)")
    assert filename.rpartition("/")[2] in source


@pytest.mark.parametrize(
    "filename",
    [
        "<frozen runpy>",
        "<eval_with_key>.3",
        "/tmp/torchinductor_me/ab/cabc.py",
        f"{TORCH}/nn/functional.py",
    ],
)
def test_generated_code_and_torch_are_not(filename: str) -> None:
    source = cause_in(filename).source or ""
    assert "cause_in" in source, "the next frame out is this test's"


def test_packages_of_another_environment_are_libraries() -> None:
    cause = cause_in("/opt/other/lib/python3.11/site-packages/trainer/loop.py")
    assert "cause_in" in (cause.source or ""), "the next frame out is this test's"
    assert (cause.in_library or "").startswith("trainer/loop.py:2")


def test_a_module_called_by_an_optimizers_closure_runs_forward() -> None:
    seen: list[Cause] = []

    class Seen(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(Stack().cause(sys._getframe()))
            return super().forward(x)

    model = Seen(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        seen.append(Stack().cause(sys._getframe()))
        return float(model(torch.ones(1)).detach())

    optimizer.step(closure)
    assert [(cause.phase, cause.module) for cause in seen] == [("optimizer", None), (None, model)]


def test_a_path_outside_the_working_folder_keeps_its_last_two_parts() -> None:
    assert (cause_in("/somewhere/else/pkg/train.py").source or "").startswith("pkg/train.py:2")


@pytest.mark.parametrize(
    ("filename", "function", "phase"),
    [
        ("autograd/graph.py", "_engine_run_backward", "backward"),
        ("utils/checkpoint.py", "recompute_fn", "recompute"),
        ("optim/adamw.py", "step", "optimizer"),
        ("nn/utils/clip_grad.py", "clip_grad_norm_", "optimizer"),
        ("nn/functional.py", "linear", None),
    ],
)
def test_phase_from_torchs_own_frames(filename: str, function: str, phase: str | None) -> None:
    assert cause_in(f"{TORCH}/{filename}", function).phase == phase
