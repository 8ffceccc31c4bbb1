"""From watched regions to rows of the ledger: whole columns if a step repeats a surveyed one.

A watched step adds a handful of numbers per collective to the surveyed one it repeats. All other columns are
those of that step's rows, so that a step's rows cost microseconds. Regions that repeat nothing, or in which
C++ issued collectives or waited for them, take the longer way that surveyed ones take.

A region's lists and waits are copied: another thread may make rows of the same ones meanwhile. Places that a
hook's collectives share are filled in where they stand, with the same values by whichever thread comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, TypeAlias

import pyarrow as pa

from shardtoll.ledger.records.columns import column
from shardtoll.ledger.records.record import Count, Step
from shardtoll.ledger.records.stall import Stall
from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.ledger.tables.tables import SCHEMAS, to_batch
from shardtoll.profiler.live.capture.lost_time import blocked, lost_rows
from shardtoll.profiler.live.capture.lost_time import spans as fetched
from shardtoll.profiler.live.capture.rows import (
    Ended,
    Passed,
    Setting,
    by_device,
    collective_row,
    count_rows,
    make_rows,
    plain_step,
    stalls_of_each,
    with_end,
)
from shardtoll.profiler.live.capture.sequence import MOST, Template
from shardtoll.profiler.live.cause.accounting import Interval, subtract, union
from shardtoll.profiler.live.cause.pending import PendingCollective, Region, Wait
from shardtoll.profiler.live.times.device_times import DeviceReading
from shardtoll.profiler.live.times.spans import Issued, RawSpan, join

Batches: TypeAlias = dict[str, pa.RecordBatch]
"""Table -> rows."""

_MEASURED: Final = ("step", "seq", "issue_ns", "start_ns", "duration_ns", "exposed_ns")
"""Columns of a collective that differ between a surveyed step and one that repeats it."""
_LENGTHS: Final = 16
"""So many numbers of repetitions have their columns kept: to cut them anew takes longer than the rows."""


@dataclass(frozen=True, slots=True)
class _Repetition:
    """A region that repeats a surveyed step, and its measurements."""

    ended: Ended
    """With the collectives that C++ issued in it."""
    spans: Sequence[RawSpan | None] = ()
    device: DeviceReading | None = None
    """None: its times are the host's."""
    stalls: Mapping[int, int] = field(default_factory=dict)
    """For how many ns the device stood still for each collective, by place."""


