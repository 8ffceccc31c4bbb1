"""The surveying level: a dispatch mode that sees every operator below autograd.

The mode runs inside the training step, so it follows two rules. An exception of the operator passes through
untouched. An exception of ours stops the capture and nothing else. Operators on tensor subclasses are left to
the subclass, whose own operators then come past here one by one.

A mode is active on the thread that entered it. With its state it is also active on the threads on which
autograd runs the backward of an accelerator. Operators there need no Python caller. Operators of the user's
own threads do not come past here. Collectives that they issue show as a difference to the group's sequence
number.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from shardtoll.profiler.live.capture.compiler import can_skip_below, skip_below
from shardtoll.profiler.live.capture.device_calls import (
    on_callers_stream,
    timed_operator,
    timed_wait,
    waited_for,
)
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.cause.accounting import Interval
from shardtoll.profiler.live.cause.call import UNDECODED, Call, Decoder, Tensors, is_ordinary
from shardtoll.profiler.live.cause.decode import arguments_of, decoder_of, is_wait
from shardtoll.profiler.live.cause.pending import PendingCollective, Region
from shardtoll.profiler.live.flight.flight import Note
from shardtoll.profiler.live.values.operators import flops_of, has_flops, moved_bytes
from shardtoll.profiler.live.values.results import outputs_of, surveyed_of

_PLAIN: Final = 0
_COLLECTIVE: Final = 1
_WAIT: Final = 2
_FLOPS: Final = 3
_COPY: Final = 4
_HIGHER: Final = 5
_READ: Final = 6
_ZERO: Final = 7
_CLONED: Final = 8
_FAKE: Final = "fake"
_SUBCLASS: Final = "subclass"
_ORDINARY: Final = "ordinary"
_SHAPE_PROPAGATION: Final = ("_sharding_prop.py", "_dynamo/output_graph.py", "_functorch/aot_autograd.py")
"""Code that runs operators on fake tensors only for their shapes."""
_COPIES: Final = ("aten::_to_copy", "aten::copy_")
_ZEROS: Final = ("aten::zero_", "aten::_foreach_zero_")
_FAKE_KEY: Final = torch._C._TorchDispatchModeKey.FAKE
_DEVICE: Final = torch.ops.prim.device.default
"""How torch's C++ asks tensors that hold no numbers where they are: no work."""
_CLONE: Final = torch.ops.aten.clone.default
_LOG_SOFTMAX: Final = torch.ops.aten._log_softmax.default
_READS: Final = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero")
"""Operators whose result the host needs before it can go on; except the first, only on accelerators."""


def _tensors_in(values: Any) -> Tensors:
    return tuple(value for value in values if isinstance(value, torch.Tensor))


class SurveyMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operator through and reports it to the recorder."""

    def __init__(self, recorder: Recorder, on_failure: Callable[[Exception], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._attribution = recorder.attribution
        self._waits = recorder.waits
        self._on_failure = on_failure
        self._now_ns = recorder.now_ns
        self._handlings: dict[tuple[type, ...], str] = {}
        self._kinds: dict[int, tuple[int, Decoder | None, Any, Any]] = {}
        """Id of an operator -> its kind, decoder, what runs it and itself, as its own hash is Python."""
        self._next_node: Callable[[], int] = torch._C._autograd._get_sequence_nr
        self.muted = False
        """While true, operators pass unrecorded."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return not can_skip_below()

    supports_higher_order_operators = True
    """Without this torch refuses cond, eager flex_attention and their like while the mode is active."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile go on compiling: with a plain mode active it would run eagerly."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, noting when it ran and, if it matters, what it was."""
        kind, decoder, run, _ = self._kinds.get(id(func)) or self._classify(func)
        if kind == _HIGHER:
            # Operators inside are not seen; a collective there shows as a difference to the group's own
            # count.
            return func(*args, **kwargs or {})
        recorder = self._recorder
        if types:
            handling = self._handlings.get(tuple(types)) or self._handle(types)
            if handling is _SUBCLASS:
                if kind == _FLOPS:
                    recorder.attribution.specs.note(func, args)
                elif kind == _READ:
                    recorder.value_asked()
                return NotImplemented
            if handling is _FAKE:
                if _propagates_shapes():
                    return func(*args, **kwargs or {})
                if recorder.region is not None:
                    recorder.region.fake = True
        region = recorder.region
        if region is None or self.muted or region.watched:
            return func(*args, **kwargs or {})
        now_ns = self._now_ns
        entered_ns = now_ns()
        if self._waits.cpp_since_ns:
            self._waits.cpp_returned(entered_ns)
        if decoder is not None:
            return self._collective(func, args, kwargs or {}, decoder, entered_ns)
        if region.light and kind != _WAIT:
            return func(*args, **kwargs or {})
        device = recorder.device
        results = recorder.results
        if kind == _PLAIN and device is None and not results.pieces and not results.logits.wholes:
            return self._plain(run, args, kwargs, region, entered_ns)
        if device is not None and (kind == _WAIT or device.draining):
            run = timed_wait(self._waits, device, run) if kind == _WAIT else timed_operator(device, run)
        touched = None
        if (results.pieces or results.logits.wholes) and not region.fake:
            try:
                touched = results.touched(func, args, kwargs)
            except Exception as error:  # noqa: BLE001 - the seam
                self._on_failure(error)
        begun_ns = now_ns()
        result = run(*args, **kwargs) if kwargs else run(*args)
        ended_ns = now_ns()
        if recorder.region is not region:
            # The operator itself ran something that ended the capture.
            return result
        try:
            if kind == _FLOPS:
                self._flops(func, args, kwargs or {}, result, sys._getframe().f_back, (begun_ns, ended_ns))
            elif kind == _WAIT:
                self._waits.for_result(waited_for(args, kwargs or {}), begun_ns, ended_ns)
            elif kind == _COPY and _devices(args, result) > 1:
                region.copies.append((begun_ns, ended_ns))
                if result.device.type == "cpu" and not _blocks_nobody(kwargs):
                    recorder.read(func, sys._getframe().f_back, (begun_ns, ended_ns))
            elif kind == _READ and (
                args[0].device.type != "cpu" or (func._schema.name == _READS[0] and not recorder.is_fetching)
            ):
                recorder.read(func, sys._getframe().f_back, (begun_ns, ended_ns))
            elif kind == _ZERO:
                recorder.clearing.zeroed(args[0])
            if touched:
                results.ran(func, touched, result, args)
            if kind == _CLONED and args and not region.fake:
                recorder.cuts.copied(args[0], result)
                recorder.contents.copied(args[0], result)
            next_node = self._next_node()
            if next_node != self._attribution.next_node:
                self._attribution.note_nodes(next_node, sys._getframe().f_back)
            if kind == _WAIT:
                region.capture += ((entered_ns, begun_ns), (ended_ns, now_ns()))
            else:
                region.ran.extend((entered_ns, begun_ns, ended_ns, now_ns()))
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
        return result

    def _plain(self, run: Any, args: Any, kwargs: Any, region: Region, entered_ns: int) -> Any:
        """Run an operator of which only the time is noted, as of most."""
        now_ns = self._now_ns
        begun_ns = now_ns()
        result = run(*args, **kwargs) if kwargs else run(*args)
        ended_ns = now_ns()
        if self._recorder.region is region:
            try:
                next_node = self._next_node()
                if next_node != self._attribution.next_node:
                    self._attribution.note_nodes(next_node, sys._getframe(1).f_back)
                region.ran.extend((entered_ns, begun_ns, ended_ns, now_ns()))
            except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
                self._on_failure(error)
        return result

    def _handle(self, types: Sequence[type]) -> str:
        """Return what to do with an operator called on tensors of these types, and remember it."""
        kinds = {_handling_of(kind) for kind in types}
        handling = next((kind for kind in (_SUBCLASS, _FAKE) if kind in kinds), _ORDINARY)
        self._handlings[tuple(types)] = handling
        return handling

    def _classify(self, func: Any) -> tuple[int, Decoder | None, Any, Any]:
        decoder, run = None, func
        if isinstance(func, HigherOrderOperator) or func is _DEVICE:
            kind = _HIGHER
        elif (decoder := decoder_of(func)) is not None:
            kind = _COLLECTIVE
        elif is_wait(func):
            kind = _WAIT
        elif has_flops(func):
            kind = _FLOPS
        elif func._schema.name in _COPIES:
            kind = _COPY
        elif func._schema.name in _READS:
            kind = _READ
        elif func._schema.name in _ZEROS:
            kind = _ZERO
        elif func is _CLONE:
            kind = _CLONED
        else:
            kind = _PLAIN
        if kind in (_FLOPS, _COPY, _READ, _ZERO, _CLONED, _PLAIN) and type(func) is OpOverload:
            # Does the same as calling the operator itself, without a Python frame.
            run = func._op
        self._kinds[id(func)] = classified = (kind, decoder, run, func)
        return classified

    def _collective(self, func: Any, args: Any, kwargs: Any, decoder: Decoder, entered_ns: int) -> Any:
        recorder = self._recorder
        region = recorder.region
        assert region is not None
        issued: list[tuple[PendingCollective, Call]] = []
        begun_ns = entered_ns
        calls: tuple[Call, ...] = ()
        arguments: dict[str, Any] = {}
        device, opened, waits = recorder.device, None, False
        note: Note | None = None
        try:
            arguments = arguments_of(func, args, kwargs)
            with contextlib.suppress(*UNDECODED):
                calls = decoder(arguments)
            caller = sys._getframe(1).f_back
            if recorder.results.pieces and not region.light and not region.fake:
                for call in calls:
                    recorder.results.read_by_collective(func, call.inputs)
            issued = [(recorder.issue(call, caller, entered_ns), call) for call in calls]
            for pending, _ in issued:
                note = recorder.flight.issue(pending, entered_ns)
            begun_ns = self._now_ns()
            for pending, _ in issued:
                pending.issue_ns = begun_ns
            region.capture.append((entered_ns, begun_ns))
            waits = bool(calls) and (calls[0].blocking or on_callers_stream(arguments))
            if device is not None and waits:
                opened = device.wait_begun()
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            recorder.flight.raised(note)
            raise
        if device is not None and waits and issued:
            # Also if nothing was opened: a side stream that waited stands for the collective from now on.
            device.guarded(lambda: device.wait_ended(opened, issued[-1][0]), None)
        if not issued:
            return result
        try:
            returned_ns = self._now_ns()
            recorder.flight.returned_operator(note, result, issued, returned_ns)
            if recorder.region is not region:
                return result
            recorder.issued(issued, result)
            if len(issued) == 1 and not region.light and not region.fake:
                outputs = outputs_of(arguments, result)
                surveyed_of(issued[0][0]).output_content = recorder.contents.made(outputs)
                recorder.results.follow(issued[0][0], outputs)
            if issued[0][1].blocking:
                self._waits.note(len(region.collectives) - 1, begun_ns, returned_ns)
            region.capture.append((returned_ns, self._now_ns()))
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)
        return result

    def _flops(
        self, func: Any, args: Any, kwargs: Any, result: Any, frame: FrameType | None, ran: Interval
    ) -> None:
        tensors = _tensors_in((*args, *kwargs.values()))
        if not tensors or tensors[0].is_meta:
            return
        if func is _LOG_SOFTMAX:
            self._recorder.results.logits.read(args, frame)
        flops = flops_of(func, args, kwargs, result)
        outputs = _tensors_in(result) if isinstance(result, (list, tuple)) else _tensors_in((result,))
        moved = moved_bytes(func, args, tensors, outputs)
        # A fused attention returns bookkeeping along with its output; the first tensor is the result.
        self._recorder.computed(func, flops, moved, tensors, outputs[:1], frame, ran)


