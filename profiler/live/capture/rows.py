"""From the notes of a region to rows of the ledger: times split, spans joined, hashes resolved.

`_Carried` takes over a column if a record of the capture has a field of the same name. It reads the names of
both. A new field is named once there and once in the ledger, and nowhere between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final

from shardtoll.ledger.records.ddp_causes import USED_PARAMETERS
from shardtoll.ledger.records.record import Collective, Compute, Count, Step
from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.ledger.records.value import Value
from shardtoll.profiler.live.capture.lost_time import blocked, lost_rows
from shardtoll.profiler.live.capture.sequence import Template
from shardtoll.profiler.live.capture.slowdown import Slowing, slowed
from shardtoll.profiler.live.capture.step_parts import Parts, exposed_shares, split
from shardtoll.profiler.live.cause.accounting import Interval, Span, subtract, total_ns
from shardtoll.profiler.live.cause.pending import (
    Message,
    PendingCollective,
    PendingCompute,
    Place,
    Region,
    Surveyed,
    UnseenAfter,
    Wait,
    growths,
)
from shardtoll.profiler.live.times.awake import Stretch
from shardtoll.profiler.live.times.clock import Clock
from shardtoll.profiler.live.times.device_times import DeviceReading, RegionEvents
from shardtoll.profiler.live.times.spans import Issued, RawSpan, compiled_regions, join
from shardtoll.profiler.live.values.fingerprint import Fingerprint, combine, float_of, holds_ones

_MESSAGES: Final = ("send", "recv")
_ONE_FLOAT: Final = 4
"""Bytes of one float32."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Common facts of all rows of a session."""

    rank: int
    clock: Clock
    epoch_ns: int
    mesh_dim_of: Callable[[str], str | None]
    host_times: bool
    """Whether operators are done when they return; not so on accelerators."""
    threads: dict[int, str] = field(default_factory=dict)
    """Thread of the transport -> the group it serves; filled as spans are joined."""
    slowing: Slowing | None = None
    """Time that surveying adds to each operator unseen; None if unknown."""

    def from_epoch(self, monotonic_ns: int) -> int:
        """Return a monotonic reading as the ledger counts it."""
        return self.clock.to_unix(monotonic_ns) - self.epoch_ns


@dataclass(frozen=True, slots=True)
class Ended:
    """A region that has ended, its rows still to be made."""

    region: Region
    end_ns: int
    at_end: Mapping[str, int | None]
    """The groups' own counts then."""
    events: RegionEvents | None = None
    """The device's events of it, if those are taken."""
    template: Template | None = None
    """The surveyed step that a watched one repeats."""
    same: bool = False
    """Whether it repeats that in the sizes too."""
    thread: Stretch | None = None
    """How the training thread spent the step; None if unknown."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A watched region that the device has passed, and what its events said; None: it could not be timed."""

    ended: Ended
    device: DeviceReading | None


class _Carried:
    """The columns of a ledger's row that a record of the capture, or a part of it, holds by the same name."""

    def __init__(self, row: type, held: type, **parts: type) -> None:
        wanted = {column.name for column in fields(row)}
        paths = {item.name: item.name for item in fields(held) if item.name in wanted}
        for part, kind in parts.items():
            paths |= {item.name: f"{part}.{item.name}" for item in fields(kind) if item.name in wanted}
        self.names = tuple(paths)
        self._values = attrgetter(*paths.values())

    def __call__(self, held: Any) -> dict[str, Any]:
        return dict(zip(self.names, self._values(held), strict=True))


_OF_COLLECTIVE: Final = _Carried(Collective, PendingCollective, message=Message, place=Place)
_OF_SURVEYED: Final = _Carried(Collective, Surveyed)
_OF_COMPUTE: Final = _Carried(Compute, PendingCompute, place=Place)
_NOT_SURVEYED: Final = Surveyed()


