"""Collecting ledgers through the store: who lives is waited for, who died is not, nothing is lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from shardtoll.ledger import RunFolderError
from shardtoll.profiler.live.session import gather
from shardtoll.profiler.live.session.gather import Meeting


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
        made.append(Meeting(rank, 3))
    return made


@pytest.fixture
def opened(meetings: list[Meeting]) -> list[Meeting]:
    together([lambda m=m: m.open(lambda: None) for m in meetings])  # type: ignore[misc]
    for meeting in meetings:
        meeting._store.delete_key(f"alive/{meeting.rank}")
    return meetings


def together(calls: Sequence[Callable[[], object]]) -> list[BaseException | None]:
    """Make the calls on a thread each; return what each raised."""
    raised: list[BaseException | None] = [None] * len(calls)

    def call(at: int) -> None:
        try:
            calls[at]()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            raised[at] = error

    threads = [threading.Thread(target=call, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return raised


def alive(meeting: Meeting, pid: int, host: str | None = None, namespace: int | None = None) -> None:
    them = {
        "host": host or socket.gethostname(),
        "pid": pid,
        "pid_namespace": namespace or gather.pid_namespace(),
    }
    meeting._store.set(f"alive/{meeting.rank}", json.dumps(them))


def test_every_rank_gets_rank_0s_run_id(meetings: list[Meeting]) -> None:
    prepared: list[int] = []
    together([lambda m=m: m.open(lambda: prepared.append(1)) for m in meetings])  # type: ignore[misc]
    assert prepared == [1], "only rank 0 prepares"
    assert len({m.run_id for m in meetings}) == 1


def test_ledgers_larger_than_a_chunk_arrive_whole(
    opened: list[Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_CHUNK_BYTES", 1000)
    data = bytes(range(256)) * 17
    opened[1].hand_over(data)
    opened[2].hand_over(b"")
    assert opened[0].collect(5.0) == {1: data, 2: b""}


def test_a_rank_whose_process_ended_is_not_waited_for(opened: list[Meeting]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    alive(opened[1], gone.pid)
    opened[2].hand_over(b"two")
    begun = time.monotonic()
    assert opened[0].collect(60.0) == {2: b"two"}
    assert time.monotonic() - begun < 10


def test_a_rank_of_another_host_is_waited_for_until_the_limit(opened: list[Meeting]) -> None:
    alive(opened[1], 1, host="elsewhere")
    opened[2].hand_over(b"two")
    begun = time.monotonic()
    assert opened[0].collect(0.3) == {2: b"two"}
    assert time.monotonic() - begun >= 0.3


def test_a_rank_that_hands_over_and_ends_at_once_is_not_lost(
    opened: list[Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of rank 0 the others may both hand over and end."""
    for rank in (1, 2):
        alive(opened[rank], os.getpid())

    def ends_now(rank: int) -> bool:
        if not opened[0]._store.check([f"done/{rank}"]):
            opened[rank].hand_over(b"just in time")
        return True

    monkeypatch.setattr(opened[0], "_is_gone", ends_now)
    assert opened[0].collect(5.0) == {1: b"just in time", 2: b"just in time"}


def test_a_store_that_went_away_is_no_error(opened: list[Meeting], caplog: Any) -> None:
    class Gone:
        def set(self, *_: Any) -> None:
            raise RuntimeError("connection reset")

        def check(self, *_: Any) -> bool:
            raise RuntimeError("connection reset")

    opened[1]._store = Gone()
    opened[1].hand_over(b"x")
    opened[0]._store = Gone()
    assert opened[0].collect(5.0) == {}
    assert "could not hand over" in caplog.text
    assert "went away" in caplog.text


def test_without_a_process_group_there_is_nothing_to_collect() -> None:
    meeting = Meeting(0, 1)
    meeting.open(lambda: None)
    meeting.hand_over(b"x")
    assert meeting.collect(1.0) == {}


def test_a_process_of_another_pid_namespace_is_not_taken_for_dead(opened: list[Meeting]) -> None:
    """Two containers of one host may share its name, but not its process numbers."""
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    alive(opened[1], gone.pid)
    assert opened[0]._is_gone(1)
    alive(opened[1], gone.pid, namespace=1)
    assert not opened[0]._is_gone(1)


@pytest.mark.parametrize("failing", [(0,), (2,), (1, 2)])
def test_a_rank_that_cannot_write_is_everybodys_error(
    meetings: list[Meeting], failing: tuple[int, ...]
) -> None:
    def opens(meeting: Meeting) -> None:
        meeting.open(lambda: None)
        with meeting.telling_others():
            if meeting.rank in failing:
                raise RunFolderError("run folder /x cannot be written (No space left)", "name another")
        meeting.start_together()

    begun = time.monotonic()
    raised = together([lambda m=m: opens(m) for m in meetings])  # type: ignore[misc]
    assert time.monotonic() - begun < 5
    line = f"rank {failing[0]}: run folder /x cannot be written (No space left): name another"
    assert [(type(error), str(error)) for error in raised] == [(RunFolderError, line)] * 3


def test_a_folder_that_rank_0_cannot_clear_is_everybodys_error(meetings: list[Meeting]) -> None:
    def clear() -> None:
        raise PermissionError(13, "Permission denied")

    def opens(meeting: Meeting) -> None:
        meeting.open(clear)
        meeting.start_together()

    raised = together([lambda m=m: opens(m) for m in meetings])  # type: ignore[misc]
    assert {type(error) for error in raised} == {RunFolderError}
    assert len({str(error) for error in raised}) == 1
    assert "Permission denied" in str(raised[1])


