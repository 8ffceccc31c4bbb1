"""Collectives that other threads issue: callbacks of futures, checkpoint writers, the user's own threads.

A dispatch mode sees the thread that entered it. Hooks that chain futures, as PowerSGD's does, go on from
gloo's threads, and `async_save` talks from a thread of its own. Whatever Python asks of a process group, it
asks through the methods of `ProcessGroup`: while a session is open these are replaced by ones that, on a
thread without our mode, let a small mode see the operator behind the call. They are put back on exit.

Such a collective is none of the training thread's operators: it has a place of its own, no fingerprint, and
what it costs the step shows only where the training thread waits for it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from shardtoll.profiler.live.call import Call
from shardtoll.profiler.live.decode import arguments_of, decoder_of
from shardtoll.profiler.live.pending import PendingCollective
from shardtoll.profiler.live.recorder import Recorder

_METHODS: Final = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""What issues a collective in some version of torch; those that are missing are passed over."""


class _ThreadMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the recorder of the collectives of one call on this thread."""

    def __init__(self, recorder: Recorder, on_failure: Callable[[Exception], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
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
        try:
            for call in decoder(arguments_of(func, args, kwargs)):
                pending = self._recorder.issue_elsewhere(call, sys._getframe(1))
                if pending is not None:
                    issued.append((pending, call))
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
        result = func(*args, **kwargs)
        if issued:
            try:
                self._recorder.issued_elsewhere(issued)
            except Exception as error:  # noqa: BLE001 - the seam
                self._on_failure(error)
        return result


def patch_process_group(
    recorder: Recorder,
    is_seen: type[TorchDispatchMode],
    is_recording: Callable[[], bool],
    on_failure: Callable[[Exception], None],
) -> Callable[[], None]:
    """Have collectives noted that threads without a mode of type `is_seen` issue; returns what undoes that.

    Call it on the training thread: what that thread issues is left to its mode.
    """
    owner: Any = getattr(dist, "ProcessGroup", None) if dist.is_available() else None
    here = threading.get_ident()
    undo: list[tuple[str, Any, Any]] = []
    for name in _METHODS if owner is not None else ():
        original = vars(owner).get(name)
        if original is None:
            continue
        bound: Any = getattr(owner, name)

        @functools.wraps(bound)
        def wrapper(*args: Any, _original: Any = bound, **kwargs: Any) -> Any:
            if threading.get_ident() == here or not is_recording():
                return _original(*args, **kwargs)
            if any(isinstance(mode, is_seen) for mode in _get_current_dispatch_mode_stack()):
                return _original(*args, **kwargs)
            with _ThreadMode(recorder, on_failure):
                return _original(*args, **kwargs)

        setattr(owner, name, wrapper)
        undo.append((name, wrapper, original))

    def restore() -> None:
        for name, wrapper, original in undo:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)

    return restore