def make_rows(
    ended: Ended,
    setting: Setting,
    *,
    spans: Sequence[RawSpan] | None,
    prints: Sequence[Fingerprint] = (),
    device: DeviceReading | None = None,
) -> StepRows:
    """Return the rows of one region. `spans` None: the transport's times could not be had.

    `device` is what the device's events said if the host's times are not the device's; None: unknown.
    """
    region = ended.region
    if region.step is None and not (region.collectives or region.elsewhere or region.computes):
        return StepRows(None)
    include_elsewhere(region)
    clock = setting.clock
    issued = [Issued(c.message.op, c.message.group, clock.to_unix(c.issue_ns)) for c in region.collectives]
    joined = [
        with_end(span, region, index, clock)
        for index, span in enumerate(join(spans or (), issued, setting.threads))
    ]
    in_flight = flights(region, joined, clock)
    compiled = [(clock.from_unix(a), clock.from_unix(b)) for a, b in compiled_regions(spans or ())]
    parts: Parts | None = None
    if setting.host_times or device is None:
        # If the device says how long the step took, the host's parts say nothing of it.
        parts = split(region, (region.start_ns, ended.end_ns), in_flight, compiled)
    if setting.host_times:
        assert parts is not None
        exposed_ns = exposed_shares(region, parts.exposed, in_flight)
    else:
        exposed_ns = stalls_of_each(region, device)
    exposed_known = setting.host_times or device is not None
    # If C++ waited, only a collective in flight shows it: without spans its time is unknown, not 0.
    in_cpp = setting.host_times and spans is None and bool(region.drains)
    collectives = tuple(
        collective_row(
            pending,
            setting,
            step=region.step,
            span=joined[index],
            exposed_ns=exposed_ns.get(index, None if in_cpp and _waited_in_cpp(pending) else 0)
            if exposed_known
            else None,
            prints=prints,
        )
        for index, pending in enumerate(region.collectives)
    )
    computes = tuple(
        _compute_row(pending, setting, region.step, index, prints)
        for index, pending in enumerate(region.computes)
    )
    if region.step is None:
        return StepRows(None, collectives, computes)
    lost = lost_rows(region, setting.rank, _idle(ended, parts) if parts and setting.host_times else None)
    step = _step_row(ended, setting, parts, device, sum(exposed_ns.values()))
    losses = _losses(region, prints)
    counts = count_rows(ended, setting.rank)
    return StepRows(step, collectives, computes, counts, stalls=lost, values=losses)


def flights(region: Region, joined: Sequence[RawSpan | None], clock: Clock) -> list[Span]:
    """Return when the collectives of a region were in flight, as far as the transport's spans show it.

    Gloo ends the span of a message only when the thread waits for it, be that long after the last byte. So
    a message that was waited for by name counts as in flight while the thread waited, no longer.
    """
    waited: dict[int, list[Wait]] = {}
    for wait in region.waits:
        if wait.owner is not None and region.collectives[wait.owner].message.op in _MESSAGES:
            waited.setdefault(wait.owner, []).append(wait)
    in_flight = []
    for index, span in enumerate(joined):
        if index in waited:
            in_flight += [Span(index, wait.start_ns, wait.end_ns) for wait in waited[index]]
        elif span is not None:
            in_flight.append(Span(index, clock.from_unix(span.start_ns), clock.from_unix(span.end_ns)))
    return in_flight


