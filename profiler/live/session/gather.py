"""Bringing the ranks' ledgers to rank 0 without a collective, and without waiting for the dead.

Everything goes through the store that torch.distributed already keeps for its own set-up. No group is made,
and no device or transport is touched. A rank that died keeps nobody waiting: the others hand over their
ledger and go on. Rank 0 waits for those that still live, and at most for a time limit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from shardtoll.ledger.disk.processes import is_running, pid_namespace
from shardtoll.ledger.records.errors import RunFolderError, ShardtollError, UsageError, first_line
from shardtoll.profiler.live.cause.backends import backend_of

log = logging.getLogger("shardtoll")

_CHUNK_BYTES: Final = 4 << 20
"""torch's TCP store refuses values above 8 MiB."""
_POLL_S: Final = 0.02
_OPENING_LIMIT_S: Final = 60.0
_GRACE_S: Final = 1.0
"""Within this time a message that a rank sent before it ended has arrived."""
_ALONE_S: Final = 2.0
"""If no other rank has announced a session by then, rank 0 begins: it may be the only one. A rank announces
itself as the first thing that it does when it opens one, long before it is ready."""
_LEFT_OUT_S: Final = 3.0
"""Then the session begins without them. A rank without a session waits in its first collective meanwhile, and
one that opens later still joins."""
_PATIENCE_S: Final = 3.0
"""After this long a message names the ranks that are waited for."""
_FAREWELL_S: Final = 2.0
"""A rank that could not open stays this long at most, so that the others hear of it."""
_LOOK_S: Final = 1.0
"""How often a rank that waits for rank 0's session looks whether one can still come."""
_MISSED_S: Final = 3.0
"""A rank waits this long if rank 0 has closed a session in the same folder: another one there is unlikely."""
_OF_RANK: Final = ("alive", "open", "told", "done")
"""Keys that each rank of a session has in the store."""
_LED: Final = "led"
"""Key of the number of sessions that rank 0 has opened."""


def _default_store() -> Any | None:
    get = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get is None or not dist.is_initialized() or backend_of() == "fake":
        return None
    return get()


