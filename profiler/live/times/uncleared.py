"""Optimizer steps that use gradients which nobody has cleared since the same optimizer's step before.

Such gradients hold what was used already, and grow from step to step. It is proven parameter by parameter. As
the step ends, each gradient's place and version are noted. If they are the same when the next backward
begins, that backward adds to the gradient. The proof is complete if the same optimizer then steps with it
again. A gradient counts as cleared if it is gone, was filled with zeros or was changed in any way in between.
So does one for which a gap in the record leaves a doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardtoll.profiler.live.cause.module_names import Names, address_of, local_of


@dataclass(slots=True)
class _Used:
    """A gradient that an optimizer has used."""

    address: int
    version: int
    on_cpu: bool
    grown: bool = False
    """A backward has added to it since."""


class Uncleared:
    """Counts the optimizer steps in a row whose gradients were all uncleared."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.in_a_row = 0
        self._used: dict[int, dict[str, _Used]] = {}
        """By the id of the optimizer and the name of the parameter."""
        self._gap = False

    def unseen(self) -> None:
        """Note that operators run unseen from here to the next backward: zeros would not be noticed."""
        self._gap = True

    def forget(self) -> None:
        """Drop what is known of gradients."""
        self._used.clear()

    def backward_begins(self, zeroed: Callable[[torch.Tensor], bool]) -> None:
        """Forget the gradients that are not what the optimizers left. `zeroed`: whether one was filled with
        zeros since the last backward."""
        gap, self._gap = self._gap, False
        if not self._used:
            return
        now = dict(self._names.parameters())
        for used in self._used.values():
            for name in list(used):
                gradient = getattr(now.get(name), "grad", None)
                doubted = gap and not used[name].on_cpu
                if doubted or gradient is None or not _is(used[name], gradient) or zeroed(gradient):
                    del used[name]
            if not any(_holds_values(now[name]) for name in used):
                used.clear()

    def backward_ended(self) -> None:
        """Note which gradients have grown."""
        if not self._used:
            return
        now = dict(self._names.parameters())
        for used in self._used.values():
            for name in list(used):
                gradient = getattr(now.get(name), "grad", None)
                if gradient is None or address_of(local_of(gradient)) != used[name].address:
                    del used[name]
                    continue
                version = int(local_of(gradient)._version)
                used[name].grown |= version != used[name].version
                used[name].version = version

    def step_begins(self, optimizer: Any) -> None:
        """Count a step that uses gradients; it ends the row if one of them was cleared."""
        used = self._used.get(id(optimizer))
        if used is None:
            return
        names = self._of(optimizer)
        if names and all(name in used and used[name].grown for name in names):
            self.in_a_row += 1
        elif not any(name in used for name in names):
            self.in_a_row = 0

    def step_ended(self, optimizer: Any) -> None:
        """Note the gradients that a step has used."""
        self._used[id(optimizer)] = {
            name: _Used(address_of(local), int(local._version), local.is_cpu)
            for name, gradient in self._of(optimizer).items()
            for local in (local_of(gradient),)
            if address_of(local) and not local.is_inference()
        }

    def _of(self, optimizer: Any) -> dict[str, torch.Tensor]:
        """Return the gradients of an optimizer's parameters by name; nameless ones are left out."""
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return {
            name: parameter.grad
            for name, parameter in self._names.parameters()
            if id(parameter) in mine and parameter.grad is not None
        }


def _is(used: _Used, gradient: torch.Tensor) -> bool:
    local = local_of(gradient)
    return address_of(local) == used.address and int(local._version) == used.version


def _holds_values(parameter: torch.Tensor) -> bool:
    """Whether its gradient is not zero throughout; taken for granted of accelerators, whose reads would
    wait."""
    if parameter.grad is None:
        return False
    local = local_of(parameter.grad)
    if not local.is_cpu or local.layout is not torch.strided:
        return True
    with torch.no_grad(), _disable_current_modes():
        return bool(local.any())
