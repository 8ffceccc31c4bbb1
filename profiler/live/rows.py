"""From what was noted in a region to rows of the ledger: times split, spans joined, hashes resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardtoll.ledger.record import Collective, Compute, Count, Step, StepRows
from shardtoll.profiler.accounting import Interval, Span, subtract, total_ns
from shardtoll.profiler.live.clock import Clock
from shardtoll.profiler.live.device_times import DeviceReading
from shardtoll.profiler.live.fingerprint import Fingerprint, combine, float_of
from shardtoll.profiler.live.lost_time import blocked, lost_rows
from shardtoll.profiler.live.pending import PendingCollective, Region, UnseenAfter, growths
from shardtoll.profiler.live.spans import Issued, RawSpan, compiled_regions, join
from shardtoll.profiler.live.step_parts import Parts, exposed_shares, split

_ONE_FLOAT: Final = 4
"""Bytes of one float32."""


def make_rows(
    region: Region,
    end_ns: int,
    *,
    rank: int,
    spans: Sequence[RawSpan] | None,
    threads: dict[int, str],
    prints: Sequence[Fingerprint],
    sequence_at_end: Mapping[str, int | None],
    mesh_dim_of: Callable[[str], str | None],
    clock: Clock,
    epoch_ns: int,
    host_times: bool,
    device: DeviceReading | None = None,
) -> StepRows:
    """Return the rows of one region. `spans` None: the transport's times could not be had.

    `device` is what the device's events said where `host_times` is false; None: its times are unknown.
    """
    if region.step is None and not (region.collectives or region.elsewhere or region.computes):
        return StepRows(None)
    raw = spans or ()
    include_elsewhere(region)
    issued = [Issued(c.op, c.group, clock.to_unix(c.issue_ns)) for c in region.collectives]
    joined = [with_end(span, region, index, clock) for index, span in enumerate(join(raw, issued, threads))]
    in_flight = [
        Span(index, clock.from_unix(span.start_ns), clock.from_unix(span.end_ns))
        for index, span in enumerate(joined)
        if span is not None
    ]
    window = (region.start_ns, end_ns)
    compiled = [(clock.from_unix(a), clock.from_unix(b)) for a, b in compiled_regions(raw)]
    parts = split(region, window, in_flight, compiled)
    exposed_ns = (
        exposed_shares(region, parts.exposed, in_flight) if host_times else _stalls_of_each(region, device)
    )
    exposed_known = host_times or device is not None
    # Where C++ waited, only a collective in flight tells: without spans that is unknown, not nothing.
    in_cpp = host_times and spans is None and bool(region.drains)

    def from_epoch(monotonic_ns: int) -> int:
        return clock.to_unix(monotonic_ns) - epoch_ns

    collectives = []
    for index, pending in enumerate(region.collectives):
        span = joined[index]
        place, outcome = pending.place, pending.outcome
        collectives.append(
            Collective(
                step=region.step,
                rank=rank,
                group=pending.group,
                group_size=pending.group_size,
                mesh_dim=mesh_dim_of(pending.group),
                seq=pending.seq,
                op=pending.op,
                dtype=pending.dtype,
                message_bytes=pending.message_bytes,
                wire_bytes=pending.wire_bytes,
                issue_ns=None if pending.unseen else from_epoch(pending.issue_ns),
                start_ns=None if span is None else span.start_ns - epoch_ns,
                duration_ns=None if span is None else span.end_ns - span.start_ns,
                exposed_ns=exposed_ns.get(index, None if in_cpp and _waited_in_cpp(pending) else 0)
                if exposed_known
                else None,
                phase=place.phase,
                implicit=place.implicit,
                placements_from=place.placements_from,
                placements_to=place.placements_to,
                operand=place.operand,
                caused_by_op=place.caused_by_op,
                module=place.module,
                parameter=place.parameter,
                source=place.source,
                reduce_op=pending.reduce_op,
                root=pending.root,
                input_hash=_hash(pending.tickets, prints, skip_constant=True),
                output_hash=None if outcome is None else _hash_of(outcome.ticket, prints),
                used_bytes=None if outcome is None else outcome.used_bytes,
                used_by=None if outcome is None else outcome.used_by,
                cut_from_hash=None if outcome is None else _hash_of(outcome.cut_from, prints),
                optimizer_steps=pending.optimizer_steps,
                gradients_begun=pending.gradients_begun,
                of_values=place.of_values,
                number_sent=_number(pending, pending.tickets, prints),
                number_received=_number(
                    pending,
                    None if outcome is None or outcome.ticket is None else [outcome.ticket],
                    prints,
                ),
            )
        )
    computes = [
        Compute(
            step=region.step,
            rank=rank,
            index=index,
            op=pending.op,
            flops=pending.flops,
            start_ns=from_epoch(pending.start_ns),
            duration_ns=pending.end_ns - pending.start_ns if host_times else None,
            phase=pending.place.phase,
            shapes=pending.shapes,
            module=pending.place.module,
            parameter=pending.place.parameter,
            source=pending.place.source,
            replicated_over=pending.replicated_over,
            input_hash=_hash(pending.input_tickets, prints),
            output_hash=_hash(pending.output_tickets, prints),
            constant=_any_constant(pending.telling, prints),
            moved_bytes=pending.moved_bytes,
        )
        for index, pending in enumerate(region.computes)
    ]
    if region.step is None:
        return StepRows(None, tuple(collectives), tuple(computes))
    counts = _counts(region, rank, sequence_at_end)
    lost = lost_rows(region, rank, _idle(region, end_ns, parts) if host_times else None)
    if device is not None and not host_times:
        start_ns = from_epoch(region.start_ns)
        timed = _device_step(region, rank, start_ns, device.duration_ns, sum(exposed_ns.values()))
        return StepRows(timed, tuple(collectives), tuple(computes), counts, stalls=lost)
    length_ns = end_ns - region.start_ns - parts.excluded_ns
    exposed_total_ns = total_ns(parts.exposed) if host_times else 0
    # On an accelerator the host's times say nothing about the device's: all of it is unknown.
    unattributed_ns = parts.capture_ns + parts.orphan_ns if host_times else length_ns
    if region.watched:
        # No operator was looked at: what is not spent blocked may be anything.
        unattributed_ns = length_ns - exposed_total_ns
    step = Step(
        step=region.step,
        rank=rank,
        start_ns=from_epoch(region.start_ns),
        duration_ns=length_ns,
        compute_ns=parts.compute_ns if host_times and not region.watched else 0,
        exposed_comm_ns=exposed_total_ns,
        exposed_copy_ns=parts.copy_ns if host_times and not region.watched else 0,
        idle_ns=parts.idle_ns if host_times and not region.watched else 0,
        unattributed_ns=unattributed_ns,
        capture_ns=parts.capture_ns,
        level="watch" if region.watched else "survey",
    )
    return StepRows(step, tuple(collectives), tuple(computes), counts, stalls=lost)


def _idle(region: Region, end_ns: int, parts: Parts) -> list[Interval]:
    """Return the instants of a step that a fetch may have lost it: of a watched one all that is not told."""
    if not region.fetches:
        return []
    if region.watched:
        return subtract([(region.start_ns, end_ns)], blocked(region))
    return parts.idle()


def _device_step(region: Region, rank: int, start_ns: int, duration_ns: int, exposed_ns: int) -> Step:
    """Return a step as the device's events have it: how long it took, and how long its stream stood still.

    What ran in the rest is unknown without a trace. Capture's work is the host's and costs the device no time
    that could be told from the rest. Each time is rounded by itself: the sum of stalls may be some ns longer.
    """
    assert region.step is not None
    duration_ns = max(duration_ns, exposed_ns)
    return Step(
        step=region.step,
        rank=rank,
        start_ns=start_ns,
        duration_ns=duration_ns,
        compute_ns=0,
        exposed_comm_ns=exposed_ns,
        exposed_copy_ns=0,
        idle_ns=0,
        unattributed_ns=duration_ns - exposed_ns,
        level="watch" if region.watched else "survey",
    )


def _stalls_of_each(region: Region, device: DeviceReading | None) -> dict[int, int]:
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
    """Return the index of the collective C++ waited for last; None where it is known to wait for none."""
    index = -1 if owner.last is None else index_of.get(id(owner.last), -1)
    following = region.collectives[index + 1 :]
    index += next((at for at, pending in enumerate(following) if not pending.unseen), len(following))
    if index < 0:
        return None
    found = region.collectives[index]
    return index if _waited_in_cpp(found) else None


def _waited_in_cpp(pending: PendingCollective) -> bool:
    """Whether C++ waits for the collective, so that no door shows for how long."""
    return pending.unseen or pending.place.waits_in_cpp


def include_elsewhere(region: Region) -> None:
    """Put what other threads issued among the training thread's collectives, in the order of issue.

    A hook's later collectives continue the first one, which the training thread issued for it: where all of
    those agree on a line, module or parameter, it is also theirs.
    """
    if not region.elsewhere:
        return
    own = region.collectives
    for pending in region.elsewhere:
        place = pending.place
        begun = [c.place for c in own if c.place.caused_by_op == place.caused_by_op is not None]
        place.source = place.source or _agreed(first.source for first in begun)
        place.module = place.module or _agreed(first.module for first in begun)
        place.parameter = place.parameter or _agreed(first.parameter for first in begun)
    merged = sorted([*own, *region.elsewhere], key=lambda c: c.issue_ns)
    index_of = {id(c): index for index, c in enumerate(merged)}
    for wait in region.waits:
        if wait.owner is not None:
            wait.owner = index_of[id(own[wait.owner])]
    region.collectives, region.elsewhere = merged, []


def _agreed(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


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


def _hash_of(ticket: int | None, prints: Sequence[Fingerprint]) -> int | None:
    return None if ticket is None else _hash([ticket], prints, skip_constant=True)


def _number(
    pending: PendingCollective, tickets: Sequence[int] | None, prints: Sequence[Fingerprint]
) -> float | None:
    """Return the one number that was printed, where a message is no more than that."""
    if pending.message_bytes != _ONE_FLOAT or not tickets or len(tickets) != 1 or pending.dtype != "float32":
        return None
    return float_of(prints[tickets[0]].number)


def _any_constant(tickets: Sequence[int] | None, prints: Sequence[Fingerprint]) -> bool:
    for ticket in tickets or ():  # noqa: SIM110 - any() costs a surveyed step more than all the rest here
        if prints[ticket].constant:
            return True
    return False


def _counts(region: Region, rank: int, at_end: Mapping[str, int | None]) -> tuple[Count, ...]:
    recorded = growths(region.collectives)
    counts = []
    # A group that was destroyed in the step cannot be asked any more: its row says so.
    for group in sorted({*at_end, *recorded}):
        after = at_end.get(group)
        before = region.sequence_at_start.get(group, 0)
        known = after is not None and before is not None
        issued = after - before - region.uncounted.get(group, 0) if known else None  # type: ignore[operator]
        if issued is not None and issued < 0:
            # The group was made anew in mid-step.
            issued = None
        counts.append(Count(region.step or 0, rank, group, issued, recorded.get(group, 0)))
    return tuple(counts)
