"""The inputs of a model's forward, by name, from a hook on the model that is there while data is checked."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch
from torch import nn

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
        for at, item in enumerate(value):
            yield from tensors_in(item, f"{name}[{at}]", depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name, None), f"{name}.{item.name}", depth + 1)


def inputs_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors a forward was given, by name; no more than 64."""
    found: list[tuple[str, torch.Tensor]] = []
    for tensor in tensors_in(args, "args"):
        found.append(tensor)
        if len(found) == _MOST:
            return found
    for key, value in kwargs.items():
        found += tensors_in(value, f"kwargs.{key}")
    return found[:_MOST]


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
