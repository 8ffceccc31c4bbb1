"""What is looked at in programs of one process: compiled, scaled, without an optimizer, on fake tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

from shardtoll.profiler import audit

ALL = ("gradients", "replicas", "data")


def rows_of(model: nn.Module, step: Callable[[], object], **options: Any) -> dict[str, list[dict[str, Any]]]:
    """The tables of a session of one step, its own warm-up outside."""
    with audit(model, level="watch", **{"checks": ALL, **options}) as session, session.step():
        step()
    assert session.ledger is not None
    return {name: table.to_pylist() for name, table in session.ledger.tables.items()}


def squares(rows: dict[str, list[dict[str, Any]]], kind: str) -> dict[str, float]:
    return {row["name"]: row["square"] for row in rows["values"] if row["kind"] == kind}


def square(tensor: torch.Tensor | None) -> float:
    assert tensor is not None
    return float(tensor.detach().double().square().sum())


@pytest.mark.parametrize("given", ["what is compiled", "what is inside", "a function around it"])
def test_compiled_code_is_neither_compiled_anew_nor_broken(given: str) -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer: Any = torch.compile(model, backend="eager")
    called = outer
    if given == "a function around it":
        called = torch.compile(lambda x: model(x), backend="eager")

    def step() -> None:
        called(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    step()
    counters.clear()
    rows = rows_of(outer if given == "what is compiled" else model, step)
    step()
    assert dict(counters["stats"]) == dict(counters["graph_break"]) == {}
    known = given == "what is compiled"
    assert squares(rows, "input") == ({"args[0]": 8.0} if known else {})
    notices = [row["kind"] for row in rows["notices"]]
    assert notices == ([] if known else ["inputs-unknown"])
    assert set(squares(rows, "gradient")) == {"0.weight", "0.bias"}


def test_a_hook_that_is_compiled_with_the_model_breaks_no_graph() -> None:
    torch.compiler.reset()
    counters.clear()
    model = nn.Linear(3, 3)
    compiled: list[Any] = []

    def step() -> None:
        compiled.append(torch.compile(lambda x: model(x), backend="eager", fullgraph=True))
        compiled[0](torch.ones(2, 3))

    rows = rows_of(model, step)
    assert counters["stats"]["unique_graphs"] == 1
    assert [row["kind"] for row in rows["notices"]] == ["inputs-unknown"]


def test_gradients_that_no_optimizer_takes_are_taken_at_the_end() -> None:
    model = nn.Linear(3, 2)
    rows = rows_of(model, lambda: model(torch.ones(4, 3)).sum().backward())
    assert squares(rows, "gradient") == {
        "weight": square(model.weight.grad),
        "bias": square(model.bias.grad),
    }
    assert [row["has_grad"] for row in rows["parameters"]] == [None, None]


def test_scaled_gradients_are_taken_as_the_optimizer_uses_them() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(torch.ones(4, 3)).sum()
        scaler.scale(out).backward()
        scaler.step(optimizer)
        scaler.update()

    rows = rows_of(model, step)
    assert squares(rows, "gradient")["bias"] == 2 * 16
    assert squares(rows, "input") == {"args[0]": 12.0}


def test_optimizers_that_step_in_backward_are_seen_in_it() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    ones = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    seen: dict[str, float] = {}
    names = {parameter: name for name, parameter in model.named_parameters()}

    def hook(parameter: torch.Tensor) -> None:
        seen[names[parameter]] = square(parameter.grad)  # type: ignore[index]
        ones[parameter].step()  # type: ignore[index]
        parameter.grad = None

    handles = [p.register_post_accumulate_grad_hook(hook) for p in model.parameters()]
    rows = rows_of(model, lambda: model(torch.ones(4, 3)).sum().backward())
    for handle in handles:
        handle.remove()
    # Two sums of the same numbers, each in an order of its own.
    assert squares(rows, "gradient") == pytest.approx(seen, rel=1e-12)
    assert all(row["has_grad"] for row in rows["parameters"])


def test_sparse_gradients_are_listed_without_numbers() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()

    rows = rows_of(model, step)
    assert squares(rows, "gradient") == {"weight": None}
    assert squares(rows, "input") == {"args[0]": 9.0}
    assert rows["notices"] == []


def test_fake_tensors_have_no_values_and_end_no_check() -> None:
    with FakeTensorMode():
        model = nn.Linear(3, 2)
        rows = rows_of(model, lambda: model(torch.ones(4, 3)).sum().backward())
    kinds = Counter(row["kind"] for row in rows["values"])
    assert kinds == {"input": 1, "gradient": 2, "parameter": 4}
    assert {(row["hash"], row["square"]) for row in rows["values"]} == {(None, None)}
    assert "checks-stopped" not in {row["kind"] for row in rows["notices"]}


def test_only_the_checks_asked_for_are_made() -> None:
    model = nn.BatchNorm1d(3)
    kinds = {
        check: {row["kind"] for row in rows_of(model, step, checks=(check,))["values"]}
        for check in ALL
        for step in [lambda: model(torch.randn(4, 3)).sum().backward()]
    }
    # Which parameters began equal tells which gradients should be.
    assert kinds == {
        "gradients": {"gradient", "parameter"},
        "replicas": {"parameter", "buffer"},
        "data": {"input"},
    }


def test_one_in_so_many_steps_is_looked_at() -> None:
    model = nn.Linear(2, 2)
    with audit(model, level="survey", checks=ALL, check_every=3) as session:
        for _ in range(5):
            with session.step():
                model(torch.ones(1, 2)).sum().backward()
    assert session.ledger is not None
    steps = Counter(session.ledger.tables["values"].column("step").to_pylist())
    assert set(steps) == {None, 0, 3}
    assert session.ledger.tables["parameters"].num_rows == 2


def test_what_another_optimizer_is_to_use_is_not_taken_as_used() -> None:
    model = nn.ModuleDict({"g": nn.Linear(3, 3), "d": nn.Linear(3, 1)})
    optimizer = torch.optim.SGD(model["g"].parameters(), lr=0.1)

    def step() -> None:
        model["d"](model["g"](torch.ones(2, 3))).sum().backward()
        optimizer.step()

    rows = rows_of(model, step)["values"]
    used = {(row["name"], row["nth"]) for row in rows if row["kind"] == "gradient"}
    assert used == {("g.weight", 0), ("g.bias", 0), ("d.weight", 1), ("d.bias", 1)}


def test_copies_of_the_parameters_in_an_optimizer_use_all_gradients() -> None:
    model = nn.Linear(3, 2)
    copies = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)

    def step() -> None:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    rows = rows_of(model, step)["values"]
    assert {row["nth"] for row in rows if row["kind"] == "gradient"} == {0}


def test_a_norm_of_anything_but_gradients_is_none_of_ours() -> None:
    model = nn.Linear(3, 2)

    def step() -> None:
        out = model(torch.ones(2, 3))
        out.sum().backward()
        torch.nn.utils.get_total_norm([out.detach()])

    assert not squares(rows_of(model, step), "norm")


def test_inputs_of_evaluation_are_not_trained_on() -> None:
    model = nn.Linear(3, 2)

    def step() -> None:
        model(torch.ones(2, 3)).sum().backward()
        with torch.no_grad():
            model(2 * torch.ones(2, 3))

    assert squares(rows_of(model, step), "input") == {"args[0]": 6.0}
