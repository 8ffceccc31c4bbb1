"""One audit over one run of a trainer: what every adapter does, without any trainer library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from shardtoll.ledger import Report
from shardtoll.ledger.records.errors import UsageError, first_line
from shardtoll.profiler.live.session.session import Session, audit


class AuditOptions(TypedDict, total=False):
    """The options of `audit()` that adapters hand on to it as they are."""

    level: str
    survey_every: int
    trace: bool
    trace_steps: int
    gather_limit_s: float
    checks: Sequence[str]
    check_every: int
    hang_after_s: float | None


class RunningAudit:
    """Opens a session when training begins, closes it however training ends, and keeps the report.

    If no session is open, all calls but `open` do nothing: hooks that a library calls outside of training
    need no care.
    """

    def __init__(self, out: str | Path | None, show: bool, options: Mapping[str, Any]) -> None:
        self._out = out
        self._show = show
        self._options = options
        self._session: Session | None = None
        self._closed: Session | None = None
        self._in_step = False

    @property
    def report(self) -> Report | None:
        """The report over all ranks, on rank 0 once training is over; None before and elsewhere.

        Made when first read: analysing takes time that training's end need not wait for.
        """
        return None if self._closed is None else self._closed.report()

    @property
    def in_step(self) -> bool:
        """Whether a step is open."""
        return self._in_step

    def open(self, model: nn.Module | None) -> None:
        """Open a session over the model, in place of one that an interrupted run left open.

        Raises UsageError when another session is open, RunFolderError when `out` cannot be written.
        """
        self.close()
        self._closed = None
        session = audit(model, self._out, **self._options)
        session.open()
        self._session = session

    def begin_step(self) -> None:
        """Begin a step, unless one is open."""
        if self._session is not None and not self._in_step:
            self._session.begin_step()
            self._in_step = True

    def end_step(self, *, finished: bool = True) -> None:
        """End the open step; one that did not finish is not counted."""
        if self._session is not None and self._in_step:
            self._in_step = False
            self._session.end_step(finished=finished)

    def close(self, error: BaseException | None = None) -> None:
        """Close the session and show the report if that was asked for; a step still open did not finish.

        With `error`, what ended training, rank 0 waits for the other ranks only a few seconds.
        """
        session = self._session
        if session is None:
            return
        try:
            self.end_step(finished=False)
        finally:
            self._session = None
            if error is None:
                session.close()
            else:
                session.__exit__(type(error), error, error.__traceback__)
        self._closed = session
        if self._show:
            report = self.report
            if report is not None:
                report.show()


def missing(library: str, package: str, error: ImportError) -> UsageError:
    """Return the message to a user without the library: which, why, and how to install it."""
    return UsageError(f"{library} cannot be imported ({first_line(error)})", f"pip install {package}")
