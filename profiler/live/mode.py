"""The surveying level: a dispatch mode that sees every operator below autograd.

The mode runs inside the training step, so it follows three rules: an exception of the operator
passes through untouched; an exception of ours stops the capture and nothing else; operators on tensor
subclasses are left to the subclass, whose own operators then come past here one by one.

A mode is active on the thread that entered it and, with its state, on the threads on which autograd runs
the backward of an accelerator. Operators of the user's own threads do not come past here; collectives
they issue show as a difference to the group's sequence number.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.profiler.live.call import Call, Decoder, Tensors
from shardtoll.profiler.live.decode import arguments_of, decoder_of, is_wait
from shardtoll.profiler.live.flops import flops_of, has_flops
from shardtoll.profiler.live.pending import PendingCollective
from shardtoll.profiler.live.recorder import Recorder

log = logging.getLogger("shardtoll")

_PLAIN: Final = 0
_COLLECTIVE: Final = 1
_WAIT: Final = 2
_FLOPS: Final = 3
_COPY: Final = 4
_COMMUNICATION: Final = (_COLLECTIVE, _WAIT)
_FAKE: Final = "fake"
_SUBCLASS: Final = "subclass"
_ORDINARY: Final = "ordinary"
_NO_DISPATCH: Final = (None, torch._C._disabled_torch_dispatch_impl, torch.Tensor.__torch_dispatch__)
_COPIES: Final = ("aten::_to_copy", "aten::copy_")


def _tensors_in(values: Any) -> Tensors:
    return tuple(value for value in values if isinstance(value, torch.Tensor))


class SurveyMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operator through and tells the recorder about it."""

    def __init__(self, recorder: Recorder, on_failure: Callable[[Exception], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._on_failure = on_failure
        self._now_ns = recorder.now_ns
        self._types: dict[type, str] = {}
        self._kinds: dict[Any, tuple[int, Decoder | None]] = {}
        self._next_node: Callable[[], int] = torch._C._autograd._get_sequence_nr
        self.muted = False
        """While true, operators pass unrecorded."""

    supports_higher_order_operators = True
    """Without this torch refuses cond, eager flex_attention and their like while the mode is active."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile go on compiling: with a plain mode active it would run eagerly."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, noting when it ran and, where it matters, what it was."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            # What runs inside is not seen; a collective there shows as a difference to the group's own count.
            return func(*args, **kwargs)
        for tensor_type in types:
            handling = self._types.get(tensor_type) or self._classify_type(tensor_type)
            if handling == _FAKE:
                # Shape propagation, as DTensor's: no work of the step.
                return func(*args, **kwargs)
            if handling == _SUBCLASS:
                self._recorder.attribution.specs.note(func, args)
                return NotImplemented
        region = self._recorder.region
        if self.muted or region is None:
            return func(*args, **kwargs)
        entered_ns = self._now_ns()
        if self._recorder.cpp_since_ns:
            self._recorder.cpp_returned(entered_ns)
        kind, decoder = self._kinds.get(func) or self._classify(func)
        if region.light and kind not in _COMMUNICATION:
            return func(*args, **kwargs)
        if kind == _COLLECTIVE:
            assert decoder is not None
            return self._collective(func, args, kwargs, decoder, entered_ns)
        begun_ns = self._now_ns()
        result = func(*args, **kwargs)
        ended_ns = self._now_ns()
        if self._is_muted():
            return result
        try:
            if kind == _WAIT:
                self._recorder.waited_for(args[0], begun_ns, ended_ns)
            else:
                between_devices = kind == _COPY and _devices(args, result) > 1
                (region.copies if between_devices else region.operators).append((begun_ns, ended_ns))
            if kind == _FLOPS:
                self._flops(func, args, kwargs, result, begun_ns, ended_ns)
            next_node = self._next_node()
            if next_node != self._recorder.attribution.next_node:
                self._recorder.attribution.note_nodes(next_node, sys._getframe(1))
            region.capture.append((entered_ns, begun_ns))
            region.capture.append((ended_ns, self._now_ns()))
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self._on_failure(error)
        return result

    def _is_muted(self) -> bool:
        # The operator itself may have run something that muted us.
        return self.muted

    def _classify_type(self, tensor_type: type) -> str:
        if issubclass(tensor_type, FakeTensor):
            found = _FAKE
        else:
            own = getattr(tensor_type, "__torch_dispatch__", None)
            found = _ORDINARY if own in _NO_DISPATCH else _SUBCLASS
        self._types[tensor_type] = found
        return found

    def _classify(self, func: Any) -> tuple[int, Decoder | None]:
        decoder = decoder_of(func)
        if decoder is not None:
            found: tuple[int, Decoder | None] = (_COLLECTIVE, decoder)
        elif is_wait(func):
            found = (_WAIT, None)
        elif has_flops(func):
            found = (_FLOPS, None)
        elif func._schema.name in _COPIES:
            found = (_COPY, None)
        else:
            found = (_PLAIN, None)
        self._kinds[func] = found
        return found

    def _collective(self, func: Any, args: Any, kwargs: Any, decoder: Decoder, entered_ns: int) -> Any:
        recorder = self._recorder
        region = recorder.region
        assert region is not None
        issued: list[tuple[PendingCollective, Call]] = []
        begun_ns = entered_ns
        try:
            calls = decoder(arguments_of(func, args, kwargs))
            issued = [(recorder.issue(call, sys._getframe(2), entered_ns), call) for call in calls]
            begun_ns = self._now_ns()
            for pending, _ in issued:
                pending.issue_ns = begun_ns
            region.capture.append((entered_ns, begun_ns))
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)
        result = func(*args, **kwargs)
        if not issued or self._is_muted():
            return result
        try:
            returned_ns = self._now_ns()
            recorder.issued(issued, result)
            if issued[0][1].blocking:
                recorder.waited(len(region.collectives) - 1, begun_ns, returned_ns)
            region.capture.append((returned_ns, self._now_ns()))
        except Exception as error:  # noqa: BLE001 - the seam
            self._on_failure(error)
        return result

    def _flops(self, func: Any, args: Any, kwargs: Any, result: Any, begun_ns: int, ended_ns: int) -> None:
        tensors = _tensors_in((*args, *kwargs.values()))
        if not tensors or tensors[0].device.type == "meta":
            return
        flops = flops_of(func, args, kwargs, result)
        outputs = _tensors_in(result) if isinstance(result, (list, tuple)) else _tensors_in((result,))
        # A fused attention returns bookkeeping beside its output; the first tensor is the result.
        self._recorder.computed(func, flops, tensors, outputs[:1], sys._getframe(2), (begun_ns, ended_ns))


def _devices(args: Any, result: Any) -> int:
    found = {tensor.device for tensor in _tensors_in((*args, result))}
    return len(found)
