"""Repeated layers: found in the model, run a few times, and the rest passed through.

Children of a ModuleList, Sequential or ModuleDict that are alike in type, parameters and settings are one
repeated block. The first four and the last run; the others hand on what they are given. `repeat` proves on
the records that the second and the third did the same, and fills in those that did not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

FIRST: Final = 4
"""Blocks that run from the front: the first one, two that are compared, and one that follows them."""
_FEWEST: Final = 8
"""Blocks that are worth it."""
_WAITING: Final = (nn.parallel.DistributedDataParallel, FullyShardedDataParallel)
_PLAIN: Final = (int, float, str, bool, type(None))


@dataclass(frozen=True, slots=True)
class Mark:
    """The forward or backward of a block began here."""

    backward: bool
    series: int
    block: int
    order: int


@dataclass(slots=True)
class Series:
    """Blocks that are alike."""

    number: int
    count: int
    blocks: dict[int, nn.Module] = field(default_factory=dict)
    """Those that run, by place."""
    names: dict[int, str] = field(default_factory=dict)
    """Their names, once known."""


class Blocks:
    """Passes over most of a model's repeated blocks while a dry run lasts."""

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.marks: list[Mark] = []
        self.refused: str | None = None
        """Why the blocks that were passed over cannot be filled in; None as long as they can."""
        self._run: dict[int, tuple[Series, int]] = {}
        self._skipped: dict[int, nn.Module] = {}

    def find(self, model: nn.Module) -> None:
        """Find the repeated blocks of a model; none where a wrapper waits for the gradients of all layers."""
        if any(isinstance(module, _WAITING) for module in model.modules()):
            return
        for container in model.modules():
            if not isinstance(container, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
                continue
            children = list(container.children())
            if len(children) < _FEWEST or any(id(child) in self._run for child in children):
                continue
            if len({_likeness(child) for child in children}) > 1:
                continue
            series = Series(len(self.series), len(children))
            self.series.append(series)
            for place, child in enumerate(children):
                if place < FIRST or place == len(children) - 1:
                    series.blocks[place] = child
                    self._run[id(child)] = series, place
                else:
                    self._skipped[id(child)] = child

    def call(
        self,
        call: Callable[..., Any],
        module: nn.Module,
        args: Any,
        kwargs: Any,
        order: Callable[[], int | None],
    ) -> Any:
        """Run a module; of a block that is passed over only its input is handed on.

        `order` returns the place in the recorded step, None outside one.
        """
        if id(module) in self._skipped:
            return self._passed(args, kwargs)
        entry = self._run.get(id(module))
        if entry is None:
            return call(module, *args, **kwargs)
        series, place = entry
        at = order()
        if torch._C._current_graph_task_id() != -1:
            # Recomputed in backward: no pass of its own.
            return call(module, *args, **kwargs)
        if at is not None:
            self.marks.append(Mark(False, series.number, place, at))
        result = call(module, *args, **kwargs)
        output = result if isinstance(result, torch.Tensor) else _first(result)
        given = _given(args, kwargs)
        if output is None or given is None or output.shape != given.shape or output.dtype != given.dtype:
            self.refused = f"{type(module).__name__} returns something else than it is given"
        elif not isinstance(result, torch.Tensor):
            self.refused = f"{type(module).__name__} returns several values"
        elif output.requires_grad:

            def begins(_: Any) -> None:
                since = order()
                if since is not None:
                    self.marks.append(Mark(True, series.number, place, since))

            output.register_hook(begins)
        return result

    def _passed(self, args: Any, kwargs: Any) -> Any:
        return _given(args, kwargs)

    def fill_gradients(self) -> None:
        """Give parameters of blocks that were passed over the gradients that the optimizer is to use."""
        for module in self._skipped.values():
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)

    @property
    def any_skipped(self) -> bool:
        """Whether blocks are passed over."""
        return bool(self._skipped)

    def close(self) -> None:
        """Hold no module any longer."""
        self._run.clear()
        self._skipped.clear()
        for series in self.series:
            series.blocks.clear()


def _given(args: Any, kwargs: Any) -> torch.Tensor | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)


def _first(result: Any) -> torch.Tensor | None:
    if isinstance(result, (list, tuple)) and result and isinstance(result[0], torch.Tensor):
        return result[0]
    return None


def _likeness(module: nn.Module) -> tuple[Any, ...]:
    """Return what two blocks have in common if they do the same: types, settings, parameters and buffers."""
    parts: list[Any] = []
    for name, part in module.named_modules():
        settings = tuple(
            (key, value)
            for key, value in sorted(vars(part).items())
            if isinstance(value, _PLAIN)
            and not key.startswith("_")
            and not key.endswith(("idx", "index", "layer_id"))
        )
        parts.append((name, type(part).__qualname__, settings))
    tensors = [*module.named_parameters(), *module.named_buffers()]
    parts += [
        (
            name,
            tuple(tensor.shape),
            str(tensor.dtype),
            str(getattr(tensor, "placements", "")),
            tensor.requires_grad,
        )
        for name, tensor in tensors
    ]
    return tuple(parts)
