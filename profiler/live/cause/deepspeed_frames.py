"""Facts in DeepSpeed's own frames about a collective: which ZeRO stage asked, what for, and its parameters.

DeepSpeed gathers and reduces by plain torch.distributed calls on flat buffers: only its frames know the
parameters in them. They are recognized by file and function, as torch's are, so DeepSpeed need not be
imported. A name that another version has changed leaves the parameter unknown and the cause `DeepSpeed`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from torch import nn

if TYPE_CHECKING:
    from shardtoll.profiler.live.cause.cause import Cause, Reader

_NAME: Final = "DeepSpeed"
_STAGE_1_2: Final = "runtime/zero/stage_1_and_2.py"
_STAGE_3: Final = "runtime/zero/stage3.py"
_PARTITIONS: Final = "runtime/zero/partition_parameters.py"
_ENGINE: Final = "runtime/engine.py"
_UTILS: Final = "runtime/utils.py"
_CALLED_BY_USERS: Final = ("comm/", "utils/")
"""Collectives for everyone, and the wrappers around them."""
_MOST_OUTWARD: Final = 6
"""Frames between an optimizer's `step` and the helper that gathers for it, wrappers included."""

Find = Callable[[FrameType], Iterable[Any]]
"""Returns the parameters a frame works on."""


def path_inside(path: str) -> str | None:
    """Return a file's path inside DeepSpeed's package, None for a file outside or if it is not loaded."""
    file = getattr(sys.modules.get("deepspeed"), "__file__", None)
    if file is None:
        return None
    folder = os.path.dirname(os.path.abspath(file)) + os.sep
    return path[len(folder) :].replace(os.sep, "/") if path.startswith(folder) else None


def reader_of(path: str, function: str) -> Reader | None:
    """Return what reads a function of DeepSpeed; None for `deepspeed.comm`, which a user may call too."""
    if path.startswith(_CALLED_BY_USERS):
        return None
    reader = _READERS.get((path, function.lstrip("_")))
    if reader is not None:
        return reader
    purpose = next((word for word in ("norm", "overflow") if word in function), None)
    return _generic if purpose is None else _reader(purpose, phase="optimizer")


def _reader(purpose: str | None = None, find: Find | None = None, phase: str | None = None) -> Reader:
    def read(frame: FrameType, cause: Cause) -> None:
        cause.phase = cause.phase or phase
        if cause.settled:
            return
        if find is not None and not cause.parameters:
            cause.parameters = tuple(find(frame))
        if purpose is not None and not (cause.api or "").startswith(f"{_NAME}."):
            stage = _stage(frame)
            cause.api = f"{_NAME}.{purpose}" if stage is None else f"{_NAME}.ZeRO-{stage}.{purpose}"
        else:
            _generic(frame, cause)

    return read


def _generic(_: FrameType, cause: Cause) -> None:
    if not cause.settled and not (cause.api or "").startswith(_NAME):
        cause.api = _NAME


def _stage(frame: FrameType) -> int | None:
    """Return the ZeRO stage of the frame's code, or of the optimizer that called it; None for stage 0."""
    path = path_inside(frame.f_code.co_filename)
    if path in (_STAGE_3, _PARTITIONS):
        return 3
    optimizer = _optimizer_around(frame)
    if optimizer is None:
        return None
    if not hasattr(optimizer, "bit16_groups"):
        return 3
    return 2 if getattr(optimizer, "partition_gradients", False) else 1


def _optimizer_around(frame: FrameType) -> Any:
    """Return the ZeRO optimizer whose method this is, or which called it; None if there is none."""
    outward: FrameType | None = frame
    for _ in range(_MOST_OUTWARD):
        if outward is None:
            return None
        if path_inside(outward.f_code.co_filename) in (_STAGE_1_2, _STAGE_3):
            holder = outward.f_locals.get("self")
            if holder is not None:
                return holder
        outward = outward.f_back
    return None


def _bucket(frame: FrameType) -> Iterable[Any]:
    """Return the parameters whose gradients lie in the bucket that ZeRO 1 or 2 reduces now."""
    values = frame.f_locals
    groups = getattr(values.get("self"), "bit16_groups", ())
    rows = getattr(values.get("bucket"), "params", ())
    return [groups[row[0]][row[1]] for row in rows if isinstance(row[1], int)]


def _group(frame: FrameType) -> Iterable[Any]:
    """Return the parameters of the group whose updated parts ZeRO 1 or 2 gathers now."""
    groups = getattr(_optimizer_around(frame), "bit16_groups", None)
    number = frame.f_locals.get("group_id")
    return () if groups is None or number is None else groups[number]


def _listed(name: str) -> Find:
    def find(frame: FrameType) -> Iterable[Any]:
        value = frame.f_locals.get(name)
        return value if isinstance(value, (list, tuple)) else () if value is None else (value,)

    return find


def _fetch(frame: FrameType, cause: Cause) -> None:
    """Note the module that ZeRO 3 gathers for: itself, or modules that come after it."""
    module = frame.f_locals.get("current_submodule")
    if not cause.settled and cause.module is None and isinstance(module, nn.Module):
        cause.module = module


_gather_params = _reader("gather", _listed("params"))
_gather_list = _reader("gather", _listed("param_list"))

_READERS: Final[dict[tuple[str, str], Reader]] = {
    (_STAGE_1_2, "reduce_ipg_grads"): _reader("reduce", _bucket, "backward"),
    (_STAGE_1_2, "step"): _reader(phase="optimizer"),
    (_UTILS, "all_gather_dp_groups"): _reader("gather", _group, "optimizer"),
    (_UTILS, "all_gather_into_tensor_dp_groups"): _reader("gather", _group, "optimizer"),
    (_STAGE_3, "avg_scatter_grads"): _reader("reduce", _listed("params_to_reduce"), "backward"),
    (_STAGE_3, "reduce_and_partition_ipg_grads"): _reader("reduce", _listed("params_in_bucket"), "backward"),
    (_STAGE_3, "step"): _reader(phase="optimizer"),
    (_PARTITIONS, "all_gather_dtype"): _gather_params,
    (_PARTITIONS, "all_gather_sequential"): _gather_params,
    (_PARTITIONS, "all_gather_coalesced"): _gather_params,
    (_PARTITIONS, "allgather_params_coalesced"): _gather_list,
    (_PARTITIONS, "allgather_params_sequential"): _gather_list,
    (_PARTITIONS, "allgather_param"): _reader("gather", _listed("param")),
    ("runtime/zero/partitioned_param_coordinator.py", "fetch_sub_module"): _fetch,
    ("runtime/zero/utils.py", "assert_ints_same_as_other_ranks"): _reader("order_check"),
    (_ENGINE, "buffered_allreduce_fallback"): _reader("reduce", phase="backward"),
    (_ENGINE, "backward"): _reader(phase="backward"),
    (_ENGINE, "step"): _reader(phase="optimizer"),
}
"""(file inside the package, function without leading underscores) -> reader of its facts."""
