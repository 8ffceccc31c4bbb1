"""Total gradient norms as the program takes them: of which gradients, and what it took them to be."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from shardtoll.profiler.live.replacing import replace

Undo = Callable[[], None]
Before = Callable[[Sequence[torch.Tensor]], "int | None"]
"""Told of the gradients a norm is about to be taken of; returns which norm of the step it is."""
After = Callable[[str, int, torch.Tensor], None]
"""Told the call, which it was, and the norm."""

_MODULES: Final = ("torch.nn.utils.clip_grad", "torch.nn.utils")
_NAMES: Final = ("_get_total_norm", "get_total_norm")
_TWO: Final = 2.0


def watch_norms(model: nn.Module, before: Before, after: After) -> Undo:
    """Tell of every 2-norm that torch's clipping, or a call of its own, takes; returns the undoing.

    The function within `clip_grad_norm_` is replaced: a program may have imported the outer one long ago.
    """
    undo: list[Undo] = []

    def restore() -> None:
        for put_back in reversed(undo):
            put_back()

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def total_norm(tensors: Any, norm_type: float = _TWO, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or float(norm_type) != _TWO:
                return original(tensors, norm_type, *args, **kwargs)
            # A generator would be empty after we had looked at it.
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            nth = before(tensors)
            norm = original(tensors, norm_type, *args, **kwargs)
            if nth is not None:
                after(_caller(), nth, norm)
            return norm

        return total_norm

    def of_fsdp1(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_norm_(self: Any, max_norm: Any, norm_type: float = _TWO) -> Any:
            if float(norm_type) != _TWO:
                return original(self, max_norm, norm_type)
            nth = before([parameter.grad for parameter in self.parameters() if parameter.grad is not None])
            norm = original(self, max_norm, norm_type)
            if nth is not None:
                after("FullyShardedDataParallel.clip_grad_norm_", nth, norm)
            return norm

        return clip_grad_norm_

    try:
        for name in _NAMES:
            owners = [module for module in _MODULES if hasattr(importlib.import_module(module), name)]
            if owners:
                undo.append(replace(owners, name, around))
        fsdp = sys.modules.get("torch.distributed.fsdp")
        kind = getattr(fsdp, "FullyShardedDataParallel", None)
        if kind is not None and any(isinstance(module, kind) for module in model.modules()):
            undo.append(
                replace(["torch.distributed.fsdp:FullyShardedDataParallel"], "clip_grad_norm_", of_fsdp1)
            )
        return restore
    except BaseException:
        # An interrupt of the user's, half-way: nobody else would know what to undo.
        restore()
        raise


def _caller() -> str:
    """Return the public function that took the norm."""
    frame = sys._getframe(2)
    clips = frame.f_code.co_name == "clip_grad_norm_" and frame.f_globals.get("__name__") == _MODULES[0]
    return "torch.nn.utils." + ("clip_grad_norm_" if clips else "get_total_norm")
