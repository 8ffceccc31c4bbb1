"""Records one region after another: what the dispatch mode sees goes in, rows of the ledger come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from shardtoll.ledger.record import Notice, StepRows
from shardtoll.profiler.accounting import Interval
from shardtoll.profiler.live.attribute import Attribution, replicated_dims
from shardtoll.profiler.live.call import Call, Tensors
from shardtoll.profiler.live.callsite import Site
from shardtoll.profiler.live.clearing import Clearing
from shardtoll.profiler.live.clock import Clock
from shardtoll.profiler.live.cuts import Cuts
from shardtoll.profiler.live.device_times import DeviceReading, DeviceTimes, RegionEvents
from shardtoll.profiler.live.excluded import Excluded
from shardtoll.profiler.live.fingerprint import Fingerprint, Fingerprints
from shardtoll.profiler.live.flops import operands
from shardtoll.profiler.live.groups import Groups
from shardtoll.profiler.live.held import HeldRegion, HeldRegions
from shardtoll.profiler.live.lost_time import Between
from shardtoll.profiler.live.names import Names, address_of
from shardtoll.profiler.live.op_text import op_text, shapes_text
from shardtoll.profiler.live.pending import (
    NOWHERE,
    Fetch,
    Outcome,
    PendingCollective,
    PendingCompute,
    Place,
    Reads,
    Region,
    UnseenAfter,
    Wait,
)
from shardtoll.profiler.live.results import Results
from shardtoll.profiler.live.rows import make_rows
from shardtoll.profiler.live.sequence import Template, Templates, key_of
from shardtoll.profiler.live.spans import RawSpan, SpanRecorder, compiles, in_backward
from shardtoll.profiler.live.tracing import MOST_OPERATORS, Tracer
from shardtoll.profiler.live.unknown_times import ON_FAKE, times_unknown

Issued: TypeAlias = Sequence[tuple[PendingCollective, Call]]
"""The collectives of one operator, in the order in which it issues them."""


class EndedRegion(NamedTuple):
    """A watched region that has ended."""

    region: Region
    end_ns: int
    at_end: dict[str, int | None]
    """The groups' own counts then."""
    events: RegionEvents | None
    """The device's events of it, where those are taken."""


class Numbered(Protocol):
    """A call whose group's count can be asked for."""

    @property
    def call(self) -> Call:
        """The call, decoded."""

    @property
    def count(self) -> Callable[[], int | None]:
        """Returns the group's own count."""


