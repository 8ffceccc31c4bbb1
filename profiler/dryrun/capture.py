"""The dispatch mode of a dry run: operators, collectives, waits and storages of the device in one order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from shardtoll.ledger.records.dry import DryOp, DryWait
from shardtoll.profiler.dryrun.device.devices import FAKE, Tensors, asked_by_torch
from shardtoll.profiler.dryrun.device.known import Exchanged
from shardtoll.profiler.dryrun.device.memo import Memo
from shardtoll.profiler.dryrun.device.storages import Storages
from shardtoll.profiler.dryrun.device.timeline import Timeline
from shardtoll.profiler.dryrun.device.work import Work, launches, tensors_in
from shardtoll.profiler.live.cause.attribute import Attribution
from shardtoll.profiler.live.cause.call import UNDECODED, is_ordinary
from shardtoll.profiler.live.cause.decode import arguments_of, decoder_of, is_wait
from shardtoll.profiler.live.cause.frames import Stack
from shardtoll.profiler.live.cause.pending import NOWHERE, Place
from shardtoll.profiler.live.values.operators import op_text, shapes_text

_PLAIN, _COLLECTIVE, _WAIT, _HIGHER = range(4)
_COUNTS: Final = ("aten::histc", "aten::bincount")
_KEEPS_COUNTS: Final = (
    *("aten::_to_copy", "aten::view", "aten::reshape", "aten::clone", "aten::copy_", "aten::_unsafe_view"),
    *("aten::t", "aten::transpose", "aten::sum"),
)

_DEVICE: Final = torch.ops.prim.device.default
_ASKS_GENERATOR: Final = ("aten::uniform_",)
"""Operators that fill their tensor, which torch runs for shapes by way of the device's generator."""


class DryMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operator on, and notes the work that the device would get."""

    supports_higher_order_operators = True

    def __init__(self, rank: int, tensors: Tensors, timeline: Timeline, storages: Storages) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rank = rank
        self._tensors = tensors
        self._timeline = timeline
        self.storages = storages
        self.attribution: Attribution | None = None
        """Places operators while a step is recorded; else None."""
        self.step: int | None = None
        self.ops: list[DryOp] = []
        self.waits: list[DryWait] = []
        self.issued: list[tuple[int, str]] = []
        """Order and stream of each collective of the step, as issued."""
        self.has_cudnn = True
        """Whether convolutions run in cuDNN."""
        self.region: Callable[[], int | None] = lambda: None
        self.note_total: Callable[[torch.Tensor, int], None] = lambda *_: None
        self.total_of: Callable[[torch.Tensor], int | None] = lambda _: None
        self.sent: Callable[[Any], None] = lambda _: None
        self.assumed: Callable[[str], None] = lambda _: None
        """Called with what a result takes for granted of ranks that do not run."""
        self._kinds: dict[int, tuple[int, Any, bool | None, Any, bool]] = {}
        self._memo = Memo(tensors.mode)
        self._subclasses: dict[tuple[type, ...], bool] = {}
        self._stack = Stack()
        self._results: dict[int, tuple[int, str]] = {}
        """Address of a functional collective's result -> its order and stream."""

    def begin(self, step: int, attribution: Attribution) -> None:
        """Begin to record a step."""
        self.step, self.attribution = step, attribution
        self.storages.step = step
        self.ops, self.waits, self.issued = [], [], []
        self._results.clear()
        self._timeline.begin()
        self._timeline.on_wait = self._waited

    def end(self) -> None:
        """Record no longer."""
        self.step = self.attribution = None
        self.storages.step = None
        self._timeline.on_wait = None
        self._results.clear()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled in a dry run, and a wrapper that keeps the compiler out costs as much as we do.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and note it if the device would run it."""
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return asked_by_torch(func, args[0])
        tensors = self._tensors
        tensors.in_operator += 1
        try:
            return self._dispatch(func, types, args, kwargs or {})
        finally:
            tensors.in_operator -= 1

    def _dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if types and self._are_subclasses(tuple(types)):
            return NotImplemented
        if torch._C._get_dispatch_mode(FAKE) is not None and not self._tensors.making:
            # Somebody asks for the shape of a result.
            return args[0] if func._schema.name in _ASKS_GENERATOR else func(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            return self._on_device(
                func, args, {**kwargs, "device": torch.device("cpu")}, sys._getframe(1).f_back
            )
        kind, decoder, launching, _, remembered = self._kinds.get(id(func)) or self._classify(func)
        if kind == _HIGHER:
            return func(*args, **kwargs)
        if kind == _COLLECTIVE:
            return self._collective(func, args, kwargs, decoder)
        if kind == _WAIT:
            self._wait(args[0])
            # As the real operator does; the one for fake tensors makes another tensor.
            return args[0]
        if not remembered or torch._C._get_dispatch_mode(FAKE) is not None:
            result = func(*args, **kwargs)
            self._ran(func, args, kwargs, result, launching, sys._getframe(1).f_back)
            return result
        # Looking at shapes is no function of the program's, not even while its mode is active.
        with torch._C.DisableTorchFunction():
            result = self._memo.run(func, args, kwargs)
            self._ran(func, args, kwargs, result, launching, sys._getframe(1).f_back)
        return result

    def _on_device(self, func: Any, args: Any, kwargs: Any, frame: FrameType | None) -> Any:
        """Run an operator that torch's own code, below the program's, asks of the GPU."""
        given = tensors_in(args)
        if not given:
            with self._tensors.make():
                result = func(*args, **kwargs)
                self._ran(func, args, kwargs, result, launches(func), frame)
                return result
        if self._tensors.is_host(given[0]) and func._schema.name in ("aten::_to_copy", "aten::to"):
            return self._tensors.on_gpu(given[0], kwargs.get("dtype"))
        result = func(*args, **kwargs)
        self._ran(func, args, kwargs, result, launches(func), frame)
        return result

    def _are_subclasses(self, types: tuple[type, ...]) -> bool:
        answer = self._subclasses.get(types)
        if answer is None:
            answer = any(not issubclass(kind, FakeTensor) and not is_ordinary(kind) for kind in types)
            self._subclasses[types] = answer
        return answer

    def _classify(self, func: Any) -> tuple[int, Any, bool | None, Any, bool]:
        decoder, launching, remembered = None, None, False
        if isinstance(func, HigherOrderOperator):
            kind = _HIGHER
        elif (decoder := decoder_of(func)) is not None:
            kind = _COLLECTIVE
        elif is_wait(func):
            kind = _WAIT
        else:
            kind, launching, remembered = _PLAIN, launches(func), self._memo.takes(func)
        self._kinds[id(func)] = made = (kind, decoder, launching, func, remembered)
        return made

    def _ran(
        self, func: Any, args: Any, kwargs: Any, result: Any, launching: bool | None, frame: FrameType | None
    ) -> None:
        made = [tensor for tensor in tensors_in(result) if isinstance(tensor, FakeTensor)]
        given = [tensor for tensor in tensors_in(args) if isinstance(tensor, FakeTensor)]
        if not made and not given:
            return
        storages = self.storages
        tensors = self._tensors
        if not tensors.making and all(tensors.is_host(tensor) for tensor in given):
            # All of it is on the host. The device may be asked for a tensor like one of the host.
            for tensor in made:
                tensors.note_host(tensor)
            return
        if func._schema.name in _COUNTS and made:
            self.note_total(made[0], given[0].numel())
        elif func._schema.name in _KEEPS_COUNTS and given and made:
            total = self.total_of(given[-1])
            if total is not None:
                self.note_total(made[0], total)
        fresh = [tensor for tensor in made if not storages.knows(tensor)]
        launched = launching if launching is not None else bool(fresh)
        if self.attribution is None:
            for tensor in fresh:
                storages.born(tensor, op_text(func), self._line(frame), 0)
            return
        if not launched and not fresh:
            return
        order = self._timeline.next()
        place = self.attribution.place(frame, tuple(given[:2]))[0]
        storages.phase = place.phase
        for tensor in fresh:
            storages.born(tensor, op_text(func), place, order)
        if launched:
            self._op(func, args, kwargs, result, place, order)

    def _line(self, frame: FrameType | None) -> Place:
        """Return the line that asked; a tensor made there is no activation, whatever ran."""
        return Place("other", source=self._stack.user_line(frame))

    def _op(self, func: Any, args: Any, kwargs: Any, result: Any, place: Place, order: int) -> None:
        assert self.step is not None
        work = Work(func, args, kwargs, result, has_cudnn=self.has_cudnn)
        self.ops.append(
            DryOp(
                step=self.step,
                rank=self._rank,
                order=order,
                op=op_text(func),
                kind=work.kind,
                phase=place.phase,
                flops=work.flops,
                read_bytes=work.read_bytes,
                written_bytes=work.written_bytes,
                dtype=work.dtype,
                stream=self._timeline.current.name,
                module=place.module,
                parameter=place.parameter,
                source=place.source,
                shapes=shapes_text(work.given[:8]),
                fused=self.region(),
                elements=work.elements,
                **work.columns,
            )
        )

    def copied(self, tensor: torch.Tensor, to_device: bool) -> None:
        """Note a copy between host and device, of which `tensor` is the result."""
        storages = self.storages
        if to_device:
            storages.born(tensor, "aten._to_copy.default", self._line(sys._getframe(1)), self._timeline.order)
        else:
            storages.discard(tensor)
        if self.attribution is None or self.step is None:
            return
        order = self._timeline.next()
        place = self.attribution.place(sys._getframe(1), ())[0]
        nbytes = int(tensor.nbytes)
        self.ops.append(
            DryOp(
                step=self.step,
                rank=self._rank,
                order=order,
                op="memcpy.to_device" if to_device else "memcpy.to_host",
                kind="copy",
                phase=place.phase,
                flops=0,
                read_bytes=0 if to_device else nbytes,
                written_bytes=nbytes if to_device else 0,
                dtype=str(tensor.dtype).removeprefix("torch."),
                stream=self._timeline.current.name,
                module=place.module,
                source=place.source,
                elements=tensor.numel(),
            )
        )

    # -- collectives and waits -------------------------------------------------------------------------

    def _collective(self, func: Any, args: Any, kwargs: Any, decoder: Any) -> Any:
        arguments = arguments_of(func, args, kwargs)
        try:
            calls = decoder(arguments)
        except UNDECODED:
            calls = ()
        stream = self._stream_of(arguments, calls)
        first = self._timeline.order
        if self.step is not None and calls:
            current = self._timeline.current.name
            if stream != current:
                # The group's own stream begins when the earlier work of the current one is done.
                self._timeline.wait(stream, current, self._timeline.order)
            for _ in calls:
                self.issued.append((self._timeline.next(), stream))
            first = self.issued[-1][0]
        # A functional one has its number taken away: torch's wrapper of its result cannot hold one.
        native = func.namespace == "c10d" and bool(calls)
        exchanged = Exchanged(calls[0], arguments) if native else None
        result = self._issued(func, args, kwargs)
        if exchanged is not None:
            assumed = exchanged.note()
            if assumed is not None:
                self.assumed(assumed)
        self.sent(arguments.get("tensors") or tensors_in(args)[:1])
        for tensor in tensors_in(result):
            if isinstance(tensor, FakeTensor) and not self.storages.knows(tensor):
                if any(self._tensors.is_host(given) for given in tensors_in(args)[:1]):
                    self._tensors.note_host(tensor)
                else:
                    self.storages.born(tensor, op_text(func), None, first)
        self._carry_total(calls, arguments, result)
        fakes = [t for t in (*tensors_in(args), *tensors_in(result)) if isinstance(t, FakeTensor)]
        if self.step is not None:
            for tensor in fakes:
                self.storages.mark_communication(tensor)
            for tensor in tensors_in(result):
                self._results[tensor.untyped_storage()._cdata] = first, stream
        return result

    def _carry_total(self, calls: Any, arguments: dict[str, Any], result: Any) -> None:
        """Have the counts that an all_to_all exchanges add up to what this rank sent: all ranks behave like
        this one."""
        if not calls or calls[0].op != "all_to_all":
            return
        outputs = tensors_in(arguments.get("output", arguments.get("output_tensors"))) or tensors_in(result)
        inputs = tensors_in(arguments.get("input", arguments.get("input_tensors")))
        total = self.total_of(inputs[0]) if inputs and isinstance(inputs[0], FakeTensor) else None
        if total is not None:
            for tensor in outputs[:1]:
                self.note_total(tensor, total)

    def _issued(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            if func.namespace == "_c10d_functional":
                args = tree_map(_without_number, args)
            return func(*args, **kwargs)
        except UnsupportedOperatorException:
            # torch knows no result of it for fake tensors: it works in place, and a stand-in gets its Work.
            stand_in = torch.empty(1)
            tensors = tree_map(lambda value: stand_in if isinstance(value, FakeTensor) else value, args)
            made = func(*tensors, **kwargs)
            given = next((value for value in args if isinstance(value, (list, torch.Tensor))), None)
            return (given, *made[1:]) if isinstance(made, tuple) and len(made) > 1 else made

    def _stream_of(self, arguments: dict[str, Any], calls: Any) -> str:
        """Return the stream that NCCL runs it on: the current one if synchronous, else the group's."""
        if arguments.get("asyncOp") is False or arguments.get("async_op") is False:
            return self._timeline.current.name
        group = calls[0].group if calls else None
        name = getattr(group, "group_name", None) or "?"
        return f"group:{name}"

    def _wait(self, tensor: torch.Tensor) -> None:
        issued = self._results.get(tensor.untyped_storage()._cdata)
        if issued is not None:
            order, stream = issued
            self._timeline.wait(self._timeline.current.name, stream, order + 1, order)

    def waited_for(self, order: int, stream: str) -> None:
        """Note that the current stream waits for a collective."""
        self._timeline.wait(self._timeline.current.name, stream, order + 1, order)

    def _waited(
        self, order: int, stream: str | None, for_stream: str, for_order: int, collective: int | None
    ) -> None:
        if self.step is None:
            return
        place = NOWHERE
        self.waits.append(
            DryWait(
                self.step,
                self._rank,
                order,
                stream,
                for_stream,
                for_order,
                collective,
                self.storages.phase,
                place.source,
            )
        )


def _without_number(value: Any) -> Any:
    """Return a fake tensor that torch knows the number of without it: torch would reduce nothing."""
    if type(value) is not FakeTensor or value.constant is None:
        return value
    with value.fake_mode:
        # Not like the tensor itself: that would have a number too.
        return torch.empty(value.shape, dtype=value.dtype)
