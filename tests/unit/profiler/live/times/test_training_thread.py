"""The mark by which a backward on one of autograd's threads is known as the training's."""

from __future__ import annotations

import sys

import pytest
import torch

from shardtoll.profiler.live.times import training


def test_marks_come_and_go_and_nothing_is_freed_or_kept() -> None:
    """torch 2.11 takes the reference over that it is handed: without one of its own the object would go."""
    mark = object()
    before = sys.getrefcount(mark)
    for _ in range(100):
        training._keep(mark)
        assert sys.getrefcount(mark) == before + 1
        training._keep(None)
        assert sys.getrefcount(mark) == before


def test_a_torch_that_takes_references_over_is_handed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that torch: what it is handed counts as its own, and is given back once another comes."""
    held: dict[str, int] = {}
    given: list[object] = []

    def stash(key: str, value: object) -> None:
        held[key] = id(value)

    training._takes_over.cache_clear()
    monkeypatch.setattr(torch._C, "_stash_obj_in_tls", stash)
    monkeypatch.setattr(training, "_hand_over", given.append)
    try:
        mark = object()
        training._keep(mark)
        assert given[-1] is mark
        # The probe, and what took its place.
        assert len(given) == 3
        assert held[training._KEY] == id(mark)
    finally:
        training._takes_over.cache_clear()