class Recorder:
    """Holds the region being recorded. Its methods are called on the training thread only."""

    def __init__(
        self, rank: int, names: Names, groups: Groups, clock: Clock, *, host_times: bool, ranks: int = 1
    ) -> None:
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
        self.device: DeviceTimes | None = None
        """Takes the device's times, where operators run behind the host and it can be timed."""
        self._held = HeldRegions()
        self.fingerprints = Fingerprints()
        self.results = Results(self.fingerprints)
        self.cuts = Cuts(self.fingerprints, ranks)
        self.optimizer_steps = 0
        """Finished since the session was opened."""
        self.clearing = Clearing(names)
        self.in_optimizer = False
        """Whether a step of an optimizer runs: a closure's backward passes are no micro-batches."""
        self.spans = SpanRecorder()
        self.tracer: Tracer | None = None
        """Traces the first steps, where that was asked for."""
        self._early_spans: list[RawSpan] = []
        """Spans of the region up to where its recording was given up."""
        self._spanless = False
        """Whether the region has no spans to record: nothing in it is transferred or compiled."""
        self.threads: dict[int, str] = {}
        """Thread of the transport -> the group it serves."""
        self.templates: Templates | None = None
        """The sequences of surveyed steps, where watched ones are to take their causes from them."""
        self.site: Site | None = None
        """Where the call was made that the operators now run stand behind; None: not by Python."""
        self.works: dict[int, int] = {}
        """id of a Work -> the collective that it stands for."""
        self.learnt: tuple[Template, bool] | None = None
        """What the last surveyed step has taught, and whether it was new."""
        self.between = Between()
        """What happened since the last step."""
        self.reading_since_ns = 0
        """When the value of a tensor subclass was asked for, until it is read; else 0."""
        self._results: dict[int, int] = {}
        self._drained_task = -1
        self._issued_by_cpp = False
        self.cpp_since_ns = 0
        """When C++ last issued a collective outside backward, until the next operator; else 0."""

    # -- regions ---------------------------------------------------------------------------------

    def begin(self, step: int | None, *, watched: bool = False) -> None:
        """Begin a region: a step, or with None the time between steps, where only collectives count.

        `watched`: no mode is active, and whoever watches sees to the transport's spans.
        """
        self.attribution.new_step()
        self.in_optimizer = False
        self._results.clear()
        self.results.clear()
        self.cuts.clear()
        self.works.clear()
        if watched:
            self._begin(step, watched=True)
            return
        # Between steps the user's own profiler may start: there the transport's times stay unknown.
        traced = step is not None and self.tracer is not None and self.tracer.begin(step)
        if self.host_times and step is not None and not traced:
            # Starting and stopping the profiler is dear, and slows every range that FSDP2 marks.
            self._spanless = self.groups.all_fake() and not compiles()
            if not self._spanless:
                self.spans.start()
        self._begin(step, watched=False)

    def _begin(self, step: int | None, *, watched: bool) -> None:
        base = torch._C._autograd._get_sequence_nr()
        numbers = self.groups.sequence_numbers()
        light = watched or step is None
        if self.templates is not None:
            self.templates.begin()
        self.region = Region(step, 0, numbers, light=light, watched=watched, node_base=base)
        self.reading_since_ns = 0
        if step is not None:
            self.region.before = self.between.take()
        if self.device is not None:
            self.device.begin()
        self.region.start_ns = self.now_ns()

    def end_watched(self) -> EndedRegion | None:
        """End a watched region."""
        end_ns = self.now_ns()
        events = None if self.device is None else self.device.end()
        region, self.region = self.region, None
        if region is None:
            return None
        self.between.ended(region, end_ns)
        return EndedRegion(region, end_ns, self.groups.sequence_numbers(), events)

    def end(self) -> StepRows | None:
        """End the region and return its rows; None when none was begun, or the device has still to pass it.

        Such rows come from `finished`, then or later.
        """
        end_ns = self.now_ns()
        events = None if self.device is None else self.device.end()
        region, self.region = self.region, None
        if region is None:
            return None
        self.between.ended(region, end_ns)
        raw = self._stop_spans(region)
        self.results.finish(unseen_reads=compiles())
        taken = self.fingerprints.collect()
        at_end = self.groups.sequence_numbers()
        self.learnt = None
        if self.templates is not None and region.step is not None:
            self.learnt = self.templates.learn(region, at_end)

        def finish(prints: Sequence[Fingerprint], device: DeviceReading | None) -> StepRows:
            notices = self._notices(region, raw, device)
            rows = make_rows(
                region,
                end_ns,
                rank=self.rank,
                spans=raw,
                threads=self.threads,
                prints=prints,
                sequence_at_end=at_end,
                mesh_dim_of=self.groups.mesh_dim,
                clock=self.clock,
                epoch_ns=self.epoch_ns,
                host_times=self.host_times,
                device=device,
            )
            return replace(rows, notices=notices)

        if self.device is None:
            return finish(taken.read(), None)
        self._held.add(HeldRegion(events, taken, finish))
        return None

    def hold(self, events: RegionEvents | None, finish: Callable[[DeviceReading | None], StepRows]) -> None:
        """Hold a watched region back until the device has passed it; `finished` returns its rows then."""
        taken = self.fingerprints.collect()
        self._held.add(HeldRegion(events, taken, lambda _prints, device: finish(device)))

    def finished(self, *, wait: bool = False) -> list[StepRows]:
        """Return rows held back for the device that can be made now; with `wait` (after all steps) all."""
        return self._held.take(wait=wait)

    def abandon(self) -> None:
        """Give up the region without rows, in the midst of whatever runs; `drop` is still to come.

        torch's profiler goes on: to stop it while gloo's threads tell it of their work can corrupt memory
        (torch 2.13: about one run in ten died of it).
        """
        self.region = None
        self.results.clear()
        self.cuts.clear()
        if self.device is not None:
            self.device.drop()

    def drop(self) -> None:
        """Give up the region without rows."""
        self.region = None
        self.results.clear()
        self.cuts.clear()
        self.clearing.forget()
        if self.device is not None:
            self.device.drop()
        self._early_spans = []
        self._spanless = False
        if self.tracer is not None and self.tracer.recording:
            self.tracer.drop()
        else:
            self.spans.stop()

    def _stop_spans(self, region: Region) -> list[RawSpan] | None:
        if self.tracer is not None and self.tracer.recording:
            # The gradient check's own work is no part of the step, but the trace cannot know that.
            return self.tracer.end(region.step, whole=not region.excluded)
        early, self._early_spans = self._early_spans, []
        if self._spanless:
            self._spanless = False
            return early
        late = self.spans.stop()
        return None if late is None else early + late

    def _bound_trace(self, region: Region) -> None:
        """Give up the trace of a step so long that its recording would fill the memory."""
        if self.tracer is None or not self.tracer.recording or len(region.ran) // 4 <= MOST_OPERATORS:
            return
        if in_backward():
            # No recording can be ended there.
            return
        self._early_spans = self.tracer.give_up(region.step) or []
        if self.host_times:
            self.spans.start()

    def keep_spans(self) -> None:
        """See that the transport's spans are recorded, over as many regions as come until they are taken."""
        if not self.spans.running:
            self.spans.start()

    def take_spans(self) -> list[RawSpan] | None:
        """End the recording that `keep_spans` began and return its spans; None where it could not be had."""
        if self.tracer is not None and self.tracer.recording:
            return None
        return self.spans.stop()

    def _notices(
        self, region: Region, raw: list[RawSpan] | None, device: DeviceReading | None
    ) -> tuple[Notice, ...]:
        if region.step is None and not region.collectives:
            return ()
        spans = raw is not None or not region.collectives or region.step is None
        text = ON_FAKE if region.fake else times_unknown(self.host_times, spans=spans, device=device)
        return () if text is None else (Notice(self.rank, "times-unknown", text, region.step),)

    # -- events ----------------------------------------------------------------------------------

    def issue(self, call: Call, frame: FrameType | None, issue_ns: int) -> PendingCollective:
        """Note a collective about to be issued, in place and order."""
        assert self.region is not None
        place, cause = self.attribution.place(frame, call.inputs)
        pending = self._pending(call, place, issue_ns, self._tickets(call.inputs))
        if self.site is not None and self.templates is not None:
            pending.key = key_of(pending, self.region, self.site)
        if in_backward():
            self.watch_drain(pending)
        elif cause.issuer is None:
            self._issued_by_cpp = True
        if not self.region.light:
            pending.optimizer_steps = None if self.in_optimizer else self.optimizer_steps
            pending.gradients_begun = self.clearing.begun
            ticket = self.cuts.ticket_of(call)
            if ticket is not None:
                pending.outcome = Outcome(cut_from=ticket)
        return pending

    def bare(self, call: Call) -> PendingCollective:
        """Return what a call says by itself: without a place, a number, a time and fingerprints."""
        return self._pending(call, NOWHERE, 0, None)

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
            group_rank=None if group_rank < 0 else group_rank,
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

    def issued_alone(self, pending: PendingCollective, said: Numbered, result: Any) -> None:
        """Note that a watched collective has been handed over; its `seq` is its group's count of before."""
        region = self.region
        assert region is not None
        before = pending.seq
        if before is not None:
            after, counted = said.count(), said.call.counted
            grown = 0 if after is None else after - before
            pending.growth = min(grown, counted)
            pending.seq = after if grown <= counted and not said.call.unnumbered else None
        if isinstance(result, torch.Tensor):
            self._results[address_of(result)] = len(region.collectives)
        elif isinstance(result, (list, tuple)):
            addresses = [address_of(tensor) for tensor in result if isinstance(tensor, torch.Tensor)]
            self._results.update(dict.fromkeys(addresses, len(region.collectives)))
        region.collectives.append(pending)

    def issued(self, calls: Issued, result: Any) -> None:
        """Note that the collectives of one operator have been handed over: one, or a batch."""
        assert self.region is not None
        self._bound_trace(self.region)
        self._number(calls)
        if self.device is not None:
            for pending, _ in calls:
                self.device.issued(pending)
        if self._issued_by_cpp:
            self._issued_by_cpp = False
            self.cpp_since_ns = self.now_ns()
            if self.device is not None:
                self.device.drain_begun(calls[-1][0])
        results = result if isinstance(result, (list, tuple)) else (result,)
        for place, (pending, _) in enumerate(calls):
            index = len(self.region.collectives)
            self.region.collectives.append(pending)
            for tensor in results if len(calls) == 1 else results[place : place + 1]:
                if isinstance(tensor, torch.Tensor):
                    self._results[address_of(tensor)] = index

    def cpp_returned(self, at_ns: int) -> None:
        """Note the next operator after C++ issued a collective: up to here C++ may have waited for it."""
        if self.region is not None:
            self.region.drains.append((self.cpp_since_ns, at_ns))
        self.cpp_since_ns = 0
        if self.device is not None:
            self.device.drain_ended()

    def issued_as(self, tensor: Any) -> PendingCollective | None:
        """Return the functional collective whose result this is; None where it is not known."""
        index = self._results.get(address_of(tensor)) if isinstance(tensor, torch.Tensor) else None
        return None if index is None or self.region is None else self.region.collectives[index]

    def waited_for(self, tensor: Any, start_ns: int, end_ns: int) -> None:
        """Note that the thread waited for a functional collective's result."""
        owner = self._results.get(address_of(tensor)) if isinstance(tensor, torch.Tensor) else None
        self.waited(owner, start_ns, end_ns)

    def waited_for_work(self, work: Any, start_ns: int, end_ns: int) -> None:
        """Note that the thread waited for a collective handed to it as a Work."""
        self.waited(self.works.pop(id(work), None), start_ns, end_ns)

    def waited(self, owner: int | None, start_ns: int, end_ns: int) -> None:
        """Note that the thread was blocked; `owner` indexes the collective, None where it is not known."""
        if self.region is not None:
            self.region.waits.append(Wait(start_ns, end_ns, owner))

    def waited_for_future(self, _future: Any, start_ns: int, end_ns: int) -> None:
        """Note that the thread was blocked on a future: on a collective, while one was in flight."""
        if self.region is not None:
            self.region.drains.append((start_ns, end_ns))

    def computed(
        self,
        func: Any,
        flops: int,
        moved: int,
        tensors: Tensors,
        outputs: Tensors,
        frame: FrameType | None,
        ran: Interval,
    ) -> None:
        """Note an operator with FLOPs that has run (or, on an accelerator, was launched)."""
        assert self.region is not None
        self._bound_trace(self.region)
        data = operands(func)
        place, cause = self.attribution.place(frame, tensors[data])
        inputs, results = self._tickets(tensors), self._tickets(outputs)
        self.region.computes.append(
            PendingCompute(
                op=op_text(func),
                flops=flops,
                moved_bytes=moved,
                shapes=shapes_text(tensors),
                place=place,
                start_ns=ran[0],
                end_ns=ran[1],
                replicated_over=replicated_dims(self.attribution.specs.of(func, cause)),
                input_tickets=inputs,
                output_tickets=results,
                telling=(*(inputs or ())[data], *(results or ())),
            )
        )

    def fetched(self, start_ns: int, end_ns: int, name: str, batch: bool, frame: FrameType) -> None:
        """Note that the training thread fetched from a DataLoader."""
        if self.region is not None:
            source = self.attribution.stack.user_line(frame)
            self.region.fetches.append(Fetch(start_ns, end_ns, name, source, batch))

    def read(self, func: Any, frame: FrameType | None, ran: Interval) -> None:
        """Note that the host has read a value of a tensor, which Python asked for in `frame`."""
        region = self.region
        since_ns, self.reading_since_ns = self.reading_since_ns or ran[0], 0
        if region is None or frame is None:
            return
        key = id(frame.f_code), frame.f_lasti
        reads = region.reads.get(key)
        if reads is None:
            if self.attribution.stack.reads_for_itself(frame):
                return
            place, _ = self.attribution.place(frame)
            reads = Reads(op_text(func).removesuffix(".default"), place.phase, place.module, place.source)
            region.reads[key] = reads
        blocked_ns = 0
        for wait in reversed(region.waits):
            if wait.start_ns < since_ns:
                break
            blocked_ns += wait.end_ns - wait.start_ns
        reads.count += 1
        reads.read_ns += ran[1] - ran[0]
        reads.blocked_ns += blocked_ns

    def _tickets(self, tensors: Tensors) -> list[int] | None:
        tickets = [self.fingerprints.take(tensor) for tensor in tensors]
        known = [ticket for ticket in tickets if ticket is not None]
        return known if tickets and len(known) == len(tickets) else None

    def _drained_on_device(self, pending: PendingCollective | None) -> DeviceTimes | None:
        """Return who times the drain on the device: only where C++ waits there, other waits are seen.

        `pending` is what was issued, None where it was C++ that issued.
        """
        by_ddp = pending is None or pending.place.waits_in_cpp
        return self.device if by_ddp else None

    def watch_drain(self, pending: PendingCollective | None = None, *, at_root: bool = False) -> None:
        """Have the time noted in which the end-of-backward callbacks of this backward run.

        DDP's reducer waits for its buckets in such a callback, in C++. Ours are queued now, before it
        queues its own, and the second one only when the first runs, after it: they enclose it.

        `at_root`: the backward is only beginning.
        """
        engine = torch.autograd.Variable._execution_engine
        region = self.region
        assert region is not None
        if not at_root and torch._C._current_autograd_node() is None:
            # Such a callback runs already, as in DDP's first step with a static graph, which issues and
            # waits in one: what is queued now runs when that returns.
            self._drain_until_callback(region, pending)
            return
        task = torch._C._current_graph_task_id()
        if task == self._drained_task:
            return
        self._drained_task = task

        engine.queue_callback(lambda: self._drain_until_callback(region, pending))

    def _drain_until_callback(self, region: Region, pending: PendingCollective | None) -> None:
        """Have a drain noted from now to when the callbacks queued so far have run."""
        device = self._drained_on_device(pending)
        begun_ns = self.now_ns()
        if device is not None and region is self.region:
            last = region.collectives[-1] if region.collectives else pending
            owner = UnseenAfter(last) if region.watched else last
            device.guarded(lambda: device.drain_begun(owner), None)

        def end() -> None:
            region.drains.append((begun_ns, self.now_ns()))
            if device is not None and region is self.region:
                device.guarded(device.drain_ended, None)

        torch.autograd.Variable._execution_engine.queue_callback(end)

    def excluded(self) -> Excluded:
        """Return a context in which collectives belong to us or the gradient check, not to the step."""
        return Excluded(self)
