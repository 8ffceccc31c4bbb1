"""Names of parameters: whose values, or whose gradient's, a tensor's are."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from shardtoll.profiler import audit
from shardtoll.profiler.live.cause.module_names import Names


def tied() -> nn.Module:
    """A model with a module used twice, a parameter shared by two modules, and one of its own."""
    model = nn.Module()
    model.a = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    model.b = nn.Sequential(model.a[0], nn.Linear(3, 3, bias=False), nn.Identity())
    model.b[1].weight = model.a[0].weight
    model.scale = nn.Parameter(torch.ones(1))
    return model


def test_parameters_come_in_torchs_order_each_once() -> None:
    model = tied()
    assert [(name, id(p)) for name, p in Names(model).parameters()] == [
        (name, id(p)) for name, p in model.named_parameters()
    ]


def test_a_parameter_is_known_by_its_values_and_when_asked_by_its_gradient() -> None:
    model = tied()
    names = Names(model)
    weight = model.get_parameter("a.0.weight")
    assert names.is_at("a.0.weight", weight.detach(), gradient=False)
    assert not names.is_at("a.0.bias", weight.detach(), gradient=True)
    assert not names.is_at("no.such", weight.detach(), gradient=True)
    assert not names.is_at("a.0.weight", weight.detach().to("meta"), gradient=True)
    weight.grad = torch.ones_like(weight)
    assert names.is_at("a.0.weight", weight.grad, gradient=True)
    assert not names.is_at("a.0.weight", weight.grad, gradient=False)
    names.note_gradients()
    assert names.at_address(weight.grad) == names.at_address(weight) == "a.0.weight"


def test_a_buffer_of_many_is_no_one_parameters() -> None:
    """It begins where its first parameter does."""
    model = tied()
    names = Names(model)
    flat = torch.zeros(9 + 3)
    first, second = model.a[0].weight, model.a[0].bias
    first.grad, second.grad = flat[:9].view(3, 3), flat[9:]
    names.note_gradients()
    assert names.at_address(flat) is None
    assert not names.is_at("a.0.weight", flat, gradient=True)
    assert names.are_values([flat]) is None
    assert names.at_address(flat[:9]) == "a.0.weight"
    assert names.at_address(flat[9:]) == "a.0.bias"
    assert names.is_at("a.0.weight", flat[:9], gradient=True)
    assert not names.is_at("a.0.weight", first.detach().flatten()[:8], gradient=True)


def test_what_got_a_cleared_gradients_memory_is_no_parameters() -> None:
    model = tied()
    names = Names(model)
    bias = model.a[0].bias
    bias.grad = torch.zeros(3)
    names.note_gradients()
    metric = bias.grad.detach()
    assert names.are_values([metric]) is False
    bias.grad = None
    assert names.at_address(metric) is None
    assert names.are_values([metric]) is None
    assert names.are_values([metric, bias]) is True


def test_a_parameter_put_in_anothers_place_has_not_the_name_of_one_that_is_gone() -> None:
    reused = 0
    for _ in range(20):
        model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(8)))
        names = Names(model)
        before = set(names._parameters)
        for layer in model:
            layer.weight = nn.Parameter(layer.weight.detach().clone())
        for name, parameter in model.named_parameters():
            reused += id(parameter) in before
            assert names.at_address(parameter) in (name, None)
    assert reused


def test_torch_may_swap_parameters_whose_names_are_known() -> None:
    """It refuses to swap a tensor that a weak reference is held to; `Module.to` swaps DTensors."""
    model = tied()
    names = Names(model)
    assert dict(names.parameters())
    other = nn.Parameter(torch.zeros(1))
    torch.utils.swap_tensors(model.scale, other)
    assert names.is_at("scale", model.scale.detach(), gradient=False)


def test_a_scripts_parameter_is_known_by_its_values() -> None:
    """TorchScript keeps parameters in a mapping of its own, which has less than a dict."""
    with warnings.catch_warnings():
        # Newer versions of torch say of it that it is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        model = torch.jit.script(nn.Sequential(nn.Linear(2, 2, bias=False)))
    names = Names(model)
    (weight,) = model.parameters()
    assert names.is_at("0.weight", weight.detach(), gradient=False)
    assert not names.is_at("0.weight", torch.ones(2, 2), gradient=True)


def test_a_lazy_module_has_no_addresses_before_its_first_run() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "lazy": nn.LazyLinear(2)})
    names = Names(model)
    assert names.at_address(model["a"].weight) == "a.weight"
    assert not names.is_at("lazy.weight", model["a"].weight, gradient=True)
    model["lazy"](torch.ones(1, 2))
    names.note_gradients()
    assert names.at_address(model["lazy"].weight) == "lazy.weight"


def test_a_root_is_kept_once_and_named_as_at_first_in_what_it_has_got_since() -> None:
    model = nn.Sequential(nn.Identity())
    names = Names(model)
    model.append(nn.Linear(2, 2))
    assert names.module(model[1]) is None
    assert names.add_root(model)
    assert names.roots == [model]
    assert names.module(model[1]) == "1"


def test_of_very_many_roots_the_last_are_not_kept() -> None:
    names = Names(None)
    added = [names.add_root(nn.Sequential(nn.Identity())) for _ in range(100)]
    assert added == sorted(added, reverse=True)
    assert len(names.roots) == sum(added) < 100


class Product(nn.Module):
    """Holds nothing, and multiplies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


class Maker(nn.Module):
    """Makes modules in each call, and counts how often its own are gone through."""

    walks = 0

    def __init__(self, made: int) -> None:
        super().__init__()
        self.held = Product()
        self.made = made

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        self.walks += 1
        return super().named_modules(*args, **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.made):
            x = Product()(self.held(x))
        return x


@pytest.mark.parametrize("given", [True, False])
def test_modules_made_for_a_call_cost_one_look_a_step_and_are_not_kept(given: bool) -> None:
    walks = []
    for made in (1, 20):
        model, alone = Maker(made), list[weakref.ref[nn.Module]]()
        with audit(model if given else None, level="survey") as session:
            for _ in range(3):
                with session.step():
                    model(torch.ones(2, 2))
                    product = Product()
                    product(torch.ones(2, 2))
                alone.append(weakref.ref(product))
                del product
            assert [one() for one in alone] == [None] * 3
            walks.append(model.walks)
        assert session.ledger is not None
        modules = Counter(row["module"] for row in session.ledger.tables["computes"].to_pylist())
        assert modules == {"held": 3 * made, None: 3 * made, "Product": 3}
    assert walks[0] == walks[1] > 0