def collective_row(
    pending: PendingCollective,
    setting: Setting,
    *,
    step: int | None = None,
    span: RawSpan | None = None,
    exposed_ns: int | None = None,
    prints: Sequence[Fingerprint] = (),
) -> Collective:
    """Return the row of one collective, of a surveyed or a watched step."""
    surveyed = pending.surveyed or _NOT_SURVEYED
    sent = surveyed.input_tickets
    received = None if surveyed.output_ticket is None else [surveyed.output_ticket]
    measured = {
        "step": step,
        "rank": setting.rank,
        "mesh_dim": setting.mesh_dim_of(pending.message.group),
        "issue_ns": None if pending.unseen else setting.from_epoch(pending.issue_ns),
        "start_ns": None if span is None else span.start_ns - setting.epoch_ns,
        "duration_ns": None if span is None else span.end_ns - span.start_ns,
        "exposed_ns": exposed_ns,
        "input_hash": _hash(sent, prints, skip_constant=True),
        "output_hash": _hash(received, prints, skip_constant=True),
        "cut_from_hash": None
        if surveyed.cut_from_ticket is None
        else _hash([surveyed.cut_from_ticket], prints, skip_constant=True),
        "read_hash": None
        if surveyed.read_ticket is None
        else _hash([surveyed.read_ticket], prints, skip_constant=True),
        "non_finite": _non_finite(sent, received, prints),
        "number_sent": _number(pending.message, sent, prints),
        "number_received": _number(pending.message, received, prints),
        "all_used": _all_used(pending, sent, prints),
    }
    return Collective(**{**_OF_COLLECTIVE(pending), **_OF_SURVEYED(surveyed), **measured})


def _compute_row(
    pending: PendingCompute, setting: Setting, step: int | None, index: int, prints: Sequence[Fingerprint]
) -> Compute:
    measured = {
        "step": step,
        "rank": setting.rank,
        "index": index,
        "start_ns": setting.from_epoch(pending.start_ns),
        "duration_ns": pending.end_ns - pending.start_ns if setting.host_times else None,
        "input_hash": _hash(pending.input_tickets, prints),
        "output_hash": _hash(pending.output_tickets, prints),
        "constant": _any_constant(pending.telling, prints),
        "non_finite": _left_out(pending, prints),
    }
    return Compute(**{**_OF_COMPUTE(pending), **measured})


def _step_row(
    ended: Ended, setting: Setting, parts: Parts | None, device: DeviceReading | None, exposed_ns: int
) -> Step:
    region = ended.region
    if device is not None and not setting.host_times:
        return by_device(ended, setting, device, exposed_ns)
    assert parts is not None
    duration_ns = ended.end_ns - region.start_ns - parts.excluded_ns
    exposed_ns = total_ns(parts.exposed) if setting.host_times else 0
    step = plain_step(ended, setting, duration_ns, exposed_ns, parts.capture_ns)
    if region.watched or not setting.host_times:
        return step
    within_ns, around_ns = slowed(region, setting.slowing, ended.thread)
    # Sleeping takes as long as ever.
    slept_ns = max(0, (step.asleep_ns or 0) - exposed_ns - parts.orphan_ns)
    within_ns, around_ns = min(within_ns, parts.compute_ns), min(around_ns, max(0, parts.idle_ns - slept_ns))
    return replace(
        step,
        compute_ns=parts.compute_ns - within_ns,
        exposed_copy_ns=parts.copy_ns,
        idle_ns=parts.idle_ns - around_ns,
        unattributed_ns=parts.capture_ns + within_ns + around_ns + parts.orphan_ns,
        capture_ns=parts.capture_ns + within_ns + around_ns,
        slowed_compute_ns=within_ns,
        slowed_idle_ns=around_ns,
    )


def by_device(ended: Ended, setting: Setting, device: DeviceReading, exposed_ns: int) -> Step:
    """Return the row of a step whose times are the device's.

    These are rounded one by one: stalls may be some ns longer than the step.
    """
    return plain_step(ended, setting, max(device.duration_ns, exposed_ns), exposed_ns)


