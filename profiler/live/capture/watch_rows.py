"""From watched regions to rows of the ledger: whole columns where a step repeats a surveyed one.

A watched step adds a handful of numbers per collective to the surveyed one it repeats; all other columns are
those of that step's rows, so that a step's rows cost microseconds. Regions that repeat nothing, or in which
C++ issued collectives or waited for them, take the longer way that surveyed ones take.

A region's lists and waits are copied: another thread may make rows of the same ones meanwhile. Places that a
hook's collectives share are filled in where they stand, with the same values by whichever thread comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    Setting,
    collective_row,
    count_rows,
    make_rows,
    plain_step,
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


class WatchRows:
    """Makes the rows of watched regions; remembers each surveyed step's columns."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._columns: dict[int, tuple[Template, int, dict[str, pa.Array]]] = {}
        """id of a surveyed step -> that step, and what does not change in its columns, so many times over."""

    def make(self, watched: Sequence[Ended], spans: Sequence[RawSpan] | None) -> list[Batches | StepRows]:
        """Return the regions' rows in their order. `spans` None: the transport's times could not be had."""
        made: list[Batches | StepRows] = []
        run: list[tuple[Ended, list[RawSpan | None]]] = []
        for ended, joined in zip(watched, self._join(watched, spans or ()), strict=True):
            if _repeats(ended):
                run.append((ended, joined))
                continue
            if run:
                made.append(self._repeated(run))
                run = []
            made.append(self.single(ended, spans))
        if run:
            made.append(self._repeated(run))
        return made

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
        rows = len(template.collectives)
        _, have, columns = self._columns.get(id(template)) or (template, 1, self._once(template))
        if have < times:
            # Arrow takes as long for each of the arrays it puts together as for some hundred rows.
            more = -(-times // have)
            columns = {name: pa.concat_arrays([values] * more) for name, values in columns.items()}
            have *= more
        if id(template) not in self._columns and len(self._columns) >= MOST:
            # Surveys go on making templates; those still in use are made anew.
            self._columns.clear()
        # The template is kept with its columns: its id must not be reused.
        self._columns[id(template)] = (template, have, columns)
        if have == times:
            return columns
        return {name: values.slice(0, times * rows) for name, values in columns.items()}

    def _once(self, template: Template) -> dict[str, pa.Array]:
        """Return the columns of a surveyed step's own rows, but for what only surveyed steps tell."""
        bare = (replace(pending, surveyed=None) for pending in template.collectives)
        batch = to_batch("collectives", [collective_row(pending, self._setting) for pending in bare])
        columns = zip(batch.schema.names, batch.columns, strict=True)
        return {name: values for name, values in columns if name not in _MEASURED}

    def _repeated(self, run: Sequence[tuple[Ended, list[RawSpan | None]]]) -> Batches:
        setting = self._setting
        measured: dict[str, list[Any]] = {name: [] for name in _MEASURED}
        copied: dict[str, list[pa.Array]] = {}
        steps: list[Step] = []
        stalls: list[Stall] = []
        counts: list[Count] = []
        for _, same in groupby(run, lambda item: id(item[0].template)):
            alike = [ended.template for ended, _ in same]
            assert alike[0] is not None
            for name, values in self._static(alike[0], len(alike)).items():
                copied.setdefault(name, []).append(values)
        for ended, spans in run:
            exposed_ns = self._measure(ended, spans, measured)
            region = ended.region
            length_ns = ended.end_ns - region.start_ns
            capture_ns = min(sum(end - begin for begin, end in region.capture), length_ns - exposed_ns)
            steps.append(plain_step(ended, setting, length_ns, exposed_ns, capture_ns))
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

    def _measure(self, ended: Ended, spans: Sequence[RawSpan | None], columns: dict[str, list[Any]]) -> int:
        """Add what is measured of each collective to `columns`; return the exposed time of all, in ns."""
        setting, region = self._setting, ended.region
        epoch_ns, to_epoch = setting.epoch_ns, setting.clock.offset_ns - setting.epoch_ns
        exposed, total_ns = exposed_of_each(region)
        columns["step"] += [region.step] * len(exposed)
        columns["seq"] += [c.seq for c in region.collectives]
        columns["issue_ns"] += [c.issue_ns + to_epoch for c in region.collectives]
        # What is cut has an end if the thread has waited for it.
        spans = [
            span if span is None or not span.cut else with_end(span, region, index, setting.clock)
            for index, span in enumerate(spans)
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
        and ended.same
        and ended.template.all_seen
        and not region.elsewhere
        and not region.drains
        and not region.excluded
        and not region.moved
        # A wait that names nothing may be one for a collective of an earlier region.
        and all(wait.owner is not None for wait in region.waits)
    )


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
