"""A callback that audits the `train` of Hugging Face transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shardtoll.ledger import Report
from shardtoll.profiler.live.integrations.running import AuditOptions, RunningAudit, missing

if TYPE_CHECKING:
    from typing_extensions import Unpack

try:
    from transformers import TrainerCallback
except ImportError as _error:
    raise missing("transformers", "transformers accelerate", _error) from None


class AuditCallback(TrainerCallback):
    """Audits every `trainer.train()`, on every rank: `Trainer(callbacks=[AuditCallback(out="runs/a")])`.

    One step of the audit is one optimizer step: with `gradient_accumulation_steps=4` four batches make one.
    It begins before the first batch's forward pass and ends when the optimizer has stepped. Outside are
    loading data, evaluation, logging, checkpoints, and the Trainer's communication between steps: the number
    of items in a batch, losses to log. Records of them have no step.

    The Trainer does not report exceptions to its callbacks. Write `with callback: trainer.train()`, and the
    audit is closed however training ends. Without it an exception leaves the audit open until `close()`, the
    next `train()` or the end of the process. Finished steps are in `out` in any case.

    `out` and the options are those of `audit()`; another `train()` replaces the run in `out`. With `show`,
    rank 0 prints the report when training ends.
    """

    def __init__(
        self, out: str | Path | None = None, *, show: bool = False, **options: Unpack[AuditOptions]
    ) -> None:
        self._audit = RunningAudit(out, show, options)

    @property
    def report(self) -> Report | None:
        """The report over all ranks, on rank 0 once training is over; None before and elsewhere."""
        return self._audit.report

    def __enter__(self) -> AuditCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._audit.close(error)

    def close(self) -> None:
        """Close the audit if training left it open."""
        self._audit.close()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Open the session: the model is wrapped and placed by now."""
        self._audit.open(kwargs["model"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin a step, before the first of its batches."""
        self._audit.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End the step: the optimizer has stepped."""
        self._audit.end_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Drop a step that the epoch's end cut short."""
        self._audit.end_step(finished=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Close the session."""
        self._audit.close()
