"""Records one region after another: what modes and doors see goes in, rows of the ledger come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from shardtoll.ledger.records.record import Notice
from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.profiler.live.capture.calls import Issued, Said, give_numbers, message_of
from shardtoll.profiler.live.capture.closures import Closures
from shardtoll.profiler.live.capture.lost_time import Between
from shardtoll.profiler.live.capture.rows import Ended, Passed, Setting, make_rows
from shardtoll.profiler.live.capture.sequence import Template, Templates, key_of
from shardtoll.profiler.live.capture.waiting import Waits
from shardtoll.profiler.live.cause.accounting import Interval
from shardtoll.profiler.live.cause.attribute import Attribution, replicated_dims
from shardtoll.profiler.live.cause.call import Call, Tensors
from shardtoll.profiler.live.cause.callsite import Site
from shardtoll.profiler.live.cause.frames import in_backward
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.module_names import Names, local_of
from shardtoll.profiler.live.cause.pending import (
    BatchSize,
    Fetch,
    PendingCollective,
    PendingCompute,
    Place,
    Reads,
    Region,
    Surveyed,
)
from shardtoll.profiler.live.flight.flight import Flight
from shardtoll.profiler.live.times.awake import Awake, Moment, Stretch, between
from shardtoll.profiler.live.times.clearing import Clearing
from shardtoll.profiler.live.times.clock import Clock
from shardtoll.profiler.live.times.device_times import DeviceReading, DeviceTimes, RegionEvents
from shardtoll.profiler.live.times.loading import Loading
from shardtoll.profiler.live.times.recording import ON_FAKE, Recording, times_unknown
from shardtoll.profiler.live.times.spans import RawSpan, compiles
from shardtoll.profiler.live.values.blank import blank
from shardtoll.profiler.live.values.contents import Contents
from shardtoll.profiler.live.values.cuts import Cuts
from shardtoll.profiler.live.values.fingerprint import Fingerprint, Fingerprints, TakenPrints
from shardtoll.profiler.live.values.operators import masks, op_text, operands, shapes_text
from shardtoll.profiler.live.values.results import Results


@dataclass(frozen=True, slots=True)
class _Held:
    """A region whose rows are still to be made, once the device, if there is one, has passed its events."""

    events: RegionEvents | None
    prints: TakenPrints
    finish: Callable[[Sequence[Fingerprint], DeviceReading | None], StepRows | Passed | None]
    surveyed: bool = True

    def ready(self) -> bool:
        """Whether its rows can be made without blocking."""
        return (self.events is None or self.events.ready()) and self.prints.ready()

    def rows(self) -> StepRows | Passed | None:
        """Make its rows, or say what they are made of, if it has any; blocks if it is not ready."""
        if self.events is not None and not self.events.ready():
            self.events.wait()
        return self.finish(self.prints.read(), None if self.events is None else self.events.read())


class Recorder:
    """Holds the region being recorded. Its methods are called on the training thread only.

    Others read `region`, `device` and `templates`; only the recorder sets them.
    """

    def __init__(
        self,
        rank: int,
        names: Names,
        groups: Groups,
        clock: Clock,
        *,
        host_times: bool,
        ranks: int = 1,
        templates: Templates | None = None,
    ) -> None:
        self.rank = rank
        self.groups = groups
        self.now_ns = clock.monotonic_ns
        self.setting = Setting(rank, clock, clock.to_unix(self.now_ns()), groups.mesh_dim, host_times)
        self.attribution = Attribution(names, groups)
        self.region: Region | None = None
        self.device: DeviceTimes | None = None
        """Takes the device's times, if operators run behind the host and it can be timed."""
        self.templates = templates
        """The sequences of surveyed steps, if watched ones are to take their causes from them."""
        self.recording = Recording(host_times=host_times)
        self.waits = Waits(self.now_ns)
        self.awake = Awake()
        self.loading: Loading | None = None
        """Notes of loaders' calls; None until there are any."""
        self._awake_at_start: Moment | None = None
        """How long the training thread had been awake when the step began; None if unknown."""
        self.clearing = Clearing(names)
        self.fingerprints = Fingerprints()
        self.used: dict[int, int] = {}
        """Id of a parameter -> the last surveyed step in which an optimizer used its gradient."""
        self.results = Results(self.fingerprints)
        self.contents = Contents()
        self.cuts = Cuts(self.fingerprints, self.contents, ranks)
        self._held: deque[_Held] = deque()
        self._surveyed_held = 0
        """How many of them were surveyed."""
        self._between = Between()
        """Events since the last step."""
        self._site: Site | None = None
        """The call that issued the operators now running; None: not by Python."""
        self._optimizer_steps = 0
        """Finished since the session was opened."""
        self._in_optimizer = False
        """Whether a step of an optimizer runs: a closure's backward passes are no micro-batches."""
        self.closures = Closures()
        self.scales_losses = False
        """Whether a gradient scaler is at work. It leaves out values that it finds not finite, then or
        later."""
        self._issued_by_cpp = False
        self.flight = Flight(groups, rank, waits_block=host_times)
        """Notes each collective as it is issued, for readers that ask what a job hangs in."""
        self._of_other_threads: set[str] = set()
        """Groups that other threads have used: their counts and records may lie on two sides of a step's
        end."""
        self._value_asked_ns = 0
        """When the value of a tensor subclass was asked for, until it is read; else 0."""

    def time_device(self, device: DeviceTimes) -> None:
        """Have the device's own times taken from the next region on."""
        self.device = self.waits.device = device

    # -- regions ---------------------------------------------------------------------------------

    def begin(self, step: int | None, *, watched: bool = False) -> None:
        """Begin a region: a step, or with None the time between steps, in which only collectives count.

        `watched`: no mode is active, and whoever watches sees to the transport's spans.
        """
        self.attribution.new_step()
        self._in_optimizer = False
        self._value_asked_ns = 0
        self.results.clear()
        self.cuts.clear()
        self.contents.clear()
        if watched:
            # A step's own zeroing goes unseen; between steps a look at the values makes up for that.
            (self.clearing.uncleared.unseen if step is None else self.clearing.uncleared.forget)()
        else:
            self.recording.begin(step, lambda: self.groups.all_fake() and not compiles())
        base = torch._C._autograd._get_sequence_nr()
        numbers = self.groups.sequence_numbers()
        if self.templates is not None:
            self.templates.begin()
        region = Region(step, 0, numbers, light=watched or step is None, watched=watched, node_base=base)
        region.of_other_threads = self._of_other_threads
        if step is not None:
            region.before = self._between.take()
        self.waits.begin(region)
        self.region = region
        if self.device is not None:
            self.device.begin()
        self._awake_at_start = None if step is None else self.awake.now()
        region.start_ns = self.now_ns()
        self.flight.begin(step, region.start_ns)

    def in_no_step(self) -> None:
        """Make the region, begun as a step, time between steps after all."""
        if self.region is not None:
            self.region.step = None

    def end_watched(self) -> Ended | None:
        """End a watched region; None when none was begun."""
        end_ns = self.now_ns()
        events = None if self.device is None else self.device.end()
        region, self.region = self.region, None
        self.waits.end()
        if region is None:
            return None
        self._between.ended(region, end_ns)
        thread = self._of_thread(region)
        return Ended(region, end_ns, self.groups.sequence_numbers(), events, thread=thread)

    def _of_thread(self, region: Region) -> Stretch | None:
        """Return how the training thread spent the step that has just ended; None if unknown."""
        begun, self._awake_at_start = self._awake_at_start, None
        return None if begun is None or region.excluded else between(begun, self.awake.now())

    def end(self) -> tuple[int, tuple[Template, bool] | None]:
        """End a surveyed region; return how many rows it has, and what its sequence taught and if it was new.

        The rows come from `finished`, once a device, if there is one, has passed the region.
        """
        end_ns = self.now_ns()
        events = None if self.device is None else self.device.end()
        region, self.region = self.region, None
        self.waits.end()
        if region is None:
            return 0, None
        thread = self._of_thread(region)
        self._between.ended(region, end_ns)
        # The gradient check's own work does not belong to the step, but a trace cannot know that.
        raw = self.recording.end(region.step, whole=not region.excluded)
        self.results.finish(unseen_reads=compiles())
        taken = self.fingerprints.collect()
        ended = Ended(region, end_ns, self.groups.sequence_numbers(), events, thread=thread)
        learnt = None
        if self.templates is not None and region.step is not None:
            learnt = self.templates.learn(region, ended.at_end)

        def finish(prints: Sequence[Fingerprint], device: DeviceReading | None) -> StepRows:
            notices = self._notices(region, raw, device)
            rows = make_rows(ended, self.setting, spans=raw, prints=prints, device=device)
            return replace(rows, notices=notices) if notices else rows

        rows = len(region.collectives) + len(region.elsewhere) + len(region.computes)
        rows += region.step is not None
        if rows or events is not None:
            self._held.append(_Held(events, taken, finish))
            self._surveyed_held += 1
        return rows, learnt

    def hold(
        self, events: RegionEvents | None, finish: Callable[[DeviceReading | None], Passed | None]
    ) -> None:
        """Hold a watched region back until the device has passed it; `finished` yields it then."""
        taken = self.fingerprints.collect()
        self._held.append(_Held(events, taken, lambda _prints, device: finish(device), surveyed=False))

    @property
    def holds_surveyed(self) -> bool:
        """Whether a surveyed region is held back for the device."""
        return self._surveyed_held > 0

    def finished(self, *, wait: bool = False) -> Iterator[StepRows | Passed]:
        """Yield rows that were held back and are over; with `wait` (after all steps) all of them.

        Surveyed regions come as their rows, watched ones as what these are made of. If the rows of one cannot
        be made, it raises and that region is held no longer.
        """
        while self._held and (wait or self._held[0].ready()):
            held = self._held.popleft()
            self._surveyed_held -= held.surveyed
            rows = held.rows()
            if rows is not None:
                yield rows

    def abandon(self) -> None:
        """Give up the region without rows, whatever runs; `drop` is still to come.

        torch's profiler goes on. Stopping it while gloo's threads report their work to it can corrupt memory
        (torch 2.13: about one run in ten died of it).
        """
        self.region = None
        self.waits.end()
        self.results.clear()
        self.cuts.clear()
        self.contents.clear()
        if self.device is not None:
            self.device.drop()

    def drop(self) -> None:
        """Give up the region without rows."""
        self.abandon()
        self.clearing.forget()
        self.clearing.uncleared.forget()
        self.recording.drop()

    def _notices(
        self, region: Region, raw: list[RawSpan] | None, device: DeviceReading | None
    ) -> tuple[Notice, ...]:
        if region.step is None and not region.collectives:
            return ()
        spans = raw is not None or not region.collectives or region.step is None
        text = ON_FAKE if region.fake else times_unknown(self.setting.host_times, spans=spans, device=device)
        return () if text is None else (Notice(self.rank, "times-unknown", text, region.step),)

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Keep the work inside out of the region: it is ours or the gradient check's.

        Its collectives are left out of the counts, its time out of the step.
        """
        begun_ns, earlier = self.now_ns(), self.groups.sequence_numbers()
        if self.device is not None:
            self.device.excluded_begun()
        try:
            yield
        finally:
            region = self.region
            if region is not None:
                if self.device is not None:
                    self.device.excluded_ended()
                for name, after in self.groups.sequence_numbers().items():
                    before = earlier.get(name, 0)
                    if after is not None and before is not None:
                        region.uncounted[name] = region.uncounted.get(name, 0) + after - before
                region.excluded.append((begun_ns, self.now_ns()))

    # -- collectives -----------------------------------------------------------------------------

    def called_from(self, site: Site | None) -> None:
        """Note where a call stands whose operators come next; None: it has returned."""
        self._site = site

    def issue(self, call: Call, frame: FrameType | None, issue_ns: int) -> PendingCollective:
        """Note a collective about to be issued, in place and order."""
        assert self.region is not None
        place, cause = self.attribution.place(frame, call.inputs)
        pending = self._pending(call, place, issue_ns)
        pending.surveyed = surveyed = Surveyed(self._tickets(call.inputs, thorough=True))
        if self._site is not None and self.templates is not None:
            pending.key = key_of(pending, self.region, self._site)
        if in_backward():
            self.waits.end_of_backward(pending)
        elif cause.issuer is None:
            self._issued_by_cpp = True
        if not self.region.light:
            # A step of ours may have begun inside a closure.
            inside = self._in_optimizer or self.closures.inside
            surveyed.optimizer_steps = None if inside else self._optimizer_steps
            surveyed.gradients_begun = self.clearing.begun
            surveyed.uncleared_steps = self.clearing.uncleared.in_a_row
            surveyed.input_content = self.contents.of(call.inputs)
            cut = self.cuts.of(call)
            if cut is not None:
                surveyed.cut_from_ticket, surveyed.cut_from_content = cut.ticket, cut.content
                surveyed.cut_by_placement = cut.by_placement
        return pending

    def _pending(self, call: Call, place: Place, issue_ns: int) -> PendingCollective:
        message = message_of(call, self.groups, self.rank)
        return PendingCollective(message, place, issue_ns, self.groups.sequence_number(call.group))

    def issue_elsewhere(self, call: Call, frame: FrameType) -> PendingCollective | None:
        """Note a collective about to be issued on another thread than the training's."""
        pending = self._pending(call, self.attribution.place_elsewhere(frame), self.now_ns())
        self.flight.issue(pending, pending.issue_ns, blocks=False)
        # Before it is counted, so that no step that counts it goes unmarked.
        self._of_other_threads.add(pending.message.group)
        return None if self.region is None else pending

    def issued_elsewhere(self, calls: Issued) -> None:
        """Note that another thread has handed its collectives over."""
        give_numbers(calls, self.groups.sequence_number(calls[0][1].group))
        region = self.region
        if region is not None:
            region.elsewhere.extend(pending for pending, _ in calls)

    def issued_alone(self, pending: PendingCollective, said: Said, region: Region) -> None:
        """Note that a watched collective has been handed over; its `seq` is its group's count of before."""
        before = pending.seq
        if before is not None:
            after, counted = said.count(), said.call.counted
            grown = 0 if after is None else after - before
            pending.growth = min(grown, counted)
            pending.seq = after if grown <= counted and not said.call.unnumbered else None
        region.collectives.append(pending)

    def issued(self, calls: Issued, result: Any) -> None:
        """Note that the collectives of one operator have been handed over: one, or a batch."""
        region = self.region
        assert region is not None
        self.recording.bound(region.step, len(region.ran) // 4)
        give_numbers(calls, self.groups.sequence_number(calls[0][1].group))
        if self.device is not None:
            for pending, _ in calls:
                self.device.issued(pending)
        if self._issued_by_cpp:
            self._issued_by_cpp = False
            self.waits.cpp_issued(calls[-1][0])
        results = result if isinstance(result, (list, tuple)) else (result,)
        for place, (pending, _) in enumerate(calls):
            mine = results if len(calls) == 1 else results[place : place + 1]
            self.waits.hands_result(mine, len(region.collectives))
            region.collectives.append(pending)

    # -- everything else in a step ---------------------------------------------------------------

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
        region = self.region
        assert region is not None
        self.recording.bound(region.step, len(region.ran) // 4)
        data = operands(func)
        place, cause = self.attribution.place(frame, tensors[data])
        inputs, results = self._tickets(tensors), self._tickets(outputs)
        region.computes.append(
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
                masks=tuple((inputs or ())[masks(func)]),
            )
        )

    def _tickets(self, tensors: Tensors, *, thorough: bool = False) -> list[int] | None:
        take = self.fingerprints.take
        tickets = [take(tensor, thorough=thorough) for tensor in tensors]
        printed = [ticket for ticket in tickets if ticket is not None]
        return printed if tickets and len(printed) == len(tickets) else None

    def backward_of(self, roots: Any) -> None:
        """Note the losses that a backward of a surveyed step begins with: tensors of one element.

        Others are no losses that a number could be too large for. A stage of a pipeline begins with its
        outputs, and a mask there may hold infinity on purpose. For a vector torch requires a gradient.
        """
        region = self.region
        if region is None or region.fake:
            return
        begun_ns = self.now_ns()
        # A generator would be empty after we had looked at it.
        several = roots if isinstance(roots, (list, tuple)) else (roots,)
        for root in several:
            if not isinstance(root, torch.Tensor):
                continue
            local = local_of(root)
            # The values of a subclass may have still to come, as those of an asynchronous collective.
            if type(local) is torch.Tensor and root.numel() == local.numel() == 1:
                ticket = self.fingerprints.take(local, thorough=True)
                if ticket is not None:
                    nth, scaled = len(region.roots), self.scales_losses or None
                    row = blank(root, local, self.rank, "loss", "loss", nth=nth, may_leave_out=scaled)
                    region.roots.append((ticket, row))
        region.capture.append((begun_ns, self.now_ns()))

    def loss_is_scaled(self) -> None:
        """Note that a gradient scaler scales a loss."""
        self.scales_losses = True

    def optimizer_begins(self) -> None:
        """Note that an optimizer's step begins."""
        self._in_optimizer = True

    @property
    def optimizer_has_begun(self) -> bool:
        """Whether an optimizer's step has begun since the session was opened."""
        return self._in_optimizer or self._optimizer_steps > 0

    def optimizer_ended(self) -> None:
        """Note that an optimizer's step is over."""
        self._in_optimizer = False
        self._optimizer_steps += 1

    def fetched(
        self, start_ns: int, end_ns: int, name: str, batch: BatchSize | None, frame: FrameType
    ) -> None:
        """Note that the training thread fetched from a DataLoader; `batch` None: no batch came of it."""
        if self.region is not None:
            source = self.attribution.stack.user_line(frame)
            self.region.fetches.append(Fetch(start_ns, end_ns, name, source, batch))

    def saved(self, start_ns: int, end_ns: int, name: str, written: int | None, frame: FrameType) -> None:
        """Note that the training thread wrote a checkpoint; `written`: its bytes, None if unknown."""
        if self.region is not None:
            source = self.attribution.stack.user_line(frame)
            save = Fetch(start_ns, end_ns, name, source, None, "checkpoint", written)
            self.region.fetches.append(save)

    def value_asked(self) -> None:
        """Note that a tensor subclass was asked for its value, which it has to make first."""
        self._value_asked_ns = self._value_asked_ns or self.now_ns()

    @property
    def is_fetching(self) -> bool:
        """Whether a loader fetches now: values that datasets and transforms read are the host's anyway."""
        return self.loading is not None and self.loading.is_fetching

    def read(self, func: Any, frame: FrameType | None, ran: Interval) -> None:
        """Note that the host has read a value of a tensor, which Python asked for in `frame`."""
        region = self.region
        since_ns, self._value_asked_ns = self._value_asked_ns or ran[0], 0
        frame = frame or self.attribution.stack.engine_beyond()
        if region is None or frame is None or self.attribution.is_reducers(frame):
            return
        key = id(frame.f_code), frame.f_lasti
        reads = region.reads.get(key)
        if reads is None:
            if self.attribution.stack.reads_for_itself(frame):
                return
            place, _ = self.attribution.place(frame)
            name = op_text(func).removesuffix(".default")
            reads = Reads(name, place.phase, place.module, place.source, library=place.library)
            region.reads[key] = reads
        blocked_ns = 0
        for wait in reversed(region.waits):
            if wait.start_ns < since_ns:
                break
            blocked_ns += wait.end_ns - wait.start_ns
        reads.count += 1
        reads.read_ns += ran[1] - ran[0]
        reads.blocked_ns += blocked_ns
