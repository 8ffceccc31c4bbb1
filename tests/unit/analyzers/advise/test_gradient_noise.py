"""The gradient noise scale against models whose signal and noise are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from shardtoll.analyzers.advise.from_run.measured import measured_beside, noise_scale_in_batches
from shardtoll.ledger import FabricInfo, Report
from shardtoll.profiler import audit
from tests.unit.analyzers.ledgers import ledger, run_of
from tests.unit.analyzers.value_rows import parameter, value

PARAMETERS, ELEMENTS, RANKS = 60, 500, 2
Floats = npt.NDArray[np.float64]


def drawn(steps: int, noise: float, signal: float = 1.0) -> list[Floats]:
    """Gradients of so many steps, [parameter, element]: one signal and a noise of its own each."""
    random = np.random.default_rng(7)
    wanted = signal * random.standard_normal((PARAMETERS, ELEMENTS))
    return [wanted + noise * random.standard_normal((PARAMETERS, ELEMENTS)) for _ in range(steps)]


def report(gradients: dict[int, Floats], broken: int | None = None) -> Report:
    """A report of replicas that saw these gradients by step; one parameter is `broken` on rank 1."""
    values, parameters = [], []
    for rank in range(RANKS):
        for number in range(PARAMETERS):
            name = f"layers.{number}.weight"
            parameters.append(parameter(name, rank, shape=(ELEMENTS,)))
            for step, gradient in gradients.items():
                off = 100.0 if rank == 1 and number == broken else 0.0
                values.append(value("gradient", name, rank, gradient[number] + off, step=step))
    made = ledger(run=run_of(RANKS), values=values, parameters=parameters)
    return Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_it_is_the_noise_of_a_batch_over_the_signal(noise: float) -> None:
    found = noise_scale_in_batches(report(dict(enumerate(drawn(4, noise)))))
    assert found == pytest.approx(noise**2, rel=0.25)


def test_a_parameter_whose_replicas_disagree_is_left_out() -> None:
    gradients = dict(enumerate(drawn(4, 1.0)))
    found = noise_scale_in_batches(report(gradients, broken=3))
    assert found == pytest.approx(noise_scale_in_batches(report(gradients)), rel=0.1)


def test_a_norm_that_changes_from_step_to_step_is_no_noise() -> None:
    gradients = drawn(4, 0.5)
    scaled = {step: gradient * 4.0**step for step, gradient in enumerate(gradients)}
    assert noise_scale_in_batches(report(scaled)) == pytest.approx(0.25, rel=0.25)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [0.0, 1e90])
def test_gradients_of_no_size_and_beyond_measure_warn_of_nothing(factor: float) -> None:
    made = {step: gradient * factor for step, gradient in enumerate(drawn(2, 0.5))}
    assert noise_scale_in_batches(report(made)) == (None if not factor else pytest.approx(0.25, rel=0.5))


def test_noise_alone_has_no_scale() -> None:
    assert noise_scale_in_batches(report(dict(enumerate(drawn(4, 1.0, signal=0.0))))) is None


def test_gradients_that_do_not_follow_each_other_are_not_compared() -> None:
    one, two = drawn(2, 0.5)
    assert noise_scale_in_batches(report({0: one})) is None
    assert noise_scale_in_batches(report({0: one, 9: two})) is None
    assert noise_scale_in_batches(report({})) is None


def test_a_dry_run_has_none() -> None:
    made = report(dict(enumerate(drawn(2, 0.5))))
    assert noise_scale_in_batches(replace(made, run=replace(made.run, source="dry"))) is None


def test_it_is_told_in_tokens_where_those_are_known() -> None:
    made = report(dict(enumerate(drawn(4, 1.0))))
    batches = noise_scale_in_batches(made)
    assert batches is not None
    assert measured_beside(made, 4096)["noise_scale_tokens"] == batches * 4096
    assert "noise_scale_tokens" not in measured_beside(made)


def test_an_audit_of_a_model_whose_gradient_is_known() -> None:
    """The gradient of a mean of w * x is the mean of x, whatever w is: known signal, known noise."""
    torch.manual_seed(3)
    wanted, batch, noise = torch.randn(PARAMETERS, ELEMENTS), 8, 2.0

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.zeros(ELEMENTS) for _ in range(PARAMETERS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[:, at] @ weight for at, weight in enumerate(self.weights)]).mean(1).sum()

    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, level="survey", checks=("gradients",)) as session:
        for _ in range(4):
            with session.step():
                x = wanted + noise * torch.randn(batch, PARAMETERS, ELEMENTS)
                optimizer.zero_grad()
                model(x).backward()
                optimizer.step()
    made = session.report()
    assert made is not None
    assert noise_scale_in_batches(made) == pytest.approx(noise**2 / batch, rel=0.25)
