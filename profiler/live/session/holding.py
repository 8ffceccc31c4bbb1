"""The one session that a process may have open: taken under a lock, given up by a fork, ended at exit."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Protocol

from shardtoll.ledger import UsageError


class Holder(Protocol):
    """A session, as far as its process is concerned."""

    def disown(self) -> None:
        """Record nothing any more: this process is a fork of the one that opened the session."""

    def left_open(self) -> None:
        """Take everything out of the interpreter, which ends; wait for nobody."""


_lock = threading.Lock()
_held: Holder | None = None


def claim(session: Holder) -> None:
    """Make this session the process's open one; UsageError if there is one, also while it still opens."""
    global _held
    with _lock:
        if _held is not None:
            raise UsageError(
                "an audit session is open already", "close it first; for several steps use session.step()"
            )
        _held = session


def release(session: Holder) -> None:
    """Let another session be opened; without effect if this one is not the process's."""
    global _held
    with _lock:
        if _held is session:
            _held = None


def _forked() -> None:
    """Give up, in a forked child, the session of its parent: files, store and device are the parent's."""
    global _held, _lock
    # Another thread of the parent may have held it, and that thread is not here to let go.
    _lock = threading.Lock()
    session, _held = _held, None
    if session is not None:
        session.disown()


def _at_exit() -> None:
    """End a session that nobody closed: the interpreter dies of hooks that outlive what they call."""
    session = _held
    if session is not None:
        session.left_open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
# torch was imported before, so that its own ends come after this one.
atexit.register(_at_exit)
