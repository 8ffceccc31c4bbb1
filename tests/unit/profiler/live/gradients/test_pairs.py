"""Names of wrapped models are found again in the reference; what cannot be compared is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.cause.module_names import clean_name
from shardtoll.profiler.live.gradients.gradient_held import cut, index_of
from shardtoll.profiler.live.gradients.pairs import (
    Holding,
    Pair,
    hold,
    hold_buffers,
    join,
    listed,
    modes,
    reference_parameters,
    ties_of,
)
from shardtoll.profiler.live.gradients.shards import Partition


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


def said(**names: str) -> list[Holding]:
    """A rank that holds the named [2, 2] parameters; a value is the first name of the same tensor."""
    return [Holding(n, n, alike, (), (2, 2), torch.float32, True) for n, alike in names.items()]


def joined(*ranks: list[Holding], ties: str) -> dict[str, tuple[list[int], int, str | None]]:
    """By pair: who holds it, how many tensors of the reference it is, and what it should be tied to.

    `ties` gives the reference's tensors by letter: "aab" are three names, x and y of one tensor.
    """
    other = dict(zip("xyz", (torch.zeros(2, 2) for _ in ties), strict=False))
    first = {name: "xyz"[ties.index(letter)] for name, letter in zip(other, ties, strict=True)}
    pairs = join(ranks, {name: other[first[name]] for name in other}, first, {})
    return {pair.name: (pair.holders, len(pair.references), pair.tied_to) for pair in pairs}


def test_ranks_that_hold_different_parameters_are_joined() -> None:
    assert joined(said(x="x"), said(y="y", z="z"), ties="abc") == {
        "x": ([0], 1, None),
        "y": ([1], 1, None),
        "z": ([1], 1, None),
    }


def test_ends_that_the_reference_ties_are_one_parameter_of_two_stages() -> None:
    assert joined(said(x="x"), said(y="y"), ties="aa") == {"x": ([0, 1], 1, None)}


def test_two_tensors_of_one_rank_stay_two_though_the_reference_ties_them() -> None:
    assert joined(said(x="x", y="y"), said(x="x", y="y"), ties="aa") == {
        "x": ([0, 1], 1, "y"),
        "y": ([0, 1], 1, "x"),
    }


def test_one_tensor_of_the_model_adds_up_two_of_the_reference() -> None:
    both = said(x="x", y="x")
    assert joined(both, both, ties="ab") == {"x": ([0, 1], 2, None)}
    # A rank that has two tensors there objects: then nobody's are one.
    assert joined(both, said(x="x", y="y"), ties="ab") == {"x": ([0, 1], 1, None), "y": ([0, 1], 1, None)}


def test_a_parameter_that_nobody_holds_is_missed() -> None:
    with pytest.raises(UsageError, match="the model has no parameter z"):
        joined(said(x="x"), said(y="y"), ties="abc")


def test_a_tied_name_need_not_be_held_twice() -> None:
    assert joined(said(x="x"), ties="aa") == {"x": ([0], 1, None)}


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ([(), (), (), ()], 2),
        ([(0,), (0,), (1,), (1,)], 2),
        ([(0,), (1,), (0,), (1,)], 0),
        ([(), (), None, None], 2),
        ([(), None, (), None], 0),
        ([(), None, None, None], 0),
        ([None, None, None, None], 0),
    ],
)
def test_a_group_is_added_up_where_its_holders_have_one_slice(keys: list[Any], count: int) -> None:
    pairs_of_ranks = Partition("pairs", None, None, ((0, 1), (0, 1), (2, 3), (2, 3)))
    assert pairs_of_ranks.holders(keys) == count


def test_ranks_without_it_stand_aside_only_of_a_whole_one() -> None:
    world = Partition("all ranks", None, None, ((0, 1, 2, 3),) * 4)
    assert world.holders([(), None, None, ()]) == 2
    assert world.holders([(0, 4), None, None, (0, 4)]) == 0


def test_slices_are_counted_from_the_front() -> None:
    assert index_of((slice(2, 4),), (8, 3)) == ((2, 4),)
    assert index_of((slice(None), slice(-2, None)), (8, 3)) == ((0, 8), (1, 3))
    whole = torch.arange(12).reshape(4, 3)
    assert torch.equal(cut(whole, ((1, 3), (0, 2))), whole[1:3, :2])


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
