"""Collectives that other threads issue: callbacks of futures, checkpoint writers, the user's own threads.

A dispatch mode sees the thread that entered it. Hooks that chain futures, as PowerSGD's does, go on from
gloo's threads, and `async_save` talks from a thread of its own. Whatever Python asks of a process group, it
asks through doors that a session holds open. A call that comes through one on a thread without our mode gets
a small mode that sees the operator behind it.

Such a collective is none of the training thread's operators: it has a place of its own and no fingerprint.
The training thread's waits for it are its only cost to the step.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from shardtoll.profiler.live.capture.calls import Issued
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.cause.call import UNDECODED, Call
from shardtoll.profiler.live.cause.decode import arguments_of, decoder_of
from shardtoll.profiler.live.cause.pending import PendingCollective


class CallMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of the collectives of one call on this thread, by the operators behind it."""

    def __init__(
        self,
        issue: Callable[[Call, FrameType], PendingCollective | None],
        issued: Callable[[Issued], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._issue = issue
        self._issued = issued
        self._on_failure = on_failure

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code goes on undisturbed."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; note it if it is a collective."""
        kwargs = kwargs or {}
        decoder = decoder_of(func)
        if decoder is None:
            return func(*args, **kwargs)
        issued: list[tuple[PendingCollective, Call]] = []
        calls: tuple[Call, ...] = ()
        try:
            with contextlib.suppress(*UNDECODED):
                calls = decoder(arguments_of(func, args, kwargs))
            for call in calls:
                pending = self._issue(call, sys._getframe(1))
                if pending is not None:
                    issued.append((pending, call))
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
        result = func(*args, **kwargs)
        if issued:
            try:
                self._issued(issued)
            except Exception as error:  # noqa: BLE001 - the seam
                self._on_failure(error)
        return result


def elsewhere(
    recorder: Recorder, is_seen: type[TorchDispatchMode], on_failure: Callable[[Exception], None]
) -> Callable[[Callable[..., Any], Sequence[Any], Any], Any]:
    """Return what makes a call on another thread than the training's and notes its collectives.

    A thread with a mode of type `is_seen` notes them itself.
    """

    def call(original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        if any(isinstance(mode, (is_seen, CallMode)) for mode in _get_current_dispatch_mode_stack()):
            return original(*args, **kwargs)
        with CallMode(recorder.issue_elsewhere, recorder.issued_elsewhere, on_failure):
            return original(*args, **kwargs)

    return call
