"""Work of optimizers in a surveyed step, as one Compute record: nearly all of it is element by element.

Its FLOPs are the elements updated, one each. An update takes at least that much (SGD takes two, AdamW some
fifteen). It is a lower bound, and exact to compare. The record's time is that of the operators that ran
inside `step()`. The largest parameters, as they are after the step, and their gradients show whether other
ranks update the same. With ZeRO's optimizers each rank has others.
"""

from __future__ import annotations

import contextlib
import heapq
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from shardtoll.ledger.records.work import OPTIMIZER_STEP
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.cause.attribute import replicated_dims
from shardtoll.profiler.live.cause.module_names import local_of
from shardtoll.profiler.live.cause.pending import PendingCompute, Place, Region
from shardtoll.profiler.live.values.operators import bytes_of, shapes_text
from shardtoll.profiler.live.values.sketch import has_values

LOOKED_AT: Final = 4
"""Parameters of an optimizer whose values are looked at, the largest ones."""


@dataclass(slots=True)
class _Begun:
    """A `step()` that has begun."""

    optimizer: Any
    region: Region
    ran: int
    """Entries of `region.ran` then."""
    closures: list[int]
    """Positions in `region.ran` at which each of its closures began and ended, in turn."""
    work_ns: int
    """When its own work began: after the last closure."""
    nests: bool = False
    """Another optimizer stepped inside it, as ZeRO's own does: that one has done the work."""


