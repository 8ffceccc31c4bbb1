"""Collecting ledgers through the store: who lives is waited for, who died is not, nothing is lost."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from shardtoll.profiler.live import gather
from shardtoll.profiler.live.gather import Meeting


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> list[Meeting]:
    """Three ranks of one session on a real TCP store; each has a connection of its own, as processes do."""
    limit = timedelta(seconds=20)
    served = dist.TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False, timeout=limit)
    stores = [served] + [
        dist.TCPStore("127.0.0.1", served.port, 3, is_master=False, wait_for_workers=False, timeout=limit)
        for _ in range(2)
    ]
    made = []
    for rank, store in enumerate(stores):
        monkeypatch.setattr(gather, "_default_store", lambda store=store: store)
        monkeypatch.setattr(gather, "_opened", 0)
        made.append(Meeting(rank, 3))
    return made


def alive(meeting: Meeting, pid: int, host: str | None = None) -> None:
    them = json.dumps({"host": host or socket.gethostname(), "pid": pid})
    meeting._store.set(f"alive/{meeting.rank}", them)


def test_every_rank_gets_rank_0s_run_id(meetings: list[Meeting]) -> None:
    prepared: list[int] = []
    threads = [threading.Thread(target=m.open, args=(lambda: prepared.append(1),)) for m in meetings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert prepared == [1], "only rank 0 prepares"
    assert len({m.run_id for m in meetings}) == 1


def test_ledgers_larger_than_a_chunk_arrive_whole(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_CHUNK_BYTES", 1000)
    data = bytes(range(256)) * 17
    meetings[1].hand_over(data)
    meetings[2].hand_over(b"")
    assert meetings[0].collect(5.0) == {1: data, 2: b""}


def test_a_rank_whose_process_ended_is_not_waited_for(meetings: list[Meeting]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    alive(meetings[1], gone.pid)
    meetings[2].hand_over(b"two")
    begun = time.monotonic()
    assert meetings[0].collect(60.0) == {2: b"two"}
    assert time.monotonic() - begun < 10


def test_a_rank_of_another_host_is_waited_for_until_the_limit(meetings: list[Meeting]) -> None:
    alive(meetings[1], 1, host="elsewhere")
    meetings[2].hand_over(b"two")
    begun = time.monotonic()
    assert meetings[0].collect(0.3) == {2: b"two"}
    assert time.monotonic() - begun >= 0.3


def test_a_rank_that_hands_over_and_ends_at_once_is_not_lost(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of rank 0 the others may both hand over and end."""

    def ends_now(rank: int) -> bool:
        if not meetings[0]._store.check([f"done/{rank}"]):
            meetings[rank].hand_over(b"just in time")
        return True

    monkeypatch.setattr(meetings[0], "_is_gone", ends_now)
    assert meetings[0].collect(5.0) == {1: b"just in time", 2: b"just in time"}


def test_a_store_that_went_away_is_no_error(meetings: list[Meeting], caplog: Any) -> None:
    class Gone:
        def set(self, *_: Any) -> None:
            raise RuntimeError("connection reset")

        def check(self, *_: Any) -> bool:
            raise RuntimeError("connection reset")

    meetings[1]._store = Gone()
    meetings[1].hand_over(b"x")
    meetings[0]._store = Gone()
    assert meetings[0].collect(5.0) == {}
    assert "could not hand over" in caplog.text
    assert "went away" in caplog.text


def test_without_a_process_group_there_is_nothing_to_collect() -> None:
    meeting = Meeting(0, 1)
    meeting.open(lambda: None)
    meeting.hand_over(b"x")
    assert meeting.collect(1.0) == {}
