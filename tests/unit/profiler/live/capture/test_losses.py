"""What backwards begin with: losses that are not finite, and whether a gradient scaler leaves them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from shardtoll.profiler import audit

Rows = list[dict[str, Any]]


def values_of(step: Callable[[], object], model: nn.Module | None = None, **given: Any) -> Rows:
    """The rows of the values that a surveyed step held."""
    with audit(model, level="survey", **given) as session, session.step():
        step()
    assert session.ledger is not None
    rows: Rows = session.ledger.tables["values"].to_pylist()
    return rows


def losses_of(step: Callable[[], object]) -> Rows:
    return [row for row in values_of(step) if row["kind"] == "loss"]


def leaf(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, requires_grad=True)


def test_a_number_that_is_not_finite_is_a_loss() -> None:
    (row,) = losses_of(lambda: (leaf(1.0, 2.0).sum() * torch.inf).backward())
    assert (row["step"], row["name"], row["numel"], row["shape"]) == (0, "loss", 1, "[]")
    assert (row["dtype"], row["square"], row["may_leave_out"]) == ("float32", None, None)
    assert losses_of(lambda: leaf(1.0).sum().backward()) == []


def test_outputs_with_infinity_on_purpose_are_no_loss() -> None:
    masked = [0.0, 0.0, 1.0]

    def step() -> None:
        stage = leaf(1.0, 2.0, 3.0).masked_fill(torch.tensor([False, False, True]), -torch.inf)
        stage.backward(torch.tensor(masked))

    assert losses_of(step) == []


def test_each_of_several_losses_is_looked_at() -> None:
    def step() -> None:
        sums = [leaf(1.0).sum(), leaf(1.0) * torch.nan, leaf(1.0, 2.0) * torch.nan]
        torch.autograd.backward(sums, [None, torch.ones(1), torch.ones(2)])  # type: ignore[list-item]

    (row,) = losses_of(step)
    assert (row["nth"], row["shape"]) == (1, "[1]")


class Quiet(GradScaler):
    """A scaler that scales in its own way, as FSDP1's does."""

    def scale(self, outputs: Any) -> Any:
        return outputs * 2


@pytest.mark.parametrize("kind", [GradScaler, Quiet])
def test_losses_that_a_scaler_scales_may_be_left_out(kind: type[GradScaler]) -> None:
    scaler = kind("cpu", init_scale=4.0)
    (row,) = losses_of(lambda: scaler.scale(leaf(1.0).sum() * torch.inf).backward())
    assert row["may_leave_out"] is True


def test_a_scaler_that_is_off_leaves_nothing_out() -> None:
    scaler = GradScaler("cpu", enabled=False)
    (row,) = losses_of(lambda: scaler.scale(leaf(1.0).sum() * torch.inf).backward())
    assert row["may_leave_out"] is None


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("scales", [True, False])
def test_gradients_that_a_scaler_kept_from_the_optimizer_may_be_left_out(scales: bool, beside: bool) -> None:
    """`beside`: another optimizer steps, and as none is known to have the model's, it may have copies."""
    model, critic = nn.Linear(2, 1), nn.Linear(2, 1)
    other = torch.optim.SGD(critic.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=4.0, enabled=scales)

    def step() -> None:
        scaler.scale(model(torch.ones(1, 2)).sum() * torch.inf).backward()
        if beside:
            critic(torch.ones(1, 2)).sum().backward()
            other.step()
        if scales:
            scaler.step(optimizer)
            scaler.update()

    rows = values_of(step, model, checks=("gradients",))
    taken = [row for row in rows if row["kind"] == "gradient"]
    assert {row["nth"] for row in taken} == {0 if beside else 1}
    left_out = {row["name"]: row["may_leave_out"] for row in taken}
    assert left_out == {"weight": scales or None, "bias": scales or None}