class OptimizerSteps:
    """Tells the recorder when an optimizer steps, and notes what it does if a step is surveyed."""

    def __init__(
        self, recorder: Recorder, is_recording: Callable[[], bool], on_failure: Callable[[Exception], None]
    ) -> None:
        self._recorder = recorder
        self._is_recording = is_recording
        self._on_failure = on_failure
        self._begun: list[_Begun] = []
        recorder.closures.on_failure = on_failure

    def install(self) -> Callable[[], None]:
        """Have torch report every optimizer's step; returns the undoing."""
        with contextlib.ExitStack() as undo:
            closures = self._recorder.closures
            closures.begins.append(self._at_closure)
            closures.ended.append(self._at_closure)
            undo.callback(closures.begins.clear)
            undo.callback(closures.ended.clear)
            undo.callback(register_optimizer_step_pre_hook(self._before).remove)
            undo.callback(register_optimizer_step_post_hook(self._after).remove)
            return undo.pop_all().close
        raise AssertionError("not reached")

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._begins(optimizer)
        return self._recorder.closures.wrapped(optimizer, args, kwargs) if self._is_recording() else None

    def _begins(self, optimizer: Any) -> None:
        self._recorder.optimizer_begins()
        region = self._recorder.region
        if not self._is_recording() or region is None or region.light:
            return
        # Entries left behind by a step that raised belong to no other.
        self._begun = [begun for begun in self._begun if begun.region is region]
        for outer in self._begun:
            outer.nests = True
        try:
            self._recorder.clearing.uncleared.step_begins(optimizer)
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
        now_ns = self._recorder.now_ns()
        self._begun.append(_Begun(optimizer, region, len(region.ran), [], now_ns))

    def _at_closure(self, _optimizer: Any) -> None:
        """Note that a closure begins, or has ended: the work in between is no update."""
        for begun in self._begun:
            begun.closures.append(len(begun.region.ran))
            begun.work_ns = self._recorder.now_ns()

    def _after(self, optimizer: Any, *_: Any) -> None:
        self._recorder.optimizer_ended()
        region = self._recorder.region
        while self._begun and self._begun[-1].optimizer is not optimizer:
            self._begun.pop()
        if not self._begun:
            return
        begun = self._begun.pop()
        if begun.region is not region or begun.nests or not self._is_recording():
            return
        try:
            entered_ns = self._recorder.now_ns()
            with torch.no_grad(), _disable_current_modes():
                self._recorder.clearing.uncleared.step_ended(optimizer)
                self._note(begun, sys._getframe(1))
            region.capture.append((entered_ns, self._recorder.now_ns()))
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)

    def _note(self, begun: _Begun, frame: FrameType) -> None:
        region = begun.region
        updated = [
            parameter
            for group in begun.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if not updated:
            return
        if region.step is not None:
            self._recorder.used.update((id(parameter), region.step) for parameter in updated)
        elements = sum(local_of(parameter).numel() for parameter in updated)
        pending = region.updates
        if pending is None:
            pending = region.updates = PendingCompute(
                op=OPTIMIZER_STEP,
                flops=0,
                shapes="",
                place=Place("optimizer", source=self._recorder.attribution.stack.cause(frame).source),
                start_ns=begun.work_ns,
                end_ns=begun.work_ns,
                replicated_over=_replicated(updated),
                input_tickets=[],
                output_tickets=[],
            )
            region.computes.append(pending)
        else:
            here = set(filter(None, (_replicated(updated) or "").split(",")))
            both = [dim for dim in (pending.replicated_over or "").split(",") if dim in here]
            pending.replicated_over = ",".join(both) or None
        pending.flops += elements
        pending.moved_bytes += _moved(begun.optimizer, updated)
        edges = [begun.ran, *begun.closures, len(region.ran)]
        pending.end_ns += sum(
            _time_of(region.ran[begin:end]) for begin, end in zip(edges[::2], edges[1::2], strict=True)
        )
        pending.shapes = " ".join(filter(None, (pending.shapes, _shapes(begun.optimizer, updated))))
        self._take(pending, begun.optimizer, updated)

    def _take(self, pending: PendingCompute, optimizer: Any, updated: Sequence[nn.Parameter]) -> None:
        """Take fingerprints of the largest parameters and their gradients."""
        takes = self._recorder.fingerprints.take
        # A gradient scaler has handed its flag over: what is not finite is left out, by the kernel itself.
        pending.may_leave_out |= getattr(optimizer, "found_inf", None) is not None
        for parameter in heapq.nlargest(LOOKED_AT, updated, key=lambda p: local_of(p).numel()):
            for tensor, tickets in (
                (parameter.grad, pending.input_tickets),
                (parameter, pending.output_tickets),
            ):
                local = local_of(tensor) if tensor is not None else None
                # The values of a subclass may have still to come, as those of an asynchronous collective.
                plain = type(local) in (torch.Tensor, nn.Parameter)
                ticket = takes(local, thorough=True) if plain and local is not None else None
                if ticket is not None and tickets is not None:
                    tickets.append(ticket)
                    if tensor is parameter and not pending.telling:
                        pending.telling = (ticket,)


def _replicated(parameters: Sequence[nn.Parameter]) -> str | None:
    """Return the mesh dims on which every parameter is a DTensor and Replicate; None if there is none."""
    common: list[str] | None = None
    seen: dict[int, Any] = {}
    for parameter in parameters:
        spec = getattr(parameter, "_spec", None)
        if spec is None:
            return None
        seen[id(spec)] = spec
    for spec in seen.values():
        dims = (replicated_dims([spec]) or "").split(",")
        common = [dim for dim in (dims if common is None else common) if dim in dims and dim]
        if not common:
            return None
    return ",".join(common or ()) or None


def _moved(optimizer: Any, updated: Sequence[nn.Parameter]) -> int:
    """Return the least bytes of the update: gradients read, parameters and states read and written.

    A sparse gradient may touch but a few rows of them: nothing is counted of those parameters. States of a
    class of their own, as those of 8 bits, have another size in memory than they state. They are left out, as
    are those on another device.
    """
    moved = 0
    for parameter in updated:
        gradient = None if parameter.grad is None else local_of(parameter.grad)
        if gradient is not None and gradient.layout is not torch.strided:
            continue
        moved += 2 * bytes_of(local_of(parameter))
        moved += 0 if gradient is None else bytes_of(gradient)
        states = (state for state in _states(optimizer, parameter) if state.device == parameter.device)
        moved += 2 * sum(bytes_of(state) for state in states if has_values(state))
    return moved


def _states(optimizer: Any, parameter: nn.Parameter) -> list[torch.Tensor]:
    """Return the states of a parameter; counters of steps, of one element, are left out."""
    states = optimizer.state.get(parameter, {}).values()
    return [local_of(state) for state in states if isinstance(state, torch.Tensor) and state.dim() > 0]


def _state_bytes(optimizer: Any, updated: Sequence[nn.Parameter]) -> int:
    """Return the bytes of the parameters' states as their types say."""
    local = (state for parameter in updated for state in _states(optimizer, parameter))
    return sum(state.numel() * state.element_size() for state in local)


def _shapes(optimizer: Any, updated: Sequence[nn.Parameter]) -> str:
    """Return the elements updated by type and the bytes of their states, as `f32[4096] state u8[32768]`."""
    elements: dict[torch.dtype, int] = {}
    for parameter in updated:
        local = local_of(parameter)
        elements[local.dtype] = elements.get(local.dtype, 0) + local.numel()
    texts = [shapes_text([torch.empty(count, dtype=kind, device="meta")]) for kind, count in elements.items()]
    return " ".join((*texts, f"state u8[{_state_bytes(optimizer, updated)}]"))


def _time_of(ran: Sequence[int]) -> int:
    """Return the ns in which operators ran; see `Region.ran`."""
    return sum(ran[2::4]) - sum(ran[1::4])