class WatchRows:
    """Makes the rows of watched regions; remembers each surveyed step's columns."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._columns: dict[int, tuple[Template, dict[int, dict[str, pa.Array]]]] = {}
        """id of a surveyed step -> that step, and by how many repetitions what does not change in columns."""

    def make(self, watched: Sequence[Ended], spans: Sequence[RawSpan] | None) -> list[Batches | StepRows]:
        """Return the regions' rows in their order. `spans` None: the transport's times could not be had."""
        return list(self._in_order(self._by_host(watched, spans)))

    def passed(self, watched: Iterable[Passed]) -> Iterator[Batches | StepRows]:
        """Yield the rows, in their order, of regions whose times come from the device's events.

        If those of one cannot be made, the others come all the same, and it raises at the end.
        """
        failures: list[Exception] = []

        def made() -> Iterator[_Repetition | StepRows]:
            for each in watched:
                try:
                    yield self._by_device(each)
                except Exception as error:  # noqa: BLE001 - raised once the others are made
                    failures.append(error)

        yield from self._in_order(made())
        if failures:
            raise failures[0]

    def _in_order(self, made: Iterable[_Repetition | StepRows]) -> Iterator[Batches | StepRows]:
        """Yield what was made, with neighbours that repeat surveyed steps put together."""
        run: list[_Repetition] = []
        for each in made:
            if isinstance(each, _Repetition):
                run.append(each)
                continue
            if run:
                yield self._repeated(run)
                run = []
            yield each
        if run:
            yield self._repeated(run)

    def _by_host(
        self, watched: Sequence[Ended], spans: Sequence[RawSpan] | None
    ) -> Iterator[_Repetition | StepRows]:
        for ended, joined in zip(watched, self._join(watched, spans or ()), strict=True):
            yield _Repetition(ended, joined) if _repeats(ended) else self.single(ended, spans)

    def _by_device(self, passed: Passed) -> _Repetition | StepRows:
        ended, device = passed.ended, passed.device
        template = ended.template
        if device is None or self._setting.host_times or template is None or not _is_plain(ended):
            return self.single(ended, None, device)
        if not template.all_seen:
            ended = replace(ended, region=_complete(ended))
        return _Repetition(ended, device=device, stalls=stalls_of_each(ended.region, device))

    def _join(self, watched: Sequence[Ended], spans: Sequence[RawSpan]) -> list[list[RawSpan | None]]:
        if not spans:
            return [[None] * len(_all_of(ended)) for ended in watched]
        to_unix = self._setting.clock.to_unix
        lengths, issued = [], []
        for ended in watched:
            collectives = _all_of(ended)
            lengths.append(len(collectives))
            issued += [Issued(c.message.op, c.message.group, to_unix(c.issue_ns)) for c in collectives]
        joined = iter(join(spans, issued, self._setting.threads))
        return [[next(joined) for _ in range(length)] for length in lengths]

    def single(
        self, ended: Ended, spans: Sequence[RawSpan] | None, device: DeviceReading | None = None
    ) -> StepRows:
        """Return one region's rows, the longer way. `device` is what the device's events said of it."""
        clock = self._setting.clock
        begin, end = clock.to_unix(ended.region.start_ns), clock.to_unix(ended.end_ns)
        inside = None if spans is None else [span for span in spans if begin <= span.start_ns <= end]
        own = replace(ended, region=_complete(ended))
        return make_rows(own, self._setting, spans=inside, device=device)

    def _static(self, template: Template, times: int) -> dict[str, pa.Array]:
        """Return what does not change in a surveyed step's columns, so many times over."""
        if id(template) not in self._columns and len(self._columns) >= MOST:
            # Surveys go on making templates; those still in use are made anew.
            self._columns.clear()
        # The template is kept with its columns: its id must not be reused.
        _, made = self._columns.setdefault(id(template), (template, {}))
        if times not in made:
            made[times] = self._times(template, made, times)
        return made[times]

    def _times(
        self, template: Template, made: dict[int, dict[str, pa.Array]], times: int
    ) -> dict[str, pa.Array]:
        longest = max(made, default=0)
        if longest >= times:
            rows = times * len(template.collectives)
            columns = {name: values.slice(0, rows) for name, values in made[longest].items()}
        else:
            # Arrow takes as long for each of the arrays it puts together as for some hundred rows.
            more = -(-times // max(longest, 1))
            once = made[longest] if longest else self._once(template)
            columns = {name: pa.concat_arrays([values] * more) for name, values in once.items()}
            if more * max(longest, 1) > times:
                made[more * longest] = columns
                return self._times(template, made, times)
        if len(made) >= _LENGTHS:
            # The longest is what all others are cut from.
            for length in sorted(made)[:-1]:
                del made[length]
        return columns

    def _once(self, template: Template) -> dict[str, pa.Array]:
        """Return the columns of a surveyed step's own rows, except those that only surveyed steps have."""
        bare = (replace(pending, surveyed=None) for pending in template.collectives)
        batch = to_batch("collectives", [collective_row(pending, self._setting) for pending in bare])
        columns = zip(batch.schema.names, batch.columns, strict=True)
        return {name: values for name, values in columns if name not in _MEASURED}

    def _repeated(self, run: Sequence[_Repetition]) -> Batches:
        setting = self._setting
        measured: dict[str, list[Any]] = {name: [] for name in _MEASURED}
        copied: dict[str, list[pa.Array]] = {}
        steps: list[Step] = []
        stalls: list[Stall] = []
        counts: list[Count] = []
        for _, same in groupby(run, lambda item: id(item.ended.template)):
            alike = [item.ended.template for item in same]
            assert alike[0] is not None
            for name, values in self._static(alike[0], len(alike)).items():
                copied.setdefault(name, []).append(values)
        for item in run:
            ended, region = item.ended, item.ended.region
            if item.device is None:
                exposed_ns = self._measure(item, measured)
                length_ns = ended.end_ns - region.start_ns
                capture_ns = min(sum(end - begin for begin, end in region.capture), length_ns - exposed_ns)
                steps.append(plain_step(ended, setting, length_ns, exposed_ns, capture_ns))
            else:
                steps.append(self._by_events(ended, item.device, item.stalls, measured))
            counts += count_rows(ended, setting.rank)
            stalls += lost_rows(region, setting.rank, _fetching(region) if setting.host_times else None)
        schema = SCHEMAS["collectives"]
        collectives = [
            column(measured[field.name], field.type)
            if field.name in measured
            else _together(copied[field.name])
            for field in schema
        ]
        made = {
            "collectives": pa.RecordBatch.from_arrays(collectives, schema=schema),
            "counts": to_batch("counts", counts),
            "steps": to_batch("steps", steps),
        }
        return made | {"stalls": to_batch("stalls", stalls)} if stalls else made

    def _issued(self, region: Region, columns: dict[str, list[Any]]) -> None:
        """Add when each collective was issued to `columns`."""
        to_epoch = self._setting.clock.offset_ns - self._setting.epoch_ns
        columns["step"] += [region.step] * len(region.collectives)
        columns["seq"] += [c.seq for c in region.collectives]
        columns["issue_ns"] += [None if c.unseen else c.issue_ns + to_epoch for c in region.collectives]

    def _by_events(
        self, ended: Ended, device: DeviceReading, stalls: Mapping[int, int], columns: dict[str, list[Any]]
    ) -> Step:
        """Add each collective's times from the device's events to `columns`; return the step's row."""
        region = ended.region
        self._issued(region, columns)
        columns["exposed_ns"] += [stalls.get(index, 0) for index in range(len(region.collectives))]
        unknown = [None] * len(region.collectives)
        columns["start_ns"] += unknown
        columns["duration_ns"] += unknown
        return by_device(ended, self._setting, device, sum(stalls.values()))

    def _measure(self, item: _Repetition, columns: dict[str, list[Any]]) -> int:
        """Add the measurements of each collective to `columns`; return the exposed time of all, in ns."""
        setting, region = self._setting, item.ended.region
        epoch_ns = setting.epoch_ns
        exposed, total_ns = exposed_of_each(region)
        self._issued(region, columns)
        # A cut span has an end if the thread has waited for it.
        spans = [
            span if span is None or not span.cut else with_end(span, region, index, setting.clock)
            for index, span in enumerate(item.spans)
        ]
        columns["start_ns"] += [None if span is None else span.start_ns - epoch_ns for span in spans]
        columns["duration_ns"] += [None if span is None else span.end_ns - span.start_ns for span in spans]
        columns["exposed_ns"] += exposed if setting.host_times else [None] * len(exposed)
        return total_ns if setting.host_times else 0


def _complete(ended: Ended) -> Region:
    """Return a copy of the region with what C++ issued in it: making rows changes the copy alone."""
    region = ended.region
    places = range(len(region.collectives)) if ended.template is None else ended.template.places
    waits = [
        replace(wait, owner=places[wait.owner] if isinstance(wait.owner, int) else wait.owner)
        for wait in region.waits
    ]
    return replace(region, waits=waits, collectives=_all_of(ended))


def _together(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _fetching(region: Region) -> list[Interval]:
    """Return the instants of a watched step that fetching may have lost it."""
    # Hardly any step fetches its own batch: what it was blocked on is then not looked at.
    return subtract(union(fetched(region.fetches)), blocked(region)) if region.fetches else []


def _repeats(ended: Ended) -> bool:
    """Whether the region is a surveyed step once more, and its times are simple."""
    region = ended.region
    return (
        ended.template is not None
        and ended.template.all_seen
        and _is_plain(ended)
        and not region.drains
        # A wait that names nothing may be one for a collective of an earlier region.
        and all(wait.owner is not None for wait in region.waits)
    )


def _is_plain(ended: Ended) -> bool:
    """Whether the region is a surveyed step once more, in the sizes and in who issued what."""
    region = ended.region
    return ended.same and not region.elsewhere and not region.excluded and not region.moved


def _all_of(ended: Ended) -> list[PendingCollective]:
    if ended.template is None:
        return ended.region.collectives
    return completed(ended.region, ended.template, same=ended.same)


def completed(region: Region, template: Template, *, same: bool) -> list[PendingCollective]:
    """Return the region's collectives and those C++ issued in between, as the surveyed step has them.

    `same`: all others have the sizes they had in that step. If not, the size of what C++ issued is unknown,
    unless it is one that never changes.
    """
    if template.all_seen:
        return region.collectives
    whole: list[PendingCollective] = []
    seen = dict(zip(template.places, region.collectives, strict=True))
    issue_ns = region.start_ns
    for index, like in enumerate(template.collectives):
        pending = seen.get(index)
        if pending is None:
            number, start = template.numbers[index], region.sequence_at_start.get(like.message.group, 0)
            seq = None if number is None or start is None else start + number
            pending = replace(like, issue_ns=issue_ns, seq=seq, surveyed=None, unseen=True)
            if not (same or template.unseen_sizes_stay):
                pending.message = replace(
                    like.message, message_bytes=None, wire_bytes=None, received_bytes=None
                )
        issue_ns = pending.issue_ns
        whole.append(pending)
    return whole


def _by_start(wait: Wait) -> tuple[int, int]:
    return wait.start_ns, -wait.end_ns


def exposed_of_each(region: Region) -> tuple[list[int], int]:
    """Return for each collective how long the thread was blocked on it, and the sum, in ns.

    A wait within a wait counts once. Every wait names its collective, else the region is no repetition.
    """
    exposed = [0] * len(region.collectives)
    until_ns = 0
    # Noted as they end: only a wait within a wait stands out of its order.
    for wait in sorted(region.waits, key=_by_start):
        begin_ns, until_ns = max(wait.start_ns, until_ns), max(wait.end_ns, until_ns)
        blocked_ns = wait.end_ns - begin_ns
        if blocked_ns > 0 and wait.owner is not None:
            exposed[wait.owner] += blocked_ns
    return exposed, sum(exposed)
