"""A call site is the same number whether it was walked to or compared with the one expected."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from shardtoll.profiler.live.cause import callsite
from shardtoll.profiler.live.cause.callsite import CallSites, Site
from shardtoll.profiler.live.cause.frames import Stack

Ask = Callable[[Site | None], Site]


def here(sites: CallSites, expected: Site | None) -> Site:
    return sites.site(sys._getframe(1), 0, expected)


class Asks(nn.Module):
    """Asks from its forward, at one of two lines, so many calls deep."""

    def __init__(self, sites: CallSites) -> None:
        super().__init__()
        self.sites = sites

    def forward(self, expected: Site | None, deep: int, other: bool) -> Site:
        if deep:
            return self.forward(expected, deep - 1, other)
        if other:
            return here(self.sites, expected)
        return here(self.sites, expected)


@pytest.fixture
def sites() -> CallSites:
    return CallSites(Stack())


def ways(sites: CallSites) -> list[Ask]:
    """Return ways to ask that differ in module, line, depth, and in whether there is a module at all."""
    first, second = Asks(sites), Asks(sites)

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            found.append(here(sites, asked[-1]))
            return gradient

    found: list[Site] = []
    asked: list[Site | None] = []

    def in_backward(expected: Site | None) -> Site:
        asked.append(expected)
        x = torch.ones(1, requires_grad=True)
        Backward.apply(x).backward()  # type: ignore[no-untyped-call]
        # Each graph has nodes of its own.
        return (*found[-1][:2], None)

    asks: list[Ask] = [
        lambda expected: first(expected, 0, False),
        lambda expected: first(expected, 0, True),
        lambda expected: first(expected, 2, False),
        lambda expected: first(expected, 3, False),
        lambda expected: second(expected, 0, False),
        lambda expected: nn.Sequential(first)[0].forward(expected, 0, False),
        lambda expected: here(sites, expected),
        in_backward,
    ]
    return asks


def test_a_site_is_the_same_whatever_was_expected(sites: CallSites) -> None:
    asks = ways(sites)
    rounds: list[list[Site]] = []
    for expected in range(-1, len(asks)):
        # All from one line: the stack is what tells sites apart.
        rounds.append([ask(rounds[0][expected] if rounds else None) for ask in asks])
    assert len(set(rounds[0])) == len(asks)
    assert all(each == rounds[0] for each in rounds)


def test_what_is_expected_is_not_walked_again(sites: CallSites, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Asks(sites)
    found: list[Site | None] = [None]
    for _ in range(3):
        found.append(module(found[-1], 1, False))
        monkeypatch.setattr(CallSites, "_walked", None)
    assert len(set(found[1:])) == 1


def test_a_stack_that_goes_on_where_another_ends_is_another(sites: CallSites) -> None:
    found: list[Site] = []
    done = threading.Event()

    def ask(expected: Site | None) -> None:
        found.append(here(sites, expected))
        done.set()

    # Without a `Thread`, whose own frames would be on the stack.
    _thread.start_new_thread(ask, (None,))
    assert done.wait(60)
    ask(found[0])
    assert found[1] != found[0]


def test_what_a_phase_depends_on_tells_sites_outside_of_modules_apart(sites: CallSites) -> None:
    module = Asks(sites)
    found: list[Site] = []
    in_module: set[Site] = set()
    for backward_ran in (False, True) * 2:
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                expected = found[-1] if found else None
                found.append(sites.site(sys._getframe(), 0, expected, backward_ran))
                in_module.add(module(None, 0, False))
    assert len({site[0] for site in found}) == 1
    assert len(set(found)) == 4
    assert found[:4] == found[4:]
    assert len(in_module) == 1


def test_stacks_without_end_are_not_all_remembered(sites: CallSites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callsite, "_MOST", 4)
    made = [eval(f"lambda ask: {' + '.join(['0'] * n)} or ask(None)") for n in range(1, 20)]
    known = [one(lambda expected: here(sites, expected)) for one in made]
    assert len(set(known)) == len(made)
    assert len(sites._paths) <= 4
