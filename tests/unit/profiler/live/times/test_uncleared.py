"""Which optimizer steps use gradients that nobody has cleared since the step before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from shardtoll.profiler.live.cause.module_names import Names
from shardtoll.profiler.live.times.clearing import Clearing

STEPS = 4


def in_a_row(
    between: Callable[[nn.Module], None], *, backwards: int = 1, told: bool = True, gap: bool = False
) -> int:
    """Train with `between` after each step, and return how many steps are counted at the end."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    clearing = Clearing(Names(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        for _ in range(backwards):
            clearing.backward_begins()
            model(torch.randn(3, 4)).square().sum().backward()
            clearing.backward_ended()
        clearing.uncleared.step_begins(optimizer)
        optimizer.step()
        clearing.uncleared.step_ended(optimizer)
        between(model)
        if gap:
            clearing.uncleared.unseen()
        if not told:
            clearing.uncleared.forget()
    return clearing.uncleared.in_a_row


def each(change: Callable[[torch.Tensor], object]) -> Callable[[nn.Module], None]:
    def of(model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                change(parameter.grad)

    return of


def nothing(_: nn.Module) -> None:
    pass


@pytest.mark.parametrize("backwards", [1, 3])
@pytest.mark.parametrize("gap", [False, True])
def test_gradients_that_nobody_clears_are_counted(backwards: int, gap: bool) -> None:
    assert in_a_row(nothing, backwards=backwards, gap=gap) == STEPS - 1


@pytest.mark.parametrize(
    "between",
    [
        lambda model: model.zero_grad(),
        lambda model: model.zero_grad(set_to_none=False),
        each(lambda gradient: gradient.mul_(0.9)),
        each(lambda gradient: gradient.data.zero_()),
        each(lambda gradient: gradient.data.fill_(0)),
    ],
    ids=["to none", "to zero", "scaled", "zero by data", "filled by data"],
)
def test_cleared_or_changed_gradients_are_not(between: Callable[[nn.Module], None]) -> None:
    assert in_a_row(between) == 0


def test_one_parameter_that_is_cleared_is_no_proof() -> None:
    def one(model: nn.Module) -> None:
        model.get_parameter("bias").grad = None

    assert in_a_row(one) == 0


def test_what_is_not_followed_is_not_counted() -> None:
    assert in_a_row(nothing, told=False) == 0
