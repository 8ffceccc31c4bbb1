"""Calls that make the compute stream wait, made with the device's events around them.

Both levels come past here on a device that is timed: operators under the dispatch mode, and watched calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardtoll.profiler.live.capture.calls import Said
from shardtoll.profiler.live.capture.waiting import Waits
from shardtoll.profiler.live.cause.pending import PendingCollective
from shardtoll.profiler.live.times.device_times import DeviceTimes


def on_callers_stream(arguments: Mapping[str, Any]) -> bool:
    """Whether NCCL runs it in the caller's stream, as newer versions of torch let it: a wait in itself."""
    return arguments.get("async_op", arguments.get("asyncOp", True)) is False


def waited_for(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the tensor that a call of `wait_tensor` waits for, None for a call without one."""
    return args[0] if args else kwargs.get("tensor")


def timed_wait(waits: Waits, device: DeviceTimes, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that waits for a functional collective's result, its first argument, and has that
    timed."""

    def wait(*args: Any, **kwargs: Any) -> Any:
        opened = device.guarded(device.wait_begun, None)
        result = run(*args, **kwargs)
        device.guarded(lambda: device.wait_ended(opened, waits.issued_as(waited_for(args, kwargs))), None)
        return result

    return wait


def timed_operator(device: DeviceTimes, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that runs an operator during a drain, where its time is no wait."""

    def operator(*args: Any, **kwargs: Any) -> Any:
        device.guarded(device.operator_begun, None)
        result = run(*args, **kwargs)
        device.guarded(device.operator_ended, None)
        return result

    return operator


def timed_call(
    device: DeviceTimes,
    original: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    issued: Sequence[tuple[PendingCollective, Said]],
) -> Any:
    """Make a watched collective's call; if it blocks or runs in the caller's stream, have that timed.

    `device` learns here which collective a single call issued; for a batch the recorder reports it.
    """
    waits = bool(issued) and (issued[0][1].call.blocking or _said_not_to_be_async(args, kwargs))
    opened = device.guarded(device.wait_begun, None) if waits else None
    result = original(*args, **kwargs)
    if waits:
        # Also if nothing was opened: a side stream that waited stands for the collective from now on.
        device.guarded(lambda: device.wait_ended(opened, issued[-1][0]), None)
    if len(issued) == 1:
        device.guarded(lambda: device.issued(issued[0][0]), None)
    return result


def _said_not_to_be_async(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the options among the arguments of a group's method are those of `on_callers_stream`."""
    return any(getattr(value, "asyncOp", True) is False for value in (*args, *kwargs.values()))
