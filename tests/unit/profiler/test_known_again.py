"""Watched steps whose collectives one line issues for one thing or another: each named as a survey has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardtoll.profiler import audit

STEPS = 4


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def told(model: nn.Module, level: str, column: str, step: Callable[[int], Any]) -> list[Any]:
    """Return what the ledger has in a column of the collectives of steps that are told their number."""
    with audit(model, level=level) as session:
        for number in range(STEPS):
            with session.step():
                step(number)
    return list(session.ledger.frame("collectives")[column])


def test_parameters_that_one_line_picks_by_index() -> None:
    mesh = init_device_mesh("cpu", (2,))
    x = DTensor.from_local(torch.ones(4, 4), mesh, [Replicate()], run_check=False)

    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sharded = [distribute_tensor(torch.ones(4), mesh, [Shard(0)]) for _ in range(2)]
            self.w = nn.ParameterList([nn.Parameter(each) for each in sharded])

        def forward(self, number: int) -> torch.Tensor:
            # DTensor gathers the weight.
            return nn.functional.layer_norm(x, (4,), self.w[number % 2])

    for level in ("survey", "watch"):
        model = Norms()
        assert told(model, level, "parameter", model) == ["w.0", "w.1"] * 2


class Reduced(torch.autograd.Function):
    """Nothing in forward, an all-reduce in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def test_branches_that_differ_in_nothing_but_their_parameters() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Reduced.apply(x) @ self.w  # type: ignore[no-any-return, no-untyped-call]

    model = nn.ModuleList([Branch(), Branch()])

    taken = (0, 0, 0, 0, 1, 1, 0, 1)
    with audit(model) as session:
        for number in taken:
            with session.step():
                model[number](torch.ones(2, 4, requires_grad=True)).sum().backward()
    modules = session.ledger.frame("collectives")["module"].astype(object)
    # The branch first met in a watched step has a survey right after that; until then it is unknown.
    assert [None if name is pd.NA else name for name in modules] == [*"0000", None, *"101"]
