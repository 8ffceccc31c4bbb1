"""After every test: no mode, patch, hook, profiler or open session is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.modules import module as nn_module

from shardtoll.profiler.live import pausing, session


def _state() -> dict[str, object]:
    return {
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "Work.wait": dist.Work.wait,
        "Future.wait": torch._C.Future.wait,
        "process groups": dict(vars(dist.ProcessGroup)),
        "session": session.active_session(),
        "pauses": list(pausing._pauses),
        "sinks": list(pausing._sinks),
        "profiler": torch._C._autograd._profiler_enabled(),
        "forward hooks": dict(nn_module._global_forward_hooks),
        "forward pre-hooks": dict(nn_module._global_forward_pre_hooks),
        "backward hooks": dict(nn_module._global_backward_hooks),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad mode": torch.is_grad_enabled(),
    }


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = _state()
    yield
    assert _state() == before