# torch has its compiler skip modes by itself, by a Python wrapper that costs each operator as much again as
# we do.
skip_below(SurveyMode.__torch_dispatch__.__code__)


def _handling_of(tensor_type: type) -> str:
    if issubclass(tensor_type, FakeTensor):
        return _FAKE
    return _ORDINARY if is_ordinary(tensor_type) else _SUBCLASS


def _propagates_shapes() -> bool:
    """Whether an operator on fake tensors is no work of the step: somebody asks for the shape of a result.

    A step may itself run on fake tensors, for its sizes. DTensor then borrows the step's own fake mode, so
    only the stack distinguishes the two.
    """
    if DRY.tensors_are_fake:
        # A dry run's tensors carry their mode with them: on the stack is only one that asks for shapes.
        return torch._C._get_dispatch_mode(_FAKE_KEY) is not None
    under_fake = any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())
    frame = sys._getframe(1).f_back
    while frame is not None:
        if frame.f_code.co_filename.endswith(_SHAPE_PROPAGATION):
            return True
        frame = frame.f_back
    return not under_fake


class DRY:
    """Whether a dry run goes on in this process."""

    tensors_are_fake = False
    idle_session: Callable[[], Any] | None = None
    """Makes what `audit()` returns in a program that runs dry; None otherwise."""


def _blocks_nobody(kwargs: Any) -> bool:
    """Whether a copy to the host was asked for that the host does not wait for."""
    return bool(kwargs and kwargs.get("non_blocking"))


def _devices(args: Any, result: Any) -> int:
    devices = {tensor.device for tensor in _tensors_in((*args, result))}
    return len(devices)


def put_on(mode: SurveyMode) -> None:
    """Put the mode on the stack, if it is not there already."""
    if not any(active is mode for active in _get_current_dispatch_mode_stack()):
        mode.__enter__()  # type: ignore[no-untyped-call]


def take_off(mode: SurveyMode, *, for_good: bool = False) -> None:
    """Take the mode off the stack; one of the user's above it keeps it there, idle, unless `for_good`."""
    stack = _get_current_dispatch_mode_stack()
    if not stack or not any(other is mode for other in stack) or not (for_good or stack[-1] is mode):
        return
    pop: Any = getattr(_python_dispatch, "_pop_mode", None)
    push: Any = getattr(_python_dispatch, "_push_mode", None)
    if stack[-1] is not mode and (pop is None or push is None):
        # There it stays, below the user's, and passes everything on.
        mode.muted = True
        return
    above = []
    while _get_current_dispatch_mode_stack()[-1] is not mode:
        above.append(pop())
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for other in reversed(above):
        push(other)
