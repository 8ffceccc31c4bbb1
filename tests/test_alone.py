"""Whether a test that is marked `alone` is."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from tests.alone import turn, turns


def held(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_one_that_wants_to_be_alone_waits_for_others_and_keeps_them_waiting(tmp_path: Path) -> None:
    order: list[str] = []
    inside = threading.Event()
    asked = threading.Event()

    def beside() -> None:
        with turn(tmp_path, alone=False):
            order.append("first begins")
            inside.set()
            asked.wait(10)
            time.sleep(0.2)
            order.append("first ends")

    def alone() -> None:
        with turn(tmp_path, alone=True):
            order.append("alone begins")
            time.sleep(0.2)
            order.append("alone ends")

    def behind() -> None:
        with turn(tmp_path, alone=False):
            order.append("last begins")

    threads = [threading.Thread(target=each) for each in (beside, alone, behind)]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    while not held(tmp_path / "gate"):
        time.sleep(0.01)
    threads[2].start()
    asked.set()
    for thread in threads:
        thread.join(10)
    assert order == ["first begins", "first ends", "alone begins", "alone ends", "last begins"]


def test_all_others_go_on_side_by_side(tmp_path: Path) -> None:
    with turn(tmp_path, alone=False), turn(tmp_path, alone=False):
        pass


def test_a_process_that_a_test_left_behind_keeps_nobody_waiting(tmp_path: Path) -> None:
    with turn(tmp_path, alone=True):
        # As a fork has it: another descriptor of the same open file.
        (mine,) = [fd for fd in os.listdir("/proc/self/fd") if opened(fd) == str(tmp_path / "road")]
        left = os.dup(int(mine))
        assert held(tmp_path / "road")
    assert not held(tmp_path / "road")
    os.close(left)


def test_tests_that_are_alone_one_after_the_other_share_a_turn(tmp_path: Path) -> None:
    road = tmp_path / "road"
    with turns(tmp_path, alone=True, alone_next=True):
        assert held(road)
    assert held(road)
    with turns(tmp_path, alone=True, alone_next=False):
        assert held(road)
    assert not held(road)


def test_a_turn_ends_with_the_last_test_even_if_that_fails(tmp_path: Path) -> None:
    with turns(tmp_path, alone=True, alone_next=True):
        pass
    with pytest.raises(ZeroDivisionError), turns(tmp_path, alone=True, alone_next=False):
        raise ZeroDivisionError
    assert not held(tmp_path / "road")
    with turns(tmp_path, alone=False, alone_next=True):
        pass
    assert not held(tmp_path / "road")


def opened(descriptor: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