def plain_step(
    ended: Ended, setting: Setting, duration_ns: int, exposed_ns: int, capture_ns: int = 0
) -> Step:
    """Return a step with only its duration and its exposed time known.

    Watched steps are like this, as no operator is looked at. So is a step on an accelerator without a trace,
    as the host's times say nothing about the device's. A trace and watched steps show how long the device is
    idle while capture works (`analyzers.context.divided`).
    """
    region = ended.region
    assert region.step is not None
    return Step(
        step=region.step,
        rank=setting.rank,
        start_ns=setting.from_epoch(region.start_ns),
        duration_ns=duration_ns,
        compute_ns=0,
        exposed_comm_ns=exposed_ns,
        exposed_copy_ns=0,
        idle_ns=0,
        unattributed_ns=duration_ns - exposed_ns,
        capture_ns=capture_ns,
        level="watch" if region.watched else "survey",
        asleep_ns=ended.thread.asleep_ns(ended.end_ns - region.start_ns) if ended.thread else None,
    )


def _idle(ended: Ended, parts: Parts) -> list[Interval]:
    """Return the instants of a step in which fetching may have lost it time.

    In a watched step these are all that are not known to be something else.
    """
    region = ended.region
    if not region.fetches:
        return []
    if region.watched:
        return subtract([(region.start_ns, ended.end_ns)], blocked(region))
    return parts.idle()


def stalls_of_each(region: Region, device: DeviceReading | None) -> dict[int, int]:
    """Return the ns for which the compute stream stood still for each collective of this region, by index.

    Standing still for one that an earlier region issued is no record's here: it stays unattributed.
    """
    index_of = {id(pending): index for index, pending in enumerate(region.collectives)}
    shares: dict[int, int] = {}
    for owner, stall_ns in () if device is None else device.stalls:
        index = (
            _last_unseen(region, index_of, owner)
            if isinstance(owner, UnseenAfter)
            else index_of.get(id(owner))
        )
        if index is not None:
            shares[index] = shares.get(index, 0) + stall_ns
    return shares


def _last_unseen(region: Region, index_of: Mapping[int, int], owner: UnseenAfter) -> int | None:
    """Return the index of the collective C++ waited for last; None if it is known to wait for none."""
    index = -1 if owner.last is None else index_of.get(id(owner.last), -1)
    following = region.collectives[index + 1 :]
    index += next((place for place, pending in enumerate(following) if not pending.unseen), len(following))
    return index if index >= 0 and _waited_in_cpp(region.collectives[index]) else None


def _waited_in_cpp(pending: PendingCollective) -> bool:
    """Whether C++ waits for the collective, so that no door shows for how long."""
    return pending.unseen or pending.place.waits_in_cpp


def include_elsewhere(region: Region) -> None:
    """Put what other threads issued among the training thread's collectives, in the order of issue.

    A hook's later collectives continue the first one, which the training thread issued for it. If all of
    those agree on a line, module or parameter, it is also theirs.
    """
    if not region.elsewhere:
        return
    mine = region.collectives
    for pending in region.elsewhere:
        place = pending.place
        begun = [c.place for c in mine if c.place.caused_by_op == place.caused_by_op is not None]
        place.source = place.source or _agreed(first.source for first in begun)
        place.module = place.module or _agreed(first.module for first in begun)
        place.parameter = place.parameter or _agreed(first.parameter for first in begun)
    merged = sorted([*mine, *region.elsewhere], key=lambda c: c.issue_ns)
    index_of = {id(c): index for index, c in enumerate(merged)}
    for wait in region.waits:
        if wait.owner is not None:
            wait.owner = index_of[id(mine[wait.owner])]
    region.collectives, region.elsewhere = merged, []


