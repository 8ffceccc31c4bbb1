"""Parts of torch that look at devices: the type itself, autocast, checkpointing, autograd's engine."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardtoll.profiler.dryrun.device.devices import is_gpu
from shardtoll.profiler.dryrun.device.known import MOST
from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced


def replace_torch(shim: Playing, replaced: Replaced) -> None:
    """Have torch's own parts take fake tensors for those of a GPU."""
    fake_device: Any = vars(FakeTensor)["device"].fget
    replaced.put(
        FakeTensor,
        "device",
        property(lambda tensor: shim.tensors.device_of(tensor, fake_device(tensor))),
    )
    # Its own would ask for one element after another.
    replaced.put_where_it_is(FakeTensor, "tolist", lambda tensor: torch.Tensor.tolist(tensor))
    replaced.put(torch, "device", _Device)
    # torch itself takes only streams of its own types.
    replaced.put(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: shim.mode.values.record_stream(tensor, stream),
    )
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    replaced.put(optimizers, "_foreach_supported_types", [*optimizers._foreach_supported_types, FakeTensor])
    checkpoint: Any = sys.modules["torch.utils.checkpoint"]
    checks = {**checkpoint._allowed_determinism_checks_to_fns, "default": _shape_and_dtype}
    replaced.put(checkpoint, "_allowed_determinism_checks_to_fns", checks)
    engine: Any = sys.modules["torch.autograd.graph"]
    original: Any = engine._engine_run_backward
    for owner in (engine, torch.autograd):
        if getattr(owner, "_engine_run_backward", None) is original:
            around: Any = shim.mode.around_engine
            replaced.put(owner, "_engine_run_backward", around(original))
    flat = importlib.import_module("torch.distributed.fsdp._flat_param")
    # A tensor without numbers has no address either.
    replaced.put_where_it_is(
        flat, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0
    )
    # Torch keeps the number of a fake tensor of one element. Programs reduce a few at once: sums, counts.
    replaced.put_where_it_is(sys.modules["torch._subclasses.fake_tensor"], "CONSTANT_NUMEL_LIMIT", MOST)
    made = FakeTensor.__new__

    def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        # Libraries that load weights make a parameter of the class of the one before.
        if args and isinstance(args[0], torch.Tensor):
            return torch.nn.Parameter(args[0], bool(kwargs.get("requires_grad", True)))
        return made(kind, *args, **kwargs)

    replaced.put(FakeTensor, "__new__", staticmethod(new))
    # A copy of a model asks each parameter for its address.
    warnings.filterwarnings("ignore", message=_POINTER)
    quiet = warnings.filters[0]
    replaced.afterwards(functools.partial(_silent_no_more, quiet))
    # A program's mistake is one line of ours; its traceback inside of torch helps nobody.
    replaced.put(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
    _autocast(replaced)
    _storage(shim, replaced)


_POINTER: Final = "Accessing the data pointer of FakeTensor(?#a dry run)"
"""With a comment: a program's filter that is equal to ours would make room for it, and go with it."""


def _silent_no_more(quiet: Any) -> None:
    filters = cast(list[Any], warnings.filters)
    if quiet in filters:
        filters.remove(quiet)


def _autocast(replaced: Replaced) -> None:
    """Have autocast for CUDA act on tensors of the CPU."""
    owner: Any = torch.amp.autocast_mode.autocast
    original = owner.__init__

    def __init__(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
        if is_gpu(device_type):
            dtype = kwargs.get("dtype", args[0] if args else None)
            if dtype is None:
                # CUDA's default; the CPU's is bfloat16.
                kwargs["dtype"], args = torch.float16, ()
            device_type = "cpu"
        original(self, device_type, *args, **kwargs)

    replaced.put(owner, "__init__", __init__)
    for name in (
        "is_autocast_enabled",
        "get_autocast_dtype",
        "set_autocast_enabled",
        "set_autocast_dtype",
    ):
        replaced.put_where_it_is(torch, name, _on_cpu(getattr(torch, name)))
    replaced.put_where_it_is(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))


def _storage(shim: Playing, replaced: Replaced) -> None:
    """Note when a storage gets another size."""
    original = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        shim.resized(storage, int(size))
        return original(storage, size)

    replaced.put(torch.UntypedStorage, "resize_", resize_)


def _on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a GPU's device type, its first argument, as the CPU's."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str) and is_gpu(args[0]):
            args = ("cpu", *args[1:])
        elif not args and not kwargs:
            args = ("cpu",)
        return original(*args, **kwargs)

    return called


def _shape_and_dtype(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what checkpointing compares of a recomputed tensor: where it is depends on who asks."""
    return {"shape": tensor.shape, "dtype": tensor.dtype}


_real_device: Any = torch.device


class _DeviceKind(type):
    """Has real devices count as instances of what stands for their type."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real_device)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _real_device)


class _Device(metaclass=_DeviceKind):
    """Stands for torch.device, where a number means a GPU although this torch knows none."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], int):
            args = ("cuda", args[0])
        return _real_device(*args, **kwargs)
