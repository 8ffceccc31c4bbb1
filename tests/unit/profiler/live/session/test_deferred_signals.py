"""While a step is written signals wait; what C has installed for one stays installed."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtoll.profiler.live.session.signals import Deferred


@pytest.fixture
def came() -> Iterator[list[int]]:
    numbers: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_waits_for_the_end(came: list[int]):
    with Deferred():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert came == []
    assert came == [signal.SIGUSR1]


@pytest.mark.parametrize("chain", [True, False])
def test_what_faulthandler_registered_stays(came: list[int], chain: bool, tmp_path: Path):
    path = tmp_path / "stacks"
    with path.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=False, chain=chain)
        try:
            with Deferred():
                os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)
            with Deferred():
                pass
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert path.read_text().count("most recent call first") == 3
    assert len(came) == (3 if chain else 0)
