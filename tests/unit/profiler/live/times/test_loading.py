"""Fetching from a DataLoader: noted once, on the training thread, whatever the loader does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset

from shardtoll.profiler.live.times.loading import FETCHES, STARTS, Loaded, Loading

Noted = list[tuple[int, int, str, bool, str]]


class Numbers(Dataset[int]):
    """Four numbers; the third may be missing."""

    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if self._broken and index == 2:
            raise ValueError("no such number")
        return index


class OfLoader(IterableDataset[int]):
    """What another loader gives."""

    def __iter__(self) -> Iterator[int]:
        for batch in DataLoader(Numbers()):
            yield int(batch[0])


class Clock:
    """One more at each look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def noted() -> Iterator[Noted]:
    found: Noted = []
    yield from watched(found, lambda: True)


def watched(found: Noted, is_recording: Callable[[], bool]) -> Iterator[Noted]:
    def note(begun: int, ended: int, name: str, loaded: Loaded | None, frame: FrameType) -> None:
        found.append((begun, ended, name, loaded is not None, frame.f_code.co_name))

    before = vars(DataLoader)["__iter__"]
    undo = Loading(Clock(), note, is_recording).patch()
    assert vars(DataLoader)["__iter__"] is not before
    try:
        yield found
    finally:
        undo()
    assert vars(DataLoader)["__iter__"] is before


def loop(loader: Any) -> list[int]:
    return [int(batch[0]) for batch in loader]


def test_each_batch_the_start_and_the_end_are_noted(noted: Noted) -> None:
    assert loop(DataLoader(Numbers())) == [0, 1, 2, 3]
    assert [(name, batch) for _, _, name, batch, _ in noted] == [
        (STARTS, False),
        *[(FETCHES, True)] * 4,
        (FETCHES, False),
    ]
    assert all(begun < ended for begun, ended, *_ in noted)
    assert all("loop" in who or "listcomp" in who for *_, who in noted)


def test_a_loader_within_a_loader_is_part_of_it(noted: Noted) -> None:
    assert loop(DataLoader(OfLoader(), batch_size=2)) == [0, 2]
    assert [batch for _, _, name, batch, _ in noted if name == FETCHES] == [True, True, False]


def test_an_exception_passes_and_is_no_batch(noted: Noted) -> None:
    with pytest.raises(ValueError, match="no such number"):
        loop(DataLoader(Numbers(broken=True)))
    assert [batch for *_, batch, _ in noted] == [False, True, True, False]
    loop(DataLoader(Numbers()))
    assert len(noted) == 4 + 6


def test_another_threads_loader_is_none_of_the_trainings(noted: Noted) -> None:
    thread = threading.Thread(target=loop, args=(DataLoader(Numbers()),))
    thread.start()
    thread.join()
    assert noted == []


def test_nothing_is_noted_while_nothing_is_recorded() -> None:
    found: Noted = []
    for _ in watched(found, lambda: False):
        loop(DataLoader(Numbers()))
    assert found == []
