"""Names of wrapped models are found again in the reference; what cannot be compared is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.gradient_pairs import (
    Pair,
    hold,
    hold_buffers,
    join,
    listed,
    modes,
    reference_parameters,
    ties_of,
)
from shardtoll.profiler.live.names import clean_name


class Net(nn.Module):
    """Has a submodule that is called `module` without being a wrapper's."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)


NAMES = ["module.weight", "module.bias", "norm.weight", "norm.bias"]


def pair_parameters(model: nn.Module, reference: nn.Module) -> list[Pair]:
    """The parameters of one rank that holds all of them."""
    other = reference_parameters(reference)
    mine, said = hold([model], other, None)
    return join([said], other, ties_of(other), mine)


def names_of(model: nn.Module, reference: nn.Module) -> list[str]:
    pairs = pair_parameters(model, reference)
    for pair in pairs:
        assert pair.references == (reference.get_parameter(pair.name),)
    return [pair.name for pair in pairs]


def test_an_unwrapped_model_keeps_its_names() -> None:
    assert names_of(Net(), Net()) == NAMES


def test_wrappers_leave_no_trace_in_names() -> None:
    model = Net()
    model.module = checkpoint_wrapper(model.module)
    compiled = torch.compile(model, backend="eager")
    assert names_of(compiled, Net()) == NAMES
    assert names_of(nn.DataParallel(compiled), Net()) == NAMES
    wrapped = nn.DataParallel(compiled)
    assert clean_name(wrapped, "module._orig_mod.module._checkpoint_wrapped_module.weight") == "module.weight"


def test_a_wrapper_nobody_knows_is_seen_through() -> None:
    class Engine(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = nn.Sequential(nn.Linear(2, 2))
    reference = copy.deepcopy(model)
    pairs = pair_parameters(Engine(model), reference)
    assert [pair.name for pair in pairs] == ["0.weight", "0.bias"]
    assert pairs[0].held is not None
    assert pairs[0].held.weight is model[0].weight


def test_modes_are_by_clean_name() -> None:
    model = nn.DataParallel(Net())
    model.module.norm.eval()
    assert modes([model]) == {"": True, "module": True, "norm": False}


def test_tied_weights_are_one_pair() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.two.weight = self.one.weight

    (pair,) = pair_parameters(Tied(), Tied())
    assert (pair.name, pair.tied_to) == ("one.weight", None)
    broken = Tied()
    broken.two.weight = nn.Parameter(torch.zeros(2, 2))
    pairs = pair_parameters(broken, Tied())
    assert [(pair.name, pair.tied_to) for pair in pairs] == [
        ("one.weight", "two.weight"),
        ("two.weight", "one.weight"),
    ]


def test_buffers_of_one_side_only_are_left_alone() -> None:
    model, reference = Net(), Net()
    model.register_buffer("cache", torch.zeros(3))
    assert list(hold_buffers([model], reference, None)) == [
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    reference.register_buffer("cache", torch.zeros(4))
    with pytest.raises(UsageError, match=r"buffer cache has shape \(3,\) in the model and \(4,\)"):
        hold_buffers([model], reference, None)


def test_views_of_the_model_are_refused() -> None:
    model = nn.Linear(2, 2)
    reference = nn.Linear(2, 2)
    reference.weight = nn.Parameter(model.weight.detach())
    with pytest.raises(UsageError, match="model and reference share parameter weight"):
        pair_parameters(model, reference)


def test_long_lists_are_counted() -> None:
    assert listed("abcd") == "a, b, c, d"
    assert listed("abcdef") == "a, b, c, d and 2 more"
