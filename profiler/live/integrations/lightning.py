"""A Lightning callback that audits `trainer.fit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from shardtoll.ledger import Report
from shardtoll.profiler.live.integrations.running import AuditOptions, RunningAudit, missing

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from typing_extensions import Unpack
else:
    try:
        if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
            # The program uses the older name: importing the newer one would load Lightning a second time.
            from pytorch_lightning import Callback
        else:
            from lightning.pytorch import Callback
    except ImportError as _error:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise missing("Lightning", "lightning", _error) from None


class AuditCallback(Callback):
    """Audits every `trainer.fit`, on every rank: `Trainer(callbacks=[AuditCallback(out="runs/a")])`.

    One step of the audit is one optimizer step: with `accumulate_grad_batches=4` four batches make one. It
    begins before the first batch's forward pass and ends after the batch in which `trainer.global_step` grew.
    This also holds for manual optimization. Loading data, checkpoints, and what Lightning itself communicates
    between batches are outside; records of them have no step. Validation is outside too, unless it runs
    between two batches of one optimizer step. A step that an epoch's end or an exception cuts short is not
    counted.

    `out` and the options are those of `audit()`; another `fit` replaces the run in `out`. With `show`, rank
    0 prints the report when training ends.
    """

    def __init__(
        self, out: str | Path | None = None, *, show: bool = False, **options: Unpack[AuditOptions]
    ) -> None:
        super().__init__()
        self._audit = RunningAudit(out, show, options)
        self._begun_at = 0

    @property
    def report(self) -> Report | None:
        """The report over all ranks, on rank 0 once training is over; None before and elsewhere."""
        return self._audit.report

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session: the strategy has wrapped the model by now, and sanity checking is over."""
        wrapped = trainer.strategy.model
        self._audit.open(wrapped if isinstance(wrapped, nn.Module) else pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Begin a step, unless this batch adds to one that is open."""
        if not self._audit.in_step:
            self._begun_at = trainer.global_step
            self._audit.begin_step()

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """End the step if an optimizer stepped."""
        if trainer.global_step > self._begun_at:
            self._audit.end_step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Drop a step that the epoch's end cut short."""
        self._audit.end_step(finished=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Close the session."""
        self._audit.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Close the session: training failed."""
        self._audit.close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Close the session if Lightning left training without saying so."""
        self._audit.close()
