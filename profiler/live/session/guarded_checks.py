"""The checks of a session behind a seam of their own: a failure costs the checks, not capture or training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import torch
from torch import nn

from shardtoll.ledger import StepRows
from shardtoll.ledger.records.errors import reason
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.session.checking import Checking
from shardtoll.profiler.live.session.kept import Kept
from shardtoll.profiler.live.session.schedule import Checks
from shardtoll.profiler.live.session.signals import raised_by_handler

log = logging.getLogger("shardtoll")


class GuardedChecks:
    """The checks of a session, if any; none of its methods raises."""

    def __init__(
        self,
        recorder: Recorder,
        kept: Kept,
        device: torch.device,
        *,
        is_training: Callable[[], bool],
        has_stopped: Callable[[], bool],
    ) -> None:
        """`is_training`: as `Checking` takes it. `has_stopped`: whether the capture was given up."""
        self._recorder = recorder
        self._kept = kept
        self._device = device
        self._is_training = is_training
        self._has_stopped = has_stopped
        self._checking: Checking | None = None
        self._stopped = False

    @property
    def installed(self) -> bool:
        """Whether anything is checked."""
        return self._checking is not None

    def install(self, checks: Checks, model: nn.Module) -> None:
        """Begin to check; `remove` must follow."""
        self._checking = checking = Checking(
            checks, model, self._recorder, self._is_training, self._guarded, self._device
        )
        self._guarded(checking.install)

    def remove(self) -> None:
        """Take out of the process whatever was installed; once more does no harm."""
        if self._checking is not None:
            self._checking.remove()

    def forget(self) -> None:
        """Keep the model no longer."""
        self._checking = None

    def begin(self, step: int | None) -> None:
        """Begin a step, or the time between steps."""
        checking = self._checking
        if checking is not None:
            self._guarded(lambda: checking.begin(step))

    def end(self) -> None:
        """Take the values of the step that has just ended, in the time between steps."""
        if self._checking is not None:
            self._guarded(self._checking.end)
            self._guarded(self._append_values)

    def finish(self) -> None:
        """Write all that is still to come, when no step runs any more."""
        self._guarded(lambda: self._append_values(wait=True))

    def gradients_checked(self, right: Collection[str], wrong: Collection[str]) -> None:
        """Take in what an exact check of the gradients found on this rank."""
        if self._checking is not None:
            self._checking.gradients_checked(right, wrong)

    def _append_values(self, *, wait: bool = False) -> None:
        """Write the values that have come back; with `wait`, when no step runs any more, all and more."""
        if self._checking is None:
            return
        values = tuple(self._checking.finished(wait=wait))
        self._kept.append(
            StepRows(None, values=values, parameters=self._checking.parameters() if wait else ())
        )
        unknown = self._checking.unknown() if wait else None
        if unknown is not None:
            self._kept.notice("inputs-unknown", unknown)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._has_stopped() or self._stopped:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the seam between checks and training
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        if raised_by_handler(error):
            raise error
        self._stopped = True
        if self._checking is not None:
            self._checking.stop()
        text = f"checks stopped on rank {self._recorder.rank}, the rest goes on ({reason(error)})"
        log.warning("shardtoll: %s", text, exc_info=log.isEnabledFor(logging.DEBUG))
        self._kept.notice("checks-stopped", text)