class Meeting:
    """One session's place in the store: who is there, which run it is, and what each rank hands over.

    Rank 0 leads: its sessions are numbered in the store. Any other rank joins the one that rank 0 has open,
    or opens next. A session that a rank opened without rank 0 therefore moves no later one.
    """

    def __init__(self, rank: int, world_size: int, out: str = "") -> None:
        """`out`: the run folder, empty if nobody asked to keep it."""
        self.rank = rank
        self.world_size = world_size
        self._out = out
        self.run_id = uuid.uuid4().hex
        self._base: Any = self._prefixed("shardtoll", _default_store())
        self._store: Any = None
        """The keys of this session; None if there is nobody to meet."""
        self._number = 0

    @staticmethod
    def _prefixed(prefix: str, store: Any) -> Any:
        make: Any = torch._C._distributed_c10d.PrefixStore if store is not None else None
        return None if store is None else make(prefix, store)

    def _enter(self, number: int, last: int) -> None:
        """Take part in rank 0's session of this number; `last` is the one that this rank was in before."""
        self._number = number
        self._store = self._prefixed(str(number), self._base)
        self._forget_old(number, last)
        me = {"host": socket.gethostname(), "pid": os.getpid(), "pid_namespace": pid_namespace()}
        self._store.set(f"alive/{self.rank}", json.dumps(me))

    def _forget_old(self, number: int, last: int) -> None:
        """Remove this rank's keys of sessions before the last one, which nobody looks at any more.

        A store lives as long as the job, and its server is mostly rank 0.
        """
        old = {last - 1, number - 2, min(last, number - 2)}
        keys = [f"{what}/{self.rank}" for what in _OF_RANK]
        if self.rank == 0:
            keys += ["run", "closed"]
        # Some stores cannot remove a key.
        with suppress(RuntimeError):
            for session in sorted(old):
                for key in keys if session > 0 else ():
                    self._base.delete_key(f"{session}/{key}")

    def open(self, prepare: Callable[[], None]) -> None:
        """Agree on the run's id. Rank 0 runs `prepare` before any other rank goes on.

        A rank that finds no rank 0 within the limit goes on with an id of its own. Raises what every rank
        raises if `prepare` fails.
        """
        if self._base is None:
            prepare()
            return
        if self.rank == 0:
            number = int(self._base.add(_LED, 1))
            self._enter(number, number - 1)
            with self.telling_others():
                prepare()
            self._store.set("run", self.run_id)
        else:
            self._follow()

    def _follow(self) -> None:
        """Take the run's id from rank 0, whose session may have to come first."""
        joined, alone = f"joined/{self.rank}", f"alone/{self.rank}"
        try:
            last = int(self._base.add(joined, 0))
            number = self._led(last + 1)
            self._enter(number, last)
            self.run_id = self._store.get("run").decode()
            self._base.add(joined, number - last)
            lone = int(self._base.add(alone, 0))
            self._base.add(alone, -lone)
        except RuntimeError as error:
            self._store = None
            why = str(error) if isinstance(error, _NoneComes) else "rank 0 opened no session"
            log.warning("shardtoll: %s; rank %d keeps its records to itself", why, self.rank)
            with suppress(RuntimeError):
                self._base.add(alone, 1)
            return
        if lone or number > last + 1:
            log.warning(
                "shardtoll: open each session on every rank. Rank %d opened %d that rank 0 did not, "
                "and missed %d of rank 0's",
                self.rank,
                lone,
                number - last - 1,
            )

    def _led(self, number: int) -> int:
        """Return the number of the session that rank 0 has open, this one or a later one; waits for it.

        Raises RuntimeError if none comes within the limit. Also if rank 0 has ended, or has been through the
        session of this folder.
        """
        deadline_s, missed, look_s = time.monotonic() + _OPENING_LIMIT_S, False, _LOOK_S
        while True:
            newest = int(self._base.add(_LED, 0))
            # Nothing is left of a session that rank 0 went through some time ago.
            number = max(number, newest)
            if self._base.check([f"{number}/closed"]):
                # Rank 0 went through this one without us.
                # A job may open any number of sessions without a folder.
                if self._out and not missed and self._word(f"{number}/closed") == self._out:
                    missed, deadline_s = True, min(deadline_s, time.monotonic() + _MISSED_S)
                number += 1
            # In the store, not in a loop: ranks should start together.
            came = self._comes(f"{number}/run", min(look_s, deadline_s - time.monotonic()))
            if came and int(self._base.add(_LED, 0)) == number and not self._base.check([f"{number}/closed"]):
                return number
            if came:
                continue
            # Torch's store writes two lines to the job's log for each wait that fails.
            look_s *= 2
            if newest and self._has_ended(self._prefixed(str(newest), self._base), 0):
                raise _NoneComes("rank 0 has ended")
            if time.monotonic() >= deadline_s:
                raise _NoneComes(
                    "rank 0 has closed its session of this run already"
                    if missed
                    else "rank 0 opened no session"
                )

    def _word(self, key: str) -> str | None:
        """Return what a key says; None if it is gone by now, for which `get` alone would wait."""
        return self._base.get(key).decode() if self._comes(key, _LOOK_S) else None

    def _comes(self, key: str, limit_s: float) -> bool:
        """Whether there is such a key within the limit."""
        with suppress(RuntimeError):
            self._base.wait([key], timedelta(seconds=max(limit_s, 0.01)))
            return True
        return bool(self._base.check([key]))

    @contextmanager
    def telling_others(self) -> Iterator[None]:
        """Let no rank wait for one that fails in here: all raise the same error, in one line.

        The error names the lowest rank that failed. Raises RunFolderError if it is one, else UsageError.
        """
        try:
            yield
        except (ShardtollError, OSError) as error:
            failure = _told(error)
            if self._store is not None and self.world_size > 1:
                with suppress(RuntimeError):
                    self._store.set(f"open/{self.rank}", json.dumps(failure))
                    # The message that the others wait for comes at once, and then they look.
                    self._store.set("run", self.run_id)
                    self._wait_for("open", _FAREWELL_S)
                    self._raise_failures(error)
            raise _kind(failure)(failure["message"], failure["hint"]) from error

    def start_together(self) -> None:
        """Wait, within the limit, until every rank's session is open.

        Without this the first step would measure who opened its session last. Only sessions that rank
        0 leads wait; a rank that cannot be reached delays the others by the limit at most, once. Raises
        the error of a rank that could not open its session.
        """
        if self._store is None:
            return
        try:
            self._store.set(f"open/{self.rank}", "{}")
        except RuntimeError as error:
            log.warning("shardtoll: rank %d cannot reach the others: %s", self.rank, error)
            return
        if self._wait_for("open", min(_ALONE_S, _PATIENCE_S)) and self._is_alone():
            self._raise_failures(None)
            log.warning("shardtoll: no rank but 0 has opened a session; those that still do so join it")
            return
        for limit_s, then in ((_PATIENCE_S, "is waited for"), (_LEFT_OUT_S, "is left out")):
            missing = self._wait_for("open", limit_s)
            self._raise_failures(None)
            if not missing:
                return
            if self.rank == 0:
                log.warning("shardtoll: no session on rank %s, which %s", ", ".join(map(str, missing)), then)

    def _is_alone(self) -> bool:
        """Whether no other rank has announced a session."""
        return not any(self._announced(rank) for rank in range(self.world_size) if rank != self.rank)

    def _announced(self, rank: int) -> bool:
        return bool(self._store.check([f"alive/{rank}"]))

    def _wait_for(self, what: str, limit_s: float) -> list[int]:
        """Wait until every rank has set its key of this name; return those that have not."""
        ranks = range(self.world_size)
        try:
            self._store.wait([f"{what}/{rank}" for rank in ranks], timedelta(seconds=limit_s))
        except RuntimeError:
            return [rank for rank in ranks if not self._store.check([f"{what}/{rank}"])]
        return []

    def _raise_failures(self, cause: Exception | None) -> None:
        """Raise the error of the lowest rank that could not open its session, if there is one."""
        for rank in range(self.world_size):
            if not self._store.check([f"open/{rank}"]):
                continue
            failure = json.loads(self._store.get(f"open/{rank}"))
            if failure:
                self._store.set(f"told/{self.rank}", "1")
                if self.rank == 0:
                    self._wait_for("told", _FAREWELL_S)
                raise _kind(failure)(f"rank {rank}: {failure['message']}", failure["hint"]) from cause

    def hand_over(self, data: bytes) -> None:
        """Give this rank's ledger to rank 0, if it still takes any; a store that is gone is no error."""
        if self._store is None:
            return
        try:
            if self._store.check(["closed"]) or int(self._base.add(_LED, 0)) > self._number:
                # The store would keep it as long as the job runs.
                return
            chunks = range(0, max(len(data), 1), _CHUNK_BYTES)
            for index, begin in enumerate(chunks):
                self._store.set(f"data/{self.rank}/{index}", data[begin : begin + _CHUNK_BYTES])
            self._store.set(f"done/{self.rank}", str(len(chunks)))
        except RuntimeError as error:
            log.warning("shardtoll: rank %d could not hand over its ledger: %s", self.rank, error)

    def collect(self, limit_s: float) -> dict[int, bytes]:
        """Return what the other ranks handed over; those that died or are late are not in it."""
        ledgers: dict[int, bytes] = {}
        if self._store is None:
            return ledgers
        deadline_s = time.monotonic() + limit_s
        waiting = set(range(self.world_size)) - {self.rank}
        gone_since: dict[int, float] = {}
        try:
            while waiting:
                late = time.monotonic() > deadline_s
                for rank in sorted(waiting):
                    # A rank may hand over and end at once, and its data may still be on their way to the
                    # store. Its end counts only some time after it was noticed.
                    if rank not in gone_since and self._is_gone(rank):
                        gone_since[rank] = time.monotonic()
                    given_up = late or time.monotonic() - gone_since.get(rank, math.inf) > _GRACE_S
                    if self._store.check([f"done/{rank}"]):
                        ledgers[rank] = self._take(rank)
                        waiting.discard(rank)
                    elif given_up or not self._announced(rank):
                        waiting.discard(rank)
                if waiting:
                    time.sleep(_POLL_S)
            # Whoever opens a session now is too late for this one.
            self._store.set("closed", self._out)
        except RuntimeError as error:
            log.warning("shardtoll: the store went away while ledgers were collected: %s", error)
        return ledgers

    def _take(self, rank: int) -> bytes:
        count = int(self._store.get(f"done/{rank}"))
        chunks = []
        for index in range(count):
            key = f"data/{rank}/{index}"
            chunks.append(self._store.get(key))
            self._store.delete_key(key)
        return b"".join(chunks)

    def _is_gone(self, rank: int) -> bool:
        """Whether the rank ran on our host and its process has ended."""
        return self._has_ended(self._store, rank)

    @staticmethod
    def _has_ended(session: Any, rank: int) -> bool:
        """Whether the process with which a rank was in a session ran on our host and has ended.

        A process of another PID namespace, as containers of one host are in, has no number here: whether it
        lives is unknown.
        """
        if not session.check([f"alive/{rank}"]):
            return False
        them = json.loads(session.get(f"alive/{rank}"))
        beside_us = them["host"] == socket.gethostname() and them["pid_namespace"] == pid_namespace()
        return beside_us and not is_running(them["pid"])


class _NoneComes(RuntimeError):
    """Rank 0 opens no session that could still be joined, and why."""


def _kind(failure: dict[str, Any]) -> type[ShardtollError]:
    return RunFolderError if failure["of_folder"] else UsageError


def _told(error: Exception) -> dict[str, Any]:
    """Return the message to the other ranks about an error."""
    if isinstance(error, ShardtollError):
        of_folder = isinstance(error, RunFolderError)
        return {"message": error.message, "hint": error.hint, "of_folder": of_folder}
    message = f"run folder cannot be written ({first_line(error)})"
    return {"message": message, "hint": "name another with out=", "of_folder": True}
