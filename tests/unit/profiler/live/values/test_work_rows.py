"""Compute records beyond matmuls: norms, losses, embeddings and, as one record a step, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shardtoll.ledger.records.work import OPTIMIZER_STEP, kind_of_work
from shardtoll.profiler import audit
from shardtoll.profiler.live.values.operators import flops_of

ROWS, WIDTH = 8, 16
ELEMENTS = ROWS * WIDTH


def computes(session: Any) -> list[dict[str, Any]]:
    return list(session.ledger.tables["computes"].to_pylist())


@pytest.mark.parametrize(
    ("work", "forward", "backward"),
    [
        (nn.LayerNorm(WIDTH), 7, 14),
        (nn.LayerNorm(WIDTH, bias=False), 6, 12),
        (nn.LayerNorm(WIDTH, elementwise_affine=False), 5, 10),
        (nn.LogSoftmax(dim=-1), 5, 4),
    ],
    ids=["layer_norm", "without bias", "without weight", "log_softmax"],
)
def test_flops_of_an_element(
    work: Callable[[torch.Tensor], torch.Tensor], forward: int, backward: int
) -> None:
    with audit() as session:
        work(torch.randn(ROWS, WIDTH, requires_grad=True)).square().sum().backward()
    rows = [(row["phase"], row["flops"]) for row in computes(session)]
    assert rows == [("forward", forward * ELEMENTS), ("backward", backward * ELEMENTS)]


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="torch has no fused rms_norm")
def test_flops_of_the_fused_rms_norm() -> None:
    """On a CPU torch takes it apart, so its formula is asked directly."""
    x, weight = torch.randn(ROWS, WIDTH), torch.ones(WIDTH)
    forward, backward = (
        torch.ops.aten._fused_rms_norm.default,
        torch.ops.aten._fused_rms_norm_backward.default,
    )
    assert kind_of_work(str(forward)) == kind_of_work(str(backward)) == "norm"
    assert flops_of(forward, (x, [WIDTH], weight, 1e-6), {}, None) == 4 * ELEMENTS
    assert flops_of(forward, (x, [WIDTH], None, 1e-6), {}, None) == 3 * ELEMENTS
    assert flops_of(backward, (x, x, [WIDTH], x, weight, [True, True]), {}, None) == 8 * ELEMENTS


def test_an_embedding_costs_in_backward() -> None:
    with audit() as session:
        nn.Embedding(10, WIDTH)(torch.randint(10, (ROWS,))).square().sum().backward()
    (row,) = computes(session)
    assert (kind_of_work(row["op"]), row["phase"], row["flops"]) == ("embedding", "backward", ELEMENTS)


def test_zero_biases_and_fresh_norms_do_not_make_equality_mean_nothing() -> None:
    layer, norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    nn.init.zeros_(layer.bias)
    with audit() as session:
        norm(layer(torch.randn(ROWS, WIDTH)))
        layer(torch.ones(ROWS, WIDTH))
        nn.functional.linear(torch.randn(ROWS, WIDTH), torch.ones(WIDTH, WIDTH))
    assert [row["constant"] for row in computes(session)] == [False, False, True, True]


# -- optimizers ----------------------------------------------------------------------------------------


def model() -> nn.Module:
    frozen = nn.Linear(WIDTH, WIDTH)
    frozen.requires_grad_(False)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), frozen)


TRAINED = WIDTH * WIDTH + WIDTH


def step(layers: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    layers(torch.randn(ROWS, WIDTH)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def updates(session: Any) -> list[dict[str, Any]]:
    return [row for row in computes(session) if row["op"] == OPTIMIZER_STEP]


@pytest.mark.parametrize(
    ("make", "state_bytes"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False), 4 * TRAINED),
        (lambda p: torch.optim.AdamW(p, foreach=True), 8 * TRAINED),
        (lambda p: torch.optim.AdamW(p, fused=True), 8 * TRAINED),
    ],
    ids=["SGD", "momentum", "foreach", "fused"],
)
def test_an_update_is_one_record_a_step(make: Callable[[Any], Any], state_bytes: int) -> None:
    layers = model()
    optimizer = make(layers.parameters())
    with audit(layers, level="survey") as session:
        for _ in range(2):
            with session.step():
                step(layers, optimizer)
    rows = updates(session)
    assert [row["step"] for row in rows] == [0, 1]
    for row in rows:
        assert (row["phase"], row["flops"]) == ("optimizer", TRAINED)
        assert row["shapes"] == f"f32[{TRAINED}] state u8[{state_bytes}]"
        assert "test_work_rows.py" in row["source"]
        assert None not in (row["input_hash"], row["output_hash"])
    parts = session.ledger.tables["steps"].to_pylist()
    for part, row in zip(parts, rows, strict=True):
        assert 0 < row["duration_ns"] < part["compute_ns"]


def test_several_optimizers_are_one_record() -> None:
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    with audit(layers) as session:
        step(layers, *(torch.optim.SGD(layer.parameters()) for layer in layers))
    (row,) = updates(session)
    assert row["flops"] == 2 * TRAINED


def test_an_optimizer_around_another_is_not_counted_twice() -> None:
    class Around(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return inner.step(closure)

    layers = model()
    inner = torch.optim.SGD(layers.parameters(), lr=0.1)
    with audit(layers) as session:
        step(layers, Around(layers.parameters(), lr=0.1))
    assert [row["flops"] for row in updates(session)] == [TRAINED]


def test_a_step_without_gradients_or_one_that_fails_leaves_no_record() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("no")

    layers = model()
    with audit(layers, level="survey") as session:
        with session.step():
            torch.optim.SGD(layers.parameters()).step()
        with session.step():
            with pytest.raises(RuntimeError, match="no"):
                step(layers, Failing(layers.parameters()))
            layers.zero_grad()
            step(layers, torch.optim.SGD(layers.parameters()))
    assert [(row["step"], row["flops"]) for row in updates(session)] == [(1, TRAINED)]


def test_a_watched_step_has_none() -> None:
    layers = model()
    with audit(layers, level="watch") as session, session.step():
        step(layers, torch.optim.SGD(layers.parameters()))
    assert computes(session) == []


def test_the_update_is_the_same_with_and_without_an_audit() -> None:
    found = []
    for audited in (False, True):
        torch.manual_seed(0)
        layers = model()
        optimizer = torch.optim.AdamW(layers.parameters())
        if audited:
            with audit(layers):
                step(layers, optimizer)
        else:
            step(layers, optimizer)
        found.append([parameter.detach().clone() for parameter in layers.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
