"""A context manager that audits a training loop written with Hugging Face Accelerate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from shardtoll.ledger import Report
from shardtoll.profiler.live.integrations.running import AuditOptions, RunningAudit, missing

if TYPE_CHECKING:
    from typing_extensions import Unpack

try:
    from accelerate import Accelerator
except ImportError as _error:
    raise missing("Accelerate", "accelerate", _error) from None


class AcceleratedAudit:
    """An audit of a loop, and its report once the loop is over."""

    def __init__(self, accelerator: Accelerator, running: RunningAudit) -> None:
        self._accelerator = accelerator
        self._audit = running

    @property
    def report(self) -> Report | None:
        """The report over all ranks, on rank 0 once the audit is over; None before and elsewhere."""
        return self._audit.report

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Do what `accelerator.accumulate(*models)` does, and mark the steps of the audit.

        A step begins with its first batch and ends with the batch after which Accelerate lets the optimizer
        step (`accelerator.sync_gradients`). It has as many batches as `gradient_accumulation_steps`, fewer at
        the end of the data. Use it without accumulation too: then every batch is a step. A batch that raises
        ends its step, which is not counted.
        """
        self._audit.begin_step()
        finished = False
        try:
            with self._accelerator.accumulate(*models):
                yield
            finished = True
        finally:
            if not finished:
                self._audit.end_step(finished=False)
            elif self._accelerator.sync_gradients:
                self._audit.end_step()


@contextlib.contextmanager
def audit_accelerate(
    accelerator: Accelerator,
    model: nn.Module,
    out: str | Path | None = None,
    *,
    show: bool = False,
    **options: Unpack[AuditOptions],
) -> Iterator[AcceleratedAudit]:
    """Audit the loop inside, on every rank; in it `audited.accumulate(model)` replaces the accelerator's.

    `model` is what `accelerator.prepare` returned. `out` and the options are those of `audit()`. With
    `show`, rank 0 prints the report at the end. Records from between batches have no step; a step whose last
    batch is missing at the end is not counted.

    Raises UsageError when another session is open, RunFolderError when `out` cannot be written.
    """
    running = RunningAudit(out, show, options)
    running.open(model)
    try:
        yield AcceleratedAudit(accelerator, running)
    except BaseException as error:
        running.close(error)
        raise
    running.close()