def _agreed(values: Iterable[str | None]) -> str | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def with_end(span: RawSpan | None, region: Region, index: int, clock: Clock) -> RawSpan | None:
    """Return the span with an end that is known: of a cut one, when the thread had waited for it; else None.

    Gloo's thread may be descheduled between completing a collective and telling the profiler so.
    """
    if span is None or not span.cut:
        return span
    pending, start_ns = region.collectives[index], clock.from_unix(span.start_ns)
    last_before = {
        wait.end_ns: max(
            (i for i, c in enumerate(region.collectives) if c.issue_ns <= wait.start_ns), default=-1
        )
        for wait in region.waits
        if wait.owner is None
    }
    ends = [wait.end_ns for wait in region.waits if wait.owner == index]
    # A call that waits at once: nothing else was issued in between.
    ends += [end_ns for end_ns, last in last_before.items() if last == index]
    if pending.place.waits_in_cpp:
        ends += [end_ns for _, end_ns in region.drains]
    ends = [end_ns for end_ns in ends if end_ns > start_ns]
    return replace(span, end_ns=clock.to_unix(min(ends)), cut=False) if ends else None


def _hash(
    tickets: list[int] | None, prints: Sequence[Fingerprint], *, skip_constant: bool = False
) -> int | None:
    if not tickets or (skip_constant and _any_constant(tickets, prints)):
        return None
    return combine([prints[ticket].number for ticket in tickets])


def _number(message: Message, tickets: Sequence[int] | None, prints: Sequence[Fingerprint]) -> float | None:
    """Return the one number that was printed, if a message is no more than that."""
    if message.message_bytes != _ONE_FLOAT or not tickets or len(tickets) != 1 or message.dtype != "float32":
        return None
    return float_of(prints[tickets[0]].number)


def _all_used(
    pending: PendingCollective, tickets: Sequence[int] | None, prints: Sequence[Fingerprint]
) -> bool | None:
    """Return whether a map of DDP's used parameters is one throughout; None if it is none, or unknown."""
    if pending.place.caused_by_op != USED_PARAMETERS or not tickets or len(tickets) != 1:
        return None
    return holds_ones(prints[tickets[0]], (pending.message.message_bytes or 0) // _ONE_FLOAT)


def _any_constant(tickets: Sequence[int] | None, prints: Sequence[Fingerprint]) -> bool:
    """Return whether equality of one of them proves nothing."""
    for ticket in tickets or ():
        _, constant, finite = prints[ticket]
        if constant or not finite:
            return True
    return False


def _non_finite(
    inputs: Sequence[int] | None, outputs: Sequence[int] | None, prints: Sequence[Fingerprint]
) -> str | None:
    """Return `input` if NaN or infinity was in the input, `output` if only in the result."""
    for name, tickets in (("input", inputs), ("output", outputs)):
        for ticket in tickets or ():
            if not prints[ticket].finite:
                return name
    return None


def _left_out(pending: PendingCompute, prints: Sequence[Fingerprint]) -> str | None:
    """Return what `_non_finite` does; `left-out` for gradients that the optimizer is not to use."""
    inputs = [ticket for ticket in pending.input_tickets or () if ticket not in pending.masks]
    kept = _non_finite(inputs, pending.output_tickets, prints)
    return "left-out" if kept == "input" and pending.may_leave_out else kept


def _losses(region: Region, prints: Sequence[Fingerprint]) -> tuple[Value, ...]:
    """Return what backwards began with and was not finite."""
    rows = (row for ticket, row in region.roots if not prints[ticket].finite)
    return tuple(replace(row, step=region.step, constant=True) for row in rows)


def count_rows(ended: Ended, rank: int) -> tuple[Count, ...]:
    """Return for each group its count in the step, and the part that its records account for."""
    region = ended.region
    recorded = growths(region.collectives)
    counts = []
    # A group that was destroyed in the step cannot be asked any more: its row says so.
    for group in sorted({*ended.at_end, *recorded}):
        after, before = ended.at_end.get(group), region.sequence_at_start.get(group, 0)
        issued = None
        if after is not None and before is not None:
            issued = after - before - region.uncounted.get(group, 0)
        if issued is not None and issued < 0:
            # The group was made anew in mid-step.
            issued = None
        by_two = group in region.of_other_threads
        counts.append(Count(region.step or 0, rank, group, issued, recorded.get(group, 0), by_two))
    return tuple(counts)
