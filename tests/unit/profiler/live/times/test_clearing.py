"""Which backwards began with cleared gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shardtoll.profiler.live.cause.module_names import Names
from shardtoll.profiler.live.times.clearing import Clearing, patch_clearing


def backwards(clear, times=3):
    """Return how many of some backwards began with cleared gradients, as counted."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    clearing = Clearing(Names(model))
    undo = patch_clearing(clearing.backward_begins, clearing.backward_ended)
    try:
        for _ in range(times):
            model(torch.ones(1, 2)).sum().backward()
            clear(model, clearing)
    finally:
        undo()
    return clearing.begun


def one_by_hand(model, _):
    model[0].weight.grad = None


def one_in_place(model, clearing):
    model[0].weight.grad.zero_()
    clearing.zeroed(model[0].weight.grad)


def first_rows(model, clearing):
    for parameter in model.parameters():
        parameter.grad[:1].zero_()
        clearing.zeroed(parameter.grad[:1])


def both_ways(model, clearing):
    model[0].zero_grad()
    for parameter in model[1].parameters():
        parameter.grad.zero_()
        clearing.zeroed(parameter.grad)


def in_place(model, clearing):
    gradients = [parameter.grad for parameter in model.parameters()]
    torch._foreach_zero_(gradients)
    clearing.zeroed(gradients)


def another(_, clearing):
    clearing.zeroed(torch.zeros(3))


@pytest.mark.parametrize(
    ("clear", "cleared"),
    [
        (lambda model, _: None, 0),
        (lambda model, _: model.zero_grad(), 2),
        (one_by_hand, 0),
        (one_in_place, 0),
        (first_rows, 0),
        (both_ways, 2),
        (in_place, 2),
        (another, 0),
    ],
    ids=[
        *("added up", "zero_grad", "one by hand", "one in place", "first rows", "both ways", "in place"),
        "another tensor",
    ],
)
def test_all_but_the_first_began_with_what_was_left(clear, cleared):
    assert backwards(clear) == cleared


def test_gradients_that_are_never_left_tell_nothing():
    # As where FSDP2 or a hook keeps them elsewhere: they were gone when the backward ended.
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
    clearing = Clearing(Names(model))
    for _ in range(2):
        clearing.backward_begins()
        model(torch.ones(1, 2)).sum().backward()
        clearing.backward_ended()
    assert clearing.begun == 0


def test_backward_is_torchs_own_again():
    before = torch.autograd.backward
    undo = patch_clearing(lambda: None, lambda: None)
    assert torch.autograd.backward is not before
    undo()
    assert torch.autograd.backward is before


def test_parameters_can_be_swapped_after_a_surveyed_backward():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    clearing = Clearing(Names(model))
    model(torch.ones(1, 2)).sum().backward()
    clearing.backward_ended()
    # As torch does it where tensors are subclasses, DTensors among them: none may have a weak reference.
    for parameter in model.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))
    model.zero_grad()
    clearing.backward_begins()
    assert clearing.begun == 1
