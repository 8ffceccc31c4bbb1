"""The hook at the root of a backward: it tells of it, changes nothing, and is gone after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from shardtoll.profiler.live.times.drains import patch_backward

THROUGH = ("method", "tensor", "several", "keyword", "generator", "generator by keyword")


@contextmanager
def patched(events: list[str], *, wanted: bool = True) -> Iterator[None]:
    restore = patch_backward(lambda: wanted, lambda: events.append("begins"), lambda: events.append("ran"))
    try:
        yield
    finally:
        restore()


def gradient(events: list[str] | None = None, *, through: str = "method") -> torch.Tensor:
    torch.manual_seed(3)
    x = torch.randn(5, 4, requires_grad=True)
    loss = (x.sin() @ x.cos().T).square().mean()
    if events is not None:
        loss.register_hook(lambda _: events.append("user's"))
    if through == "method":
        loss.backward()
    elif through == "tensor":
        torch.autograd.backward(loss)
    elif through == "keyword":
        torch.autograd.backward(tensors=loss)
    elif through == "generator":
        torch.autograd.backward(each for each in (loss, x.sum() * 0))
    elif through == "generator by keyword":
        torch.autograd.backward(tensors=(each for each in (loss, x.sum() * 0)))  # type: ignore[arg-type]
    else:
        torch.autograd.backward([loss, x.sum() * 0])
    if events is not None:
        assert loss._backward_hooks is not None
        assert len(loss._backward_hooks) == 1, "only the user's hook is left"
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("through", THROUGH)
def test_a_backward_is_told_of_once_and_its_gradient_unchanged(through: str) -> None:
    plain = gradient(through=through)
    events: list[str] = []
    with patched(events):
        seen = gradient(events, through=through)
    assert torch.equal(plain, seen)
    assert sorted(events) == ["begins", "ran", "user's"]
    assert events[-1] == "ran"
    events.clear()
    gradient(events, through=through)
    assert events == ["user's"], "nothing is left when it is undone"


def test_where_nobody_waits_there_is_no_hook() -> None:
    events: list[str] = []
    with patched(events, wanted=False):
        gradient(events)
    assert events == ["user's", "ran"]


def test_exceptions_pass_and_the_hook_is_gone() -> None:
    events: list[str] = []
    x = torch.ones(3, requires_grad=True)
    loss = x.sum()

    def fails(_: torch.Tensor) -> None:
        raise KeyError("the user's own")

    x.register_hook(fails)
    with patched(events), pytest.raises(KeyError, match="the user's own"):
        loss.backward()
    assert events == ["begins", "ran"]
    assert not loss._backward_hooks


def test_a_backward_torch_refuses_is_refused_as_before() -> None:
    with patched([]):
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).backward()
        with pytest.raises(RuntimeError, match="implicitly created only for scalar"):
            torch.ones(2, requires_grad=True).mul(1).backward()


def test_undoing_leaves_a_later_patch_alone() -> None:
    original = torch.autograd.backward
    restore = patch_backward(lambda: False, lambda: None, lambda: None)
    ours = torch.autograd.backward

    def theirs(*args: object, **kwargs: object) -> None:
        ours(*args, **kwargs)  # type: ignore[arg-type]

    torch.autograd.backward = theirs
    try:
        restore()
        assert torch.autograd.backward is theirs
    finally:
        torch.autograd.backward = original
