"""Names of parameters: whose values, or whose gradient's, a tensor's are."""

from __future__ import annotations

import torch
from torch import nn

from shardtoll.profiler.live.names import Names


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
