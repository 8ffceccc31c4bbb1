"""Tests that measure times have the machine for themselves: no other of the same run goes on beside them.

Processes of one run of pytest-xdist take turns by two locked files. A test that is marked `alone` waits until
those that run have ended, and keeps others from beginning; all others go on side by side. Tests that are
alone and follow each other in one process share a turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

MARK = "alone"


@contextlib.contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait for one's turn among the processes that use this folder, and have it."""
    with (folder / "gate").open("w") as gate, (folder / "road").open("w") as road:
        # Who waits for the road keeps the gate, so that those behind cannot overtake.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(road, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # To close the file would not do: what a test forked, and outlives it, has it open too.
            fcntl.flock(road, fcntl.LOCK_UN)


_kept = contextlib.ExitStack()
"""The turn of the alone test that ended last, where another one follows it in this process."""
_keeps: Final[list[Path]] = []
"""The folder of that turn, if there is one."""


@contextlib.contextmanager
def turns(folder: Path, *, alone: bool, alone_next: bool) -> Iterator[None]:
    """Have a turn, and keep it for the test that comes next in this process if both are alone.

    To begin alone, a test waits until the longest of the others has ended. A hundred tests each did so.
    """
    if not alone:
        with turn(folder, alone=False):
            yield
        return
    if folder not in _keeps:
        _kept.enter_context(turn(folder, alone=True))
        _keeps.append(folder)
    try:
        yield
    finally:
        if not alone_next:
            _keeps.clear()
            _kept.close()


@contextlib.contextmanager
def turn_of(item: pytest.Item, following: pytest.Item | None) -> Iterator[None]:
    """Wait for a test's turn where several processes share the run; elsewhere every test is alone."""
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        yield
        return
    folder = Path(tempfile.gettempdir()) / f"turns-{worker['testrunuid']}"
    folder.mkdir(exist_ok=True)
    with turns(folder, alone=is_alone(item), alone_next=following is not None and is_alone(following)):
        yield


def last(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with files that hold such a test last, all else in its order.

    In the middle of a run each of those files waits for the longest test of the others to end. At the end of
    it little is left to wait for.
    """
    files = {item.path for item in items if is_alone(item)}
    return sorted(items, key=lambda item: item.path in files)


def is_alone(item: pytest.Item) -> bool:
    """Whether a test is marked to run alone."""
    return item.get_closest_marker(MARK) is not None