def again(meetings: list[Meeting]) -> list[Meeting]:
    """The next session of the same ranks."""
    made = [Meeting(m.rank, 3) for m in meetings]
    for new, old in zip(made, meetings, strict=True):
        new._base = old._base
    return made


def joined(meetings: list[Meeting]) -> bool:
    """Whether these ranks, each opening a session now, meet in one."""
    raised = together([lambda m=m: m.open(lambda: None) for m in meetings])  # type: ignore[misc]
    assert raised == [None] * len(meetings)
    return len({m.run_id for m in meetings}) == 1


def test_a_session_of_one_rank_alone_moves_no_later_one(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(gather, "_OPENING_LIMIT_S", 0.3)
    again(meetings)[1].open(lambda: None)
    assert "rank 0 opened no session; rank 1 keeps its records to itself" in caplog.text
    monkeypatch.setattr(gather, "_OPENING_LIMIT_S", 20.0)
    caplog.clear()
    assert joined(meetings)
    assert "Rank 1 opened 1 that rank 0 did not, and missed 0 of rank 0's" in caplog.text
    assert len(caplog.records) == 1
    assert joined(again(meetings))
    assert len(caplog.records) == 1, "it is said once"


def test_a_session_of_rank_0_alone_moves_no_later_one(meetings: list[Meeting], caplog: Any) -> None:
    alone = again(meetings)[0]
    alone.open(lambda: None)
    alone.collect(0.0)
    assert joined(meetings)
    for rank in (1, 2):
        assert f"Rank {rank} opened 0 that rank 0 did not, and missed 1 of rank 0's" in caplog.text


def test_ranks_that_announced_no_session_are_not_waited_for(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    lone = meetings[0]
    lone.open(lambda: None)
    waited: list[float] = []
    wait = lone._wait_for
    monkeypatch.setattr(lone, "_wait_for", lambda what, limit_s: waited.append(limit_s) or wait(what, 0.01))
    lone.start_together()
    assert waited == [gather._ALONE_S]
    assert "no rank but 0 has opened a session" in caplog.text

    def sleeps(_: float) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr(gather.time, "sleep", sleeps)
    assert lone.collect(60.0) == {}


def test_a_rank_that_announced_its_session_is_waited_for(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    together([lambda m=m: m.open(lambda: None) for m in meetings[:2]])  # type: ignore[misc]
    lone, waited = meetings[0], []
    wait = lone._wait_for
    monkeypatch.setattr(lone, "_wait_for", lambda what, limit_s: waited.append(limit_s) or wait(what, 0.01))
    lone.start_together()
    assert waited == [gather._ALONE_S, gather._PATIENCE_S, gather._LEFT_OUT_S]
    assert "no session on rank 1, 2, which is left out" in caplog.text


def test_a_rank_waits_no_longer_for_the_session_of_its_folder_that_rank_0_has_closed(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(gather, "_MISSED_S", 0.0)
    for meeting in meetings:
        meeting._out = "runs/a"
    lone = again(meetings)[0]
    lone._out = "runs/a"
    lone.open(lambda: None)
    lone.collect(0.0)
    begun = time.monotonic()
    meetings[1].open(lambda: None)
    assert time.monotonic() - begun < gather._OPENING_LIMIT_S / 2
    assert (
        "rank 0 has closed its session of this run already; rank 1 keeps its records to itself" in caplog.text
    )
    caplog.clear()
    monkeypatch.setattr(gather, "_OPENING_LIMIT_S", 0.3)
    meetings[2]._out = "runs/b"
    meetings[2].open(lambda: None)
    assert "rank 0 opened no session" in caplog.text, "of another folder it cannot tell"


def test_without_a_folder_rank_0_may_open_a_next_session(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_MISSED_S", 0.0)
    monkeypatch.setattr(gather, "_LOOK_S", 0.01)
    lone = again(meetings)[0]
    lone.open(lambda: None)
    lone.collect(0.0)

    def opens_later() -> None:
        time.sleep(0.3)
        meetings[0].open(lambda: None)

    together([opens_later, *(lambda m=m: m.open(lambda: None) for m in meetings[1:])])  # type: ignore[misc]
    assert len({meeting.run_id for meeting in meetings}) == 1


def test_a_rank_does_not_wait_for_rank_0_whose_process_has_ended(
    meetings: list[Meeting], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(gather, "_LOOK_S", 0.01)
    lone = meetings[0]
    lone.open(lambda: None)
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    alive(lone, gone.pid)
    lone.collect(0.0)
    begun = time.monotonic()
    meetings[1].open(lambda: None)
    assert time.monotonic() - begun < gather._OPENING_LIMIT_S / 2
    assert "rank 0 has ended; rank 1 keeps its records to itself" in caplog.text


def test_the_store_keeps_keys_of_the_last_sessions_only(meetings: list[Meeting]) -> None:
    keys = []
    for _ in range(6):
        meetings = again(meetings)
        assert joined(meetings)
        together([lambda m=m: m.start_together() for m in meetings])  # type: ignore[misc]
        for meeting in meetings[1:]:
            meeting.hand_over(b"data")
        assert meetings[0].collect(5.0) == {1: b"data", 2: b"data"}
        keys.append(meetings[0]._base.num_keys())
    assert len(set(keys[2:])) == 1


def test_a_rank_that_is_left_out_puts_nothing_into_the_store(meetings: list[Meeting]) -> None:
    assert joined(meetings)
    meetings[0].collect(0.0)
    before = meetings[0]._base.num_keys()
    meetings[1].hand_over(b"too late")
    assert meetings[0]._base.num_keys() == before
