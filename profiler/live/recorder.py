"""Records one region after another: what the dispatch mode sees goes in, rows of the ledger come out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import FrameType
from typing import Any, TypeAlias

import torch

from shardtoll.ledger.record import Notice, StepRows
from shardtoll.profiler.accounting import Interval
from shardtoll.profiler.live.attribute import Attribution, replicated_dims
from shardtoll.profiler.live.call import Call, Tensors
from shardtoll.profiler.live.clock import Clock
from shardtoll.profiler.live.fingerprint import Fingerprints
from shardtoll.profiler.live.groups import Groups
from shardtoll.profiler.live.names import Names
from shardtoll.profiler.live.pending import PendingCollective, PendingCompute, Place, Region, Wait
from shardtoll.profiler.live.rows import make_rows
from shardtoll.profiler.live.spans import RawSpan, SpanRecorder
from shardtoll.profiler.live.tracing import MOST_OPERATORS, Tracer

_SHORT_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
}


@functools.lru_cache(maxsize=4096)
def _shape_text(dtype: torch.dtype, shape: torch.Size) -> str:
    name = _SHORT_DTYPES.get(dtype, str(dtype).removeprefix("torch."))
    return f"{name}[{','.join(map(str, shape))}]"


def shapes_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return shapes as `f32[64,32] f32[32,16]`."""
    return " ".join(_shape_text(t.dtype, t.shape) for t in tensors)


Issued: TypeAlias = Sequence[tuple[PendingCollective, Call]]
"""The collectives of one operator, in the order in which it issues them."""


