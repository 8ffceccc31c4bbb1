"""Kineto traces of audited steps: recorded with the spans' own profiler, written after the steps, joined.

There is one profiler at a time in torch, and the spans of gloo need it in every step. In a traced step
it records everything instead of the spans only, and the spans are taken from the same recording.

On the CPU each traced step is a recording of its own, so that its records are complete when it ends. On an
accelerator the recording goes on from the first to the last traced step. To stop it the device must have
finished. Waiting for it between steps would show idle time that the job does not have.
"""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from shardtoll.ledger.records.record import Group
from shardtoll.profiler.live.times.spans import RawSpan, SpanRecorder

TRACE_STEPS: Final = 3
MOST_OPERATORS: Final = 300_000
"""A step with more is no step that one would trace, and its recording would not fit into memory for long."""
TOO_LONG: Final = f"over {MOST_OPERATORS:,} operators without session.step()"
_OTHER_PROFILER: Final = "another profiler ran"
_GZIP_LEVEL: Final = 3
_EVENTS: Final = "traceEvents"


class Tracer:
    """Decides which steps are traced and keeps their recordings until they are written."""

    def __init__(self, spans: SpanRecorder, steps: int, device: torch.device) -> None:
        self._spans = spans
        self._most = steps
        self._device = device
        self._results: list[Any] = []
        self._annotation: Any = None
        self._open = False
        self.steps: set[int] = set()
        """Steps that are in the recording whole."""
        self.failed_steps: dict[int, str] = {}
        """Steps that are not traced and should have been: why."""

    @property
    def recording(self) -> bool:
        """Whether a recording was begun and not ended yet."""
        return self._open

    @property
    def wanting(self) -> bool:
        """Whether the next step is to be traced, or belongs to a recording that goes on."""
        return self._open or len(self.steps) + len(self.failed_steps) < self._most

    def begin(self, step: int) -> bool:
        """Begin a step; False if it is not traced and the spans' recording is to run as usual."""
        self._leave_annotation()
        if not self._open:
            if len(self.steps) >= self._most:
                return False
            if not self._spans.start(everything=True, device=self._device.type != "cpu"):
                self.failed_steps[step] = _OTHER_PROFILER
                return False
            self._open = True
        self._annotation = torch.profiler.record_function(f"ProfilerStep#{step}")
        self._annotation.__enter__()
        return True

    def end(self, step: int | None, *, whole: bool) -> list[RawSpan] | None:
        """End the step and return the spans of gloo; None if they could not be had.

        `step` None: what was begun as a step turned out to be none, and its recording is thrown away.
        `whole` False: the step holds something else too, and is not to be joined.
        """
        begun = self._annotation is not None
        self._leave_annotation()
        if not begun:
            # The time between two steps of a recording that goes on.
            return None
        if step is not None and whole:
            self.steps.add(step)
        on_cpu = self._device.type == "cpu"
        more = step is not None and len(self.steps) < self._most
        if more and not on_cpu and self._spans.running:
            return None
        return self._stop(keep=step is not None and (whole or not on_cpu), step=step)

    def finish(self) -> None:
        """End a recording that fewer steps than wanted left open."""
        if self._open:
            self._leave_annotation()
            self._stop(keep=bool(self.steps), step=None)

    def drop(self) -> None:
        """Throw away the step being traced; the recordings of earlier ones stay."""
        self._leave_annotation()
        if self._open and self._device.type == "cpu":
            self._stop(keep=False, step=None)

    def give_up(self, step: int | None) -> list[RawSpan] | None:
        """End tracing for good during a step that is too long; return the spans so far."""
        self._leave_annotation()
        self._most = 0
        raw = self._stop(keep=False, step=None)
        for lost in self.steps if self._device.type != "cpu" else ():
            self.failed_steps[lost] = TOO_LONG
        if self._device.type != "cpu":
            self.steps.clear()
        if step is not None:
            self.failed_steps[step] = TOO_LONG
        return raw

    def _leave_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def _stop(self, *, keep: bool, step: int | None) -> list[RawSpan] | None:
        self._open = False
        if self._device.type != "cpu" and keep:
            # After the step: what was launched in it must have ended to be in the recording.
            getattr(torch, self._device.type).synchronize()
        raw = self._spans.stop()
        result = self._spans.take_recording()
        if keep and result is not None:
            self._results.append(result)
        elif result is None:
            lost = {step} if self._device.type == "cpu" and step is not None else set(self.steps)
            self.failed_steps.update(dict.fromkeys(lost, _OTHER_PROFILER))
            self.steps -= lost
        return raw

    def write(self, path: Path, about: dict[str, Any]) -> bool:
        """Write the recordings as one Kineto trace with `about` as its `distributedInfo`; False without any.

        Raises OSError if the file cannot be written, msgspec's errors if torch wrote no JSON.
        """
        results, self._results = self._results, []
        if not results:
            return False
        parts = []
        for index, result in enumerate(results):
            part = path.with_name(f"{path.name.removesuffix('.json.gz')}.{index}.json.part")
            try:
                result.save(str(part))
                parts.append(part.read_bytes())
            finally:
                part.unlink(missing_ok=True)
        whole = path.with_name(path.name + ".part")
        try:
            with gzip.open(whole, "wb", compresslevel=_GZIP_LEVEL) as file:
                file.write(_merged(parts, about))
            os.replace(whole, path)
        finally:
            with contextlib.suppress(OSError):
                whole.unlink(missing_ok=True)
        return True


def _merged(parts: Sequence[bytes], about: dict[str, Any]) -> bytes:
    """One trace of recordings that one process made: their events after each other, the first one's head."""
    import msgspec

    documents = [msgspec.json.decode(part, type=dict[str, msgspec.Raw]) for part in parts]
    events = [
        event
        for document in documents
        for event in msgspec.json.decode(document[_EVENTS], type=list[msgspec.Raw])
    ]
    # The name is that of a part, which is gone.
    head: dict[str, Any] = {
        name: value for name, value in documents[0].items() if name not in (_EVENTS, "traceName")
    }
    head["distributedInfo"] = about
    head["torch_version"] = str(torch.__version__)
    return msgspec.json.encode({**head, _EVENTS: events})


def distributed_info(
    rank: int, world_size: int, backend: str | None, groups: Sequence[Group]
) -> dict[str, Any]:
    """Return the facts that torch's own profiler would write about the job, as far as they are known here."""
    return {
        "rank": rank,
        "world_size": world_size,
        "backend": backend,
        "pg_count": len(groups),
        "pg_config": [
            {
                "pg_name": group.name,
                "pg_desc": group.description or "",
                "backend_config": group.backend or "",
                "pg_size": group.size,
                "ranks": list(group.ranks),
            }
            for group in groups
        ],
    }
