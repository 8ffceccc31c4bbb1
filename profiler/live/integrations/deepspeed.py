"""DeepSpeed, ZeRO stages 0 to 3: an audit whose steps are those of an engine.

A step lasts from the first forward of a training batch to the `engine.step()` that updates the parameters.
With gradient accumulation it holds several micro-batches. DeepSpeed itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from torch import nn

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.session.session import Session, audit

_NEEDED: Final = ("module", "step", "global_steps")


@contextmanager
def audit_engine(engine: Any, out: str | Path | None = None, **options: Any) -> Iterator[Session]:
    """Audit the training of a DeepSpeed engine: `with audit_engine(engine, out="runs/a") as session:`.

    `engine` is what `deepspeed.initialize` returns first; `out` and `options` are those of `audit()`.
    Nothing in the training loop changes: `session.step()` is not called. Work between two steps, as loading
    data or validating, is in no step; neither are micro-batches that no update follows. Leaving the context
    gives the engine back as it was.

    Raises UsageError if `engine` is no DeepSpeed engine, and what `audit()` raises.
    """
    if not is_engine(engine):
        raise UsageError(
            f"audit_engine() was given a {type(engine).__name__}",
            "give it the engine, the first of what deepspeed.initialize returns",
        )
    with audit(engine, out, **options) as session, ExitStack() as undo:
        session.expect_steps()
        steps = _Steps(engine, session)
        undo.callback(on_update(engine, steps.end))
        undo.callback(engine.register_forward_pre_hook(steps.begin).remove)
        try:
            yield session
        except BaseException:
            steps.drop()
            raise
        session.cancel_step()


def is_engine(module: object) -> bool:
    """Whether the object is a DeepSpeed engine that updates parameters by `step()`."""
    return isinstance(module, nn.Module) and all(hasattr(module, name) for name in _NEEDED)


def on_update(engine: Any, updated: Callable[[], None]) -> Callable[[], None]:
    """Have `updated` called after every `engine.step()` that updates parameters; returns how to undo it."""
    step, instance_step = engine.step, engine.__dict__.get("step")

    def stepped(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = step(*args, **kwargs)
        # DeepSpeed counts a step when it updates, not at every micro-batch.
        if engine.global_steps != before:
            updated()
        return result

    def undo() -> None:
        if instance_step is None:
            del engine.step
        else:
            engine.step = instance_step

    engine.step = stepped
    return undo


class _Steps:
    """Begins a step at the engine's first training forward since the last update, and ends it there."""

    def __init__(self, engine: Any, session: Session) -> None:
        self._engine = engine
        self._session = session
        self._open = False

    def begin(self, *_: Any) -> None:
        # engine.eval() changes only the module it keeps.
        if self._engine.module.training and not self._open:
            self._open = True
            self._session.begin_step()

    def end(self) -> None:
        if self._open:
            self._open = False
            self._session.end_step()

    def drop(self) -> None:
        if self._open:
            self._open = False
            self._session.end_step(finished=False)