class Recorder:
    """Holds the region being recorded. Its methods are called on the training thread only."""

    def __init__(self, rank: int, names: Names, groups: Groups, clock: Clock, *, host_times: bool) -> None:
        self.rank = rank
        self.clock = clock
        self.now_ns = clock.monotonic_ns
        self.epoch_ns = clock.to_unix(clock.monotonic_ns())
        self.groups = groups
        self.names = names
        self.host_times = host_times
        """Whether operators are done when they return; not so on accelerators."""
        self.attribution = Attribution(names, groups)
        self.region: Region | None = None
        self._fingerprints = Fingerprints()
        self.spans = SpanRecorder()
        self.tracer: Tracer | None = None
        """Traces the first steps, where that was asked for."""
        self._early_spans: list[RawSpan] = []
        """Spans of the region up to where its recording was given up."""
        self._threads: dict[int, str] = {}
        self._results: dict[int, int] = {}
        self._drained_task = -1
        self._issued_by_cpp = False
        self.cpp_since_ns = 0
        """When C++ last issued a collective outside backward, until the next operator; else 0."""

    # -- regions ---------------------------------------------------------------------------------

    def begin(self, step: int | None) -> None:
        """Begin a region: a step, or with None the time between steps, where only collectives count."""
        self.attribution.new_step()
        self._results.clear()
        # Between steps the user's own profiler may start: there the transport's times stay unknown.
        traced = step is not None and self.tracer is not None and self.tracer.begin(step)
        if self.host_times and step is not None and not traced:
            self.spans.start()
        self.region = Region(step, 0, self.groups.sequence_numbers(), light=step is None)
        self.region.start_ns = self.now_ns()

    def end(self) -> StepRows | None:
        """End the region and return its rows; None when none was begun."""
        end_ns = self.now_ns()
        region, self.region = self.region, None
        if region is None:
            return None
        raw = self._stop_spans(region)
        prints = self._fingerprints.read()
        notices = self._notices(region, raw)
        rows = make_rows(
            region,
            end_ns,
            rank=self.rank,
            spans=raw,
            threads=self._threads,
            prints=prints,
            sequence_at_end=self.groups.sequence_numbers(),
            mesh_dim_of=self.groups.mesh_dim,
            clock=self.clock,
            epoch_ns=self.epoch_ns,
            host_times=self.host_times,
        )
        return StepRows(rows.step, rows.collectives, rows.computes, rows.counts, notices)

    def abandon(self) -> None:
        """Give up the region without rows, in the midst of whatever runs; `drop` is still to come.

        torch's profiler goes on: to stop it while gloo's threads tell it of their work can corrupt memory
        (torch 2.13: about one run in ten died of it).
        """
        self.region = None

    def drop(self) -> None:
        """Give up the region without rows."""
        self.region = None
        self._early_spans = []
        if self.tracer is not None and self.tracer.recording:
            self.tracer.drop()
        else:
            self.spans.stop()

    def _stop_spans(self, region: Region) -> list[RawSpan] | None:
        if self.tracer is not None and self.tracer.recording:
            # The gradient check's own work is no part of the step, but the trace cannot know that.
            return self.tracer.end(region.step, whole=not region.excluded)
        early, self._early_spans = self._early_spans, []
        late = self.spans.stop()
        return None if late is None else early + late

    def _bound_trace(self, region: Region) -> None:
        """Give up the trace of a step so long that its recording would fill the memory."""
        if self.tracer is None or not self.tracer.recording or len(region.operators) <= MOST_OPERATORS:
            return
        self._early_spans = self.tracer.give_up(region.step) or []
        if self.host_times:
            self.spans.start()

    def _notices(self, region: Region, raw: list[RawSpan] | None) -> tuple[Notice, ...]:
        if not self.host_times:
            text = "device times are not captured live on this device: durations and exposed time are unknown"
        elif raw is None and region.collectives and region.step is not None:
            text = (
                "torch's profiler could not be used (another one runs, or this torch lacks it): "
                "start and duration of collectives are unknown"
            )
        else:
            return ()
        return (Notice(self.rank, "times-unknown", text, region.step),)

    # -- events ----------------------------------------------------------------------------------

    def issue(self, call: Call, frame: FrameType, issue_ns: int) -> PendingCollective:
        """Note a collective about to be issued, in place and order."""
        assert self.region is not None
        place, cause = self.attribution.place(frame, call.inputs)
        pending = self._pending(call, place, issue_ns, self._tickets(call.inputs))
        if torch._C._current_graph_task_id() != -1:
            self._watch_drain()
        elif cause.issuer is None:
            self._issued_by_cpp = True
        return pending

    def _pending(
        self, call: Call, place: Place, issue_ns: int, tickets: list[int] | None
    ) -> PendingCollective:
        group = self.groups.record(call.group)
        size = group.size
        group_rank = group.ranks.index(self.rank) if self.rank in group.ranks else -1
        pending = PendingCollective(
            op=call.op,
            group=group.name,
            group_size=size,
            dtype=call.dtype,
            message_bytes=call.message_bytes,
            wire_bytes=call.wire_bytes(size, group_rank),
            reduce_op=call.reduce_op,
            root=None if call.root is None or not 0 <= call.root < size else group.ranks[call.root],
            place=place,
            issue_ns=issue_ns,
            tickets=tickets,
        )
        pending.seq = self.groups.sequence_number(call.group)
        return pending

    def _number(self, calls: Issued) -> None:
        """Give the collectives of one operator their sequence numbers, unless another one cut in."""
        first, call = calls[0]
        before, after = first.seq, self.groups.sequence_number(call.group)
        grown = 0 if before is None or after is None else after - before
        counted = sum(call.counted for _, call in calls)
        # A batch takes a number for each of its calls, or (coalesced) one for all of them, if any.
        each = len(calls) > 1 and grown >= counted
        for later, (pending, call) in zip(reversed(range(len(calls))), calls, strict=True):
            pending.growth = call.counted if each else min(grown, counted) if later == 0 else 0
            number = after - later if each and after is not None else after
            pending.seq = number if grown <= counted and not call.unnumbered else None

    def issue_elsewhere(self, call: Call, frame: FrameType) -> PendingCollective | None:
        """Note a collective about to be issued on another thread than the training's."""
        if self.region is None:
            return None
        return self._pending(call, self.attribution.place_elsewhere(frame), self.now_ns(), None)

    def issued_elsewhere(self, calls: Issued) -> None:
        """Note that another thread has handed its collectives over."""
        self._number(calls)
        region = self.region
        if region is not None:
            region.elsewhere.extend(pending for pending, _ in calls)

    def issued(self, calls: Issued, result: Any) -> None:
        """Note that the collectives of one operator have been handed over: one, or a batch."""
        assert self.region is not None
        self._bound_trace(self.region)
        self._number(calls)
        if self._issued_by_cpp:
            self._issued_by_cpp = False
            self.cpp_since_ns = self.now_ns()
        results = result if isinstance(result, (list, tuple)) else (result,)
        for place, (pending, _) in enumerate(calls):
            index = len(self.region.collectives)
            self.region.collectives.append(pending)
            for tensor in results if len(calls) == 1 else results[place : place + 1]:
                if isinstance(tensor, torch.Tensor):
                    self._results[tensor.data_ptr()] = index

    def cpp_returned(self, at_ns: int) -> None:
        """Note the next operator after C++ issued a collective: up to here C++ may have waited for it."""
        if self.region is not None:
            self.region.drains.append((self.cpp_since_ns, at_ns))
        self.cpp_since_ns = 0

    def waited_for(self, tensor: Any, start_ns: int, end_ns: int) -> None:
        """Note that the thread waited for a functional collective's result."""
        owner = self._results.get(tensor.data_ptr()) if isinstance(tensor, torch.Tensor) else None
        self.waited(owner, start_ns, end_ns)

    def waited(self, owner: int | None, start_ns: int, end_ns: int) -> None:
        """Note that the thread was blocked; `owner` indexes the collective, None where it is not known."""
        if self.region is not None:
            self.region.waits.append(Wait(start_ns, end_ns, owner))

    def waited_for_future(self, start_ns: int, end_ns: int) -> None:
        """Note that the thread was blocked on a future: on a collective, while one was in flight."""
        if self.region is not None:
            self.region.drains.append((start_ns, end_ns))

    def computed(
        self,
        func: Any,
        flops: int,
        tensors: Tensors,
        outputs: Tensors,
        frame: FrameType,
        ran: Interval,
    ) -> None:
        """Note a matmul-like operator that has run (or, on an accelerator, was launched)."""
        assert self.region is not None
        self._bound_trace(self.region)
        place, cause = self.attribution.place(frame)
        self.region.computes.append(
            PendingCompute(
                op=str(func),
                flops=flops,
                shapes=shapes_text(tensors),
                place=place,
                start_ns=ran[0],
                end_ns=ran[1],
                replicated_over=replicated_dims(self.attribution.specs.of(func, cause)),
                input_tickets=self._tickets(tensors),
                output_tickets=self._tickets(outputs),
            )
        )

    def _tickets(self, tensors: Tensors) -> list[int] | None:
        tickets = [self._fingerprints.take(tensor) for tensor in tensors]
        known = [ticket for ticket in tickets if ticket is not None]
        return known if tickets and len(known) == len(tickets) else None

    def _watch_drain(self) -> None:
        """Have the time noted in which the end-of-backward callbacks of this backward run.

        DDP's reducer waits for its buckets in such a callback, in C++. Ours are queued now, before it
        queues its own, and the second one only when the first runs, after it: they enclose it.
        """
        engine = torch.autograd.Variable._execution_engine
        region = self.region
        assert region is not None
        if torch._C._current_autograd_node() is None:
            # Such a callback runs already, as in DDP's first step with a static graph, which issues and
            # waits in one: what is queued now runs when that returns.
            issued_ns = self.now_ns()
            engine.queue_callback(lambda: region.drains.append((issued_ns, self.now_ns())))
            return
        task = torch._C._current_graph_task_id()
        if task == self._drained_task:
            return
        self._drained_task = task

        def begin() -> None:
            begun_ns = self.now_ns()
            engine.queue_callback(lambda: region.drains.append((begun_ns, self.now_ns())))

        engine.queue_callback(begin)

    def excluded(self) -> Excluded:
        """Return a context in which collectives belong to us or the gradient check, not to the step."""
        return Excluded(self)


class Excluded:
    """Keeps what runs inside it out of the region: collectives out of the counts, time out of the step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._begun_ns = self._recorder.now_ns()
        self._before = self._recorder.groups.sequence_numbers()

    def __exit__(self, *_: object) -> None:
        region = self._recorder.region
        if region is None:
            return
        for name, after in self._recorder.groups.sequence_numbers().items():
            before = self._before.get(name, 0)
            if after is not None and before is not None:
                region.uncounted[name] = region.uncounted.get(name, 0) + after - before
        region.excluded.append((self._begun_ns, self._recorder.now_ns()))
