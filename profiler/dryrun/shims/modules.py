"""Modules, the compiler and data loaders of a dry run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced


def replace_modules(shim: Playing, replaced: Replaced) -> None:
    """Have parameters that are made on the host hold no numbers."""
    tensors = shim.tensors
    original = nn.Module.register_parameter

    @functools.wraps(original)
    def register_parameter(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if type(param) is nn.Parameter and type(param.data) is torch.Tensor and param.device.type == "cpu":
            param = tensors.parameter(param)
        original(module, name, param)

    replaced.put(nn.Module, "register_parameter", register_parameter)
    applied: Any = nn.Module._apply

    @functools.wraps(applied)
    def _apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        # torch swaps fake parameters, which it refuses while somebody holds a weak reference to one.
        own = module._parameters
        fakes = {name: value for name, value in own.items() if isinstance(value, FakeTensor)}
        everything = dict(own)
        for name, parameter in fakes.items():
            everything[name] = _converted(parameter, fn)
            del own[name]
        try:
            applied(module, fn, recurse)
        finally:
            everything |= own
            own.clear()
            own.update(everything)
        return module

    replaced.put(nn.Module, "_apply", _apply)
    kernels: Any = torch._C._nn
    parse = kernels._parse_to

    def _parse_to(*args: Any, **kwargs: Any) -> Any:
        # Under the mode, a function with `device=` makes its result on the CPU. This one makes nothing, so it
        # gets the device by position. It would read the real device of a tensor.
        if "tensor" in kwargs:
            args = (kwargs.pop("tensor"), *args)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        elif not args and "device" in kwargs:
            args = (kwargs.pop("device"),)
        if args and isinstance(args[0], int):
            args = (torch.device("cuda", args[0]), *args[1:])
        return parse(*args, **kwargs)

    replaced.put(kernels, "_parse_to", _parse_to)


def _converted(parameter: Any, fn: Callable[[Any], Any]) -> Any:
    """Return the fake parameter after `fn`, the same object wherever its data can be exchanged."""
    with torch.no_grad():
        data = fn(parameter)
    if data is parameter:
        return parameter
    if not isinstance(data, FakeTensor):
        return nn.Parameter(data, parameter.requires_grad)
    parameter.data = data
    if parameter.grad is not None:
        with torch.no_grad():
            parameter.grad.data = fn(parameter.grad)
    return parameter


def replace_compiler(shim: Playing, replaced: Replaced) -> None:
    """Run eagerly what would be compiled."""

    def compiled(model: Any = None, *_: Any, **__: Any) -> Any:
        if model is None:
            return compiled
        if isinstance(model, nn.Module):
            model.forward = _fused(shim, model.forward)
            return model
        return _fused(shim, model)

    replaced.put(torch, "compile", compiled)

    def compile_in_place(module: nn.Module, *_: Any, **__: Any) -> None:
        compiled(module)

    replaced.put(nn.Module, "compile", compile_in_place)

    def export(*_: Any, **__: Any) -> Any:
        # Its own fake tensors are on the GPU; autograd ends the process if torch was built without CUDA.
        raise NotImplementedError(
            "torch.export traces on a GPU, which a dry run has not: build pipeline stages without pipeline()"
        )

    replaced.put(torch.export, "export", export)


def _fused(shim: Playing, function: Callable[..., Any]) -> Callable[..., Any]:
    """Run code eagerly that would be compiled, and mark its operators."""
    if getattr(function, "_dry_fused", False):
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if shim.region is not None:
            return function(*args, **kwargs)
        shim.region = shim.fused_regions
        shim.fused_regions += 1
        try:
            return function(*args, **kwargs)
        finally:
            shim.region = None

    run._dry_fused = True  # type: ignore[attr-defined]
    return run


def replace_loader(_: Playing, replaced: Replaced) -> None:
    """Have loaders fetch in this process."""
    owner: Any = torch.utils.data.DataLoader
    original = owner.__init__

    @functools.wraps(original)
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
        names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
        kwargs |= dict(zip(names, args, strict=False))
        kwargs |= {"num_workers": 0, "pin_memory": False, "persistent_workers": False}
        for name in ("prefetch_factor", "multiprocessing_context", "timeout"):
            kwargs.pop(name, None)
        rest = args[len(names) :]
        if rest:
            kwargs |= dict(zip(("collate_fn", "pin_memory_", "drop_last"), rest, strict=False))
            kwargs.pop("pin_memory_", None)
        original(loader, **kwargs)

    replaced.put(owner, "__init__", __init__)
