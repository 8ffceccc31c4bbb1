"""A flight file that cannot be made or written for a while: nothing is left behind, and nothing stops."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from shardtoll.ledger.disk import flight_memory
from shardtoll.ledger.disk.flight_file import read_flight
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.flight.flight import Flight
from shardtoll.profiler.live.flight.image import Image
from shardtoll.profiler.live.flight.watchdog import Watchdog


def opened(folder: Path) -> Flight:
    flight = Flight(Groups("cpu"), 0)
    flight.open(folder, 1, "run", hang_after_s=None, beat_s=0.05)
    return flight


def mine() -> set[str]:
    """Names of this process's memory."""
    try:
        return {name for name in os.listdir(flight_memory.FOLDER) if f"-{os.getpid()}-" in name}
    except FileNotFoundError:
        return set()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_file_that_is_not_made_leaves_no_memory(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    before = mine()
    for owner, name in ((Groups, "sequence_numbers"), (Image, "_make")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails)
            with pytest.raises(error):
                opened(tmp_path)
        assert mine() == before


def test_a_disk_that_has_room_again_gets_all_that_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    flight = opened(tmp_path)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Image, "_put", full)
            flight.stands_at({"line": "train.py:3 (step)"})
            flight.begin(7, 1)
            flight.write()
            assert flight.lost is not None
        whole = flight._data
        assert read_flight(tmp_path, 0).step == 7, "the memory has it"
        path = tmp_path / "flight.rank00000.bin"
        assert path.read_bytes() != bytes(whole)
        flight.write(repair=True)
        assert flight.lost is None
        assert path.read_bytes() == bytes(whole)
    finally:
        flight.end("closed")


def test_a_look_that_fails_does_not_end_the_writing(tmp_path: Path) -> None:
    def fails(_: FrameType) -> str | None:
        raise KeyError("gone")

    flight = opened(tmp_path)
    watchdog = Watchdog(flight, tmp_path, 0.05, fails)
    watchdog.start()
    try:
        seen = set()
        deadline = time.monotonic() + 30
        while len(seen) < 12 and time.monotonic() < deadline:
            seen.add(flight._beat_ns)
            time.sleep(0.02)
        assert len(seen) >= 12, "it looks at the fourth beat, and goes on"
    finally:
        watchdog.stop()
        flight.end("closed")
