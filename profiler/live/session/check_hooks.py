"""Hooks while values are checked: the model's forward for its inputs, and torch's total norms."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch
from torch import nn

from shardtoll.profiler.live.session.wrapping import is_fsdp1
from shardtoll.profiler.live.times.patches import Patches, patched

Undo = Callable[[], None]

_MOST: Final = 64
"""Tensors of one forward at most."""
_DEEP: Final = 6


def tensors_in(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors in a value with their names: `args[0].mask`, `kwargs.batch.tokens[1]`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth == _DEEP:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{name}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{name}[{index}]", depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name, None), f"{name}.{item.name}", depth + 1)


def inputs_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors a forward was given, by name; no more than 64."""
    inputs: list[tuple[str, torch.Tensor]] = []
    for tensor in tensors_in(args, "args"):
        inputs.append(tensor)
        if len(inputs) == _MOST:
            return inputs
    for key, value in kwargs.items():
        inputs += tensors_in(value, f"kwargs.{key}")
    return inputs[:_MOST]


def watch_inputs(model: nn.Module, note: Callable[[tuple[Any, ...], Mapping[str, Any]], None]) -> Undo:
    """Have `note` called with what each forward is given; returns the undoing."""

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            note(args, kwargs)

    # First of all: what other hooks make of the inputs is no longer the program's own.
    return model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True).remove


def compiled(model: nn.Module) -> bool:
    """Whether a hook on the model would be compiled with it: from inside, or by what is wrapped around it."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        return True
    # By its type: torch.distributed holds an object that warns when it is asked for its class.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    inner = [thing._modules.get("_orig_mod") for thing in modules if "_modules" in vars(thing)]
    return any(part is model for module in inner if module is not None for part in module.modules())


Before = Callable[[Sequence[torch.Tensor]], "int | None"]
"""Gets the gradients whose norm is about to be computed; returns which norm of the step it is."""
After = Callable[[str, int, torch.Tensor], None]
"""Gets the call, its number, and the norm."""

_MODULES: Final = ("torch.nn.utils.clip_grad", "torch.nn.utils")
_NAMES: Final = ("_get_total_norm", "get_total_norm")
_CLIPS: Final = "clip_grads_with_norm_"
_TWO: Final = 2.0


def watch_norms(model: nn.Module, before: Before, after: After) -> Callable[[], None]:
    """Tell of every 2-norm that torch's clipping, or a call of its own, takes or gets; returns the undoing.

    The function within `clip_grad_norm_` is replaced: a program may have imported the outer one long ago.
    """
    inside = False

    def noted(call: str, gradients: Sequence[torch.Tensor], take: Callable[[], Any]) -> Any:
        nonlocal inside
        nth = None if inside else before(gradients)
        outer, inside = inside, True
        try:
            norm = take()
        finally:
            inside = outer
        if nth is not None:
            after(call, nth, norm)
        return norm

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def total_norm(tensors: Any, norm_type: float = _TWO, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or float(norm_type) != _TWO:
                return original(tensors, norm_type, *args, **kwargs)
            # A generator would be empty after we had looked at it.
            given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            return noted(_caller(), given, lambda: original(given, norm_type, *args, **kwargs))

        return total_norm

    def clips(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grads_with_norm_(
            parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if torch.compiler.is_compiling() or not isinstance(total_norm, torch.Tensor):
                return original(parameters, max_norm, total_norm, *args, **kwargs)
            given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            gradients = [
                given_parameter.grad for given_parameter in given if given_parameter.grad is not None
            ]
            nth = before(gradients)
            if nth is not None:
                after(f"torch.nn.utils.{_CLIPS}", nth, total_norm)
            return original(given, max_norm, total_norm, *args, **kwargs)

        return clip_grads_with_norm_

    def of_fsdp1(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_norm_(self: Any, max_norm: Any, norm_type: float = _TWO) -> Any:
            if float(norm_type) != _TWO:
                return original(self, max_norm, norm_type)
            gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
            call = "FullyShardedDataParallel.clip_grad_norm_"
            return noted(call, gradients, lambda: original(self, max_norm, norm_type))

        return clip_grad_norm_

    def install(patches: Patches) -> None:
        for module in _MODULES:
            for name in _NAMES:
                patches.around(importlib.import_module(module), name, around)
        # Under its public name alone: within `clip_grad_norm_` the norm was taken a moment ago.
        patches.around(torch.nn.utils, _CLIPS, clips)
        if any(is_fsdp1(module) for module in model.modules()):
            fsdp = sys.modules["torch.distributed.fsdp"]
            patches.around(getattr(fsdp, "FullyShardedDataParallel", None), "clip_grad_norm_", of_fsdp1)

    return patched(install)


def _caller() -> str:
    """Return the public function that took the norm."""
    frame = sys._getframe(2)
    clips = frame.f_code.co_name == "clip_grad_norm_" and frame.f_globals.get("__name__") == _MODULES[0]
    return "torch.nn.utils." + ("clip_grad_norm_" if clips else "get_total_norm")
