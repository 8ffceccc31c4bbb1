"""Bringing the ranks' ledgers to rank 0 without a collective, and without waiting for the dead.

Everything goes through the store that torch.distributed already keeps for its own set-up: no group is
made, no device or transport is touched, and a rank that died keeps nobody waiting: the others hand over
their ledger and go on; rank 0 waits for those that still live, and at most for a time limit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

log = logging.getLogger("shardtoll")

_CHUNK_BYTES: Final = 4 << 20
"""torch's TCP store refuses values above 8 MiB."""
_POLL_S: Final = 0.02
_OPENING_LIMIT_S: Final = 60.0
_GRACE_S: Final = 1.0
"""What a rank sent before it ended has arrived by then."""
_PATIENCE_S: Final = 3.0
"""After this long the user is told which ranks are waited for."""
_opened = 0


def _default_store() -> Any | None:
    get = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get is None or not dist.is_initialized() or dist.get_backend() == "fake":
        return None
    return get()


def _is_alive(pid: int) -> bool:
    """Whether a process of this host still runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


class Meeting:
    """One session's place in the store: who is there, which run it is, and what each rank hands over."""

    def __init__(self, rank: int, world_size: int) -> None:
        global _opened
        _opened += 1
        self.rank = rank
        self.world_size = world_size
        self.run_id = uuid.uuid4().hex
        store = _default_store()
        prefix_store: Any = torch._C._distributed_c10d.PrefixStore
        self._store: Any = None if store is None else prefix_store(f"shardtoll/{_opened}", store)

    def open(self, prepare: Callable[[], None]) -> None:
        """Agree on the run's id. Rank 0 runs `prepare` before any other rank goes on.

        A rank that finds no rank 0 within the limit goes on with an id of its own.
        """
        if self._store is None:
            prepare()
            return
        me = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        self._store.set(f"alive/{self.rank}", me)
        if self.rank == 0:
            prepare()
            self._store.set("run", self.run_id)
        else:
            self._follow()

    def _follow(self) -> None:
        """Take the run's id from rank 0. Waits in the store, not in a loop: ranks should start together."""
        try:
            self._store.wait(["run"], timedelta(seconds=_OPENING_LIMIT_S))
            self.run_id = self._store.get("run").decode()
        except RuntimeError:
            log.warning("shardtoll: rank 0 opened no session; rank %d keeps its records to itself", self.rank)

    def start_together(self) -> None:
        """Wait, within the limit, until every rank's session is open.

        Without this the first step would measure who opened its session last. Only sessions that rank
        0 leads wait; a rank that cannot be reached delays the others by the limit at most, once.
        """
        if self._store is None:
            return
        try:
            self._store.set(f"open/{self.rank}", "1")
        except RuntimeError as error:
            log.warning("shardtoll: rank %d cannot reach the others: %s", self.rank, error)
            return
        everyone = [f"open/{rank}" for rank in range(self.world_size)]
        for limit_s, then in ((_PATIENCE_S, "is waited for"), (_OPENING_LIMIT_S, "is left out")):
            try:
                self._store.wait(everyone, timedelta(seconds=limit_s))
                return
            except RuntimeError:
                missing = [rank for rank in range(self.world_size) if not self._store.check([f"open/{rank}"])]
            if missing and self.rank == 0:
                log.warning("shardtoll: no session on rank %s, which %s", ", ".join(map(str, missing)), then)

    def hand_over(self, data: bytes) -> None:
        """Give this rank's ledger to rank 0; a store that is gone is no error."""
        if self._store is None:
            return
        try:
            chunks = range(0, max(len(data), 1), _CHUNK_BYTES)
            for index, at in enumerate(chunks):
                self._store.set(f"data/{self.rank}/{index}", data[at : at + _CHUNK_BYTES])
            self._store.set(f"done/{self.rank}", str(len(chunks)))
        except RuntimeError as error:
            log.warning("shardtoll: rank %d could not hand over its ledger: %s", self.rank, error)

    def collect(self, limit_s: float) -> dict[int, bytes]:
        """Return what the other ranks handed over; those that died or are late are not in it."""
        found: dict[int, bytes] = {}
        if self._store is None:
            return found
        deadline_s = time.monotonic() + limit_s
        waiting = set(range(self.world_size)) - {self.rank}
        gone_since: dict[int, float] = {}
        try:
            while waiting:
                late = time.monotonic() > deadline_s
                for rank in sorted(waiting):
                    # A rank may hand over and end at once, and what it sent may still be on its way to the
                    # store: its end counts only some time after it was noticed.
                    if rank not in gone_since and self._is_gone(rank):
                        gone_since[rank] = time.monotonic()
                    given_up = late or time.monotonic() - gone_since.get(rank, math.inf) > _GRACE_S
                    if self._store.check([f"done/{rank}"]):
                        found[rank] = self._take(rank)
                        waiting.discard(rank)
                    elif given_up:
                        waiting.discard(rank)
                if waiting:
                    time.sleep(_POLL_S)
        except RuntimeError as error:
            log.warning("shardtoll: the store went away while ledgers were collected: %s", error)
        return found

    def _take(self, rank: int) -> bytes:
        count = int(self._store.get(f"done/{rank}"))
        chunks = []
        for index in range(count):
            key = f"data/{rank}/{index}"
            chunks.append(self._store.get(key))
            self._store.delete_key(key)
        return b"".join(chunks)

    def _is_gone(self, rank: int) -> bool:
        """Whether the rank never opened a session, or ran on this host and its process has ended."""
        if not self._store.check([f"alive/{rank}"]):
            return True
        them = json.loads(self._store.get(f"alive/{rank}"))
        return them["host"] == socket.gethostname() and not _is_alive(them["pid"])
