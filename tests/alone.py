"""Tests that measure times have the machine for themselves: no other of the same run goes on beside them.

Processes of one run of pytest-xdist take turns by two locked files. A test that is marked `alone` waits until
those that run have ended, and keeps others from beginning; all others go on side by side.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


@contextlib.contextmanager
def turn_of(item: pytest.Item) -> Iterator[None]:
    """Wait for a test's turn where several processes share the run; elsewhere every test is alone."""
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        yield
        return
    folder = Path(tempfile.gettempdir()) / f"turns-{worker['testrunuid']}"
    folder.mkdir(exist_ok=True)
    with turn(folder, alone=item.get_closest_marker(MARK) is not None):
        yield
