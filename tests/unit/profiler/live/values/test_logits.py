"""Which gathers are of logits for a cross entropy: by memory, through a copy in another dtype, by frames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place
from shardtoll.profiler.live.values.fingerprint import Fingerprints
from shardtoll.profiler.live.values.results import Results

TOKENS, CLASSES = 6, 8
LABELS = torch.arange(TOKENS)


class Watching(TorchDispatchMode):
    """Tells `results` of every operator, as the survey does."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        self.results = results

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        hits = self.results.touched(func, args, kwargs)
        result = func(*args, **kwargs or {})
        if func is torch.ops.aten._log_softmax.default:
            self.results.logits.read(args, sys._getframe(1))
        if hits:
            self.results.ran(func, hits, result, args)
        return result


def classes_read(
    use: Callable[[list[torch.Tensor]], object], dtype: torch.dtype = torch.float32
) -> int | None:
    """Gather two parts of the logits, 4 of 8 classes each, and use them."""
    message = Message("all_gather", "g", 2, "float32", TOKENS * CLASSES * 4, group_rank=1)
    pending = PendingCollective(message, Place("forward"), 0)
    parts = [torch.randn(TOKENS, CLASSES // 2).to(dtype) for _ in range(2)]
    results = Results(Fingerprints())
    results.follow(pending, parts)
    with Watching(results):
        use(parts)
    parts.clear()
    results.finish(unseen_reads=False)
    return pending.surveyed.loss_classes if pending.surveyed else None


def whole(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts, -1)


def test_a_cross_entropy_of_all_classes() -> None:
    assert classes_read(lambda parts: F.cross_entropy(whole(parts), LABELS)) == CLASSES


def test_through_views() -> None:
    def use(parts: list[torch.Tensor]) -> None:
        F.cross_entropy(whole(parts).view(2, 3, CLASSES).flatten(0, 1), LABELS, ignore_index=3)

    assert classes_read(use) == CLASSES


def test_through_a_copy_in_another_dtype() -> None:
    assert (
        classes_read(lambda parts: F.cross_entropy(whole(parts).float(), LABELS), torch.bfloat16) == CLASSES
    )


SILENT = {
    "labels are smoothed": lambda parts: F.cross_entropy(whole(parts), LABELS, label_smoothing=0.1),
    "probabilities": lambda parts: F.cross_entropy(whole(parts), torch.ones(TOKENS, CLASSES)),
    "no cross entropy": lambda parts: F.log_softmax(whole(parts), -1),
    "over the tokens": lambda parts: F.cross_entropy(
        whole(parts).t().contiguous(), torch.arange(CLASSES) % 6
    ),
    "tokens are gathered": lambda parts: F.cross_entropy(torch.cat(parts, 0), torch.zeros(12).long()),
    "some tokens": lambda parts: F.cross_entropy(whole(parts)[1:], LABELS[1:]),
    "made of it": lambda parts: F.cross_entropy(whole(parts) * 2, LABELS),
    "never used": whole,
}


@pytest.mark.parametrize("name", SILENT)
def test_other_uses_are_not_told(name: str) -> None:
    assert classes_read(SILENT[name]) is None


def loss_and(
    also: Callable[[torch.Tensor], object], *, first: bool
) -> Callable[[list[torch.Tensor]], object]:
    def use(parts: list[torch.Tensor]) -> None:
        logits = whole(parts)
        if first:
            also(logits)
        F.cross_entropy(logits, LABELS)
        if not first:
            also(logits)

    return use


OTHERS = {
    "an accuracy": lambda logits: logits.argmax(-1),
    "a penalty": lambda logits: logits.logsumexp(-1),
    "a copy": lambda logits: logits.detach().clone(),
    "a view of it": lambda logits: logits[:2].detach().sum(),
    "a list": lambda logits: torch.cat([logits, logits]),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_what_something_else_reads_too_is_needed_whole(name: str, first: bool) -> None:
    assert classes_read(loss_and(OTHERS[name], first=first)) is None


def test_what_is_read_before_a_copy_in_another_dtype_is_needed_too() -> None:
    def use(parts: list[torch.Tensor]) -> None:
        logits = whole(parts)
        F.cross_entropy(logits.float(), LABELS)
        logits.argmax(-1)

    assert classes_read(use, torch.bfloat16) is None


@pytest.mark.parametrize("first", [False, True])
def test_asking_for_its_shape_or_its_gradient_reads_nothing(first: bool) -> None:
    def ask(logits: torch.Tensor) -> None:
        logits.shape, logits.detach().view(-1), logits.requires_grad

    assert classes_read(loss_and(ask, first=first)) == CLASSES


def test_memory_that_is_used_again_is_no_gather_any_more() -> None:
    def use(parts: list[torch.Tensor]) -> None:
        whole(parts)
        for _ in range(8):
            F.cross_entropy(torch.randn(TOKENS, CLASSES), LABELS)

    assert classes_read(use) is None
