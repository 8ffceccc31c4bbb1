"""Closures of optimizers: what is passed on, who hears of them, and whose time they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shardtoll.ledger import Report
from shardtoll.profiler import audit
from shardtoll.profiler.live.capture.closures import Closures, has_closure
from shardtoll.profiler.live.cause.frames import CLOSURE_FRAME

D, ROWS = 64, 32


def test_a_closure_is_called_with_what_it_was_called_with_and_its_result_is_returned() -> None:
    heard: list[str] = []
    closures = Closures()
    closures.begins.append(lambda optimizer: heard.append(f"begins {optimizer} {closures.inside}"))
    closures.ended.append(lambda optimizer: heard.append(f"ended {optimizer}"))
    changed = closures.wrapped("o", ("o", lambda *args: (args, heard.append("runs"))[0]), {"more": 1})
    assert changed is not None
    ((_, closure), more) = changed
    assert (closure(1, 2), more, closure.__name__) == ((1, 2), {"more": 1}, CLOSURE_FRAME)
    assert heard == ["begins o True", "runs", "ended o"]
    assert not closures.inside


def test_a_model_that_a_step_takes_is_no_closure() -> None:
    class OfModel(torch.optim.SGD):
        def step(self, model: nn.Module) -> int:  # type: ignore[override]
            super().step()
            return len(list(model.parameters()))

    model = nn.Linear(2, 2)
    optimizer = OfModel(model.parameters())
    with audit(model) as session, session.step():
        model(torch.ones(1, 2)).sum().backward()
        assert optimizer.step(model) == 2
    report = session.report()
    assert report is not None
    assert "capture-stopped" not in {notice.kind for notice in report.notices}


def test_a_closure_by_name_and_one_that_raises() -> None:
    closures = Closures()

    def broken() -> None:
        raise ValueError("the user's own")

    changed = closures.wrapped("o", ("o",), {"closure": broken})
    assert changed is not None
    with pytest.raises(ValueError, match="the user's own"):
        changed[1]["closure"]()
    assert not closures.inside


def test_of_nested_closures_the_outermost_is_told() -> None:
    closures, heard = Closures(), []
    closures.begins.append(heard.append)
    inner = closures.wrapped("inner", ("inner", lambda: 7), {})
    assert inner is not None
    outer = closures.wrapped("outer", ("outer", inner[0][1]), {})
    assert outer is not None
    assert (outer[0][1](), heard) == (7, ["outer"])


@pytest.mark.parametrize(
    ("args", "kwargs"), [(("o",), {}), (("o", None), {}), (("o",), {"closure": None}), (("o", 0.1), {})]
)
def test_without_a_closure_nothing_changes(args: Any, kwargs: Any) -> None:
    assert not has_closure(args, kwargs)
    assert Closures().wrapped("o", args, kwargs) is None


def test_a_failure_of_a_listener_ends_the_capture_and_not_the_step() -> None:
    closures = Closures()
    failures: list[Exception] = []
    closures.on_failure = failures.append
    closures.begins.append(lambda _: 1 / 0)
    changed = closures.wrapped("o", ("o", lambda: 7), {})
    assert changed is not None
    assert changed[0][1]() == 7
    assert isinstance(failures[0], ZeroDivisionError)


def trained(step: Callable[[torch.optim.Optimizer, Callable[[], torch.Tensor]], Any], kind: Any) -> Report:
    torch.manual_seed(0)
    model = nn.Linear(D, D)
    optimizer = kind(model.parameters())
    x = torch.randn(ROWS, D)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(x) @ torch.ones(D, 1)).mean()
        loss.backward()
        return loss

    with audit(model, level="survey") as session, session.step():
        step(optimizer, closure)
    report = session.report()
    assert report is not None
    return report


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, max_iter=3)


WAYS: dict[str, Any] = {
    "positional": lambda optimizer, closure: optimizer.step(closure),
    "by name": lambda optimizer, closure: optimizer.step(closure=closure),
    "plain": lambda optimizer, closure: (closure(), optimizer.step()),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("kind", [sgd, adam])
def test_forward_loss_and_backward_of_a_closure_are_what_they_are(way: str, kind: Any) -> None:
    computes = trained(WAYS[way], kind).tables["computes"].to_pylist()
    # The linear layer and the loss's product; the gradients of the weight, and of what the loss multiplies.
    assert Counter(row["phase"] for row in computes) == {"forward": 2, "backward": 2, "optimizer": 1}


@pytest.mark.parametrize("kind", [sgd, lbfgs])
def test_the_update_lasts_as_long_as_its_own_operators(kind: Any) -> None:
    report = trained(WAYS["positional"], kind)
    rows = report.tables["computes"].to_pylist()
    (update,) = [row for row in rows if row["phase"] == "optimizer"]
    others = [row for row in rows if row["phase"] != "optimizer"]
    (step,) = report.tables["steps"].to_pylist()
    # What the operators with FLOPs took is in the step's compute time, and no part of the update.
    assert update["duration_ns"] + sum(row["duration_ns"] for row in others) <= step["compute_ns"]
    calls = sum(row["phase"] == "forward" for row in others) // 2
    assert calls == (1 if kind is sgd else sum(row["phase"] == "backward" for row in others) // 2)
