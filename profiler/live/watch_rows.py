"""From watched regions to rows of the ledger: whole columns where a step repeats a surveyed one.

What a watched step adds to the surveyed one it repeats is a handful of numbers for each collective; all else
is copied column by column, so that a step's rows cost microseconds. Regions that repeat nothing, or in which
C++ issued collectives or waited for them, take the longer way that surveyed ones take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, Final, TypeAlias

import pyarrow as pa

from shardtoll.ledger.columns import column
from shardtoll.ledger.record import Collective, StepRows
from shardtoll.ledger.stall import Stall
from shardtoll.ledger.tables import SCHEMAS, to_batch
from shardtoll.profiler.accounting import Interval, subtract, union
from shardtoll.profiler.live.clock import Clock
from shardtoll.profiler.live.device_times import DeviceReading
from shardtoll.profiler.live.lost_time import blocked, lost_rows
from shardtoll.profiler.live.lost_time import spans as fetched
from shardtoll.profiler.live.pending import PendingCollective, Region, Wait, growths
from shardtoll.profiler.live.rows import make_rows, with_end
from shardtoll.profiler.live.sequence import MOST, Template
from shardtoll.profiler.live.spans import Issued, RawSpan, join
from shardtoll.profiler.live.watch import Watched, completed

Batches: TypeAlias = dict[str, pa.RecordBatch]
"""Table -> rows."""

_MEASURED: Final = ("step", "seq", "issue_ns", "start_ns", "duration_ns", "exposed_ns")
"""Columns of a collective that differ between a surveyed step and one that repeats it."""
_PLACED: Final = (
    "phase",
    "implicit",
    "placements_from",
    "placements_to",
    "caused_by_op",
    "module",
    "parameter",
    "of_values",
    "source",
)
_SAME: Final = ("group", "group_size", "op", "dtype", "message_bytes", "wire_bytes", "reduce_op", "root")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all rows of a session have in common."""

    rank: int
    clock: Clock
    epoch_ns: int
    mesh_dim_of: Callable[[str], str | None]
    host_times: bool


class WatchRows:
    """Makes the rows of watched regions; remembers each surveyed step's columns."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._columns: dict[int, tuple[Template, int, dict[str, pa.Array]]] = {}
        """id of a surveyed step -> that step, and what does not change in its columns, so many times over."""

    def make(
        self, watched: Sequence[Watched], spans: Sequence[RawSpan] | None, threads: dict[int, str]
    ) -> list[Batches | StepRows]:
        """Return the regions' rows in their order. `spans` None: the transport's times could not be had."""
        made: list[Batches | StepRows] = []
        run: list[tuple[Watched, list[RawSpan | None]]] = []
        joined = self._join(watched, spans or (), threads)
        for at, each in enumerate(watched):
            if _repeats(each):
                run.append((each, joined[at]))
                continue
            if run:
                made.append(self._repeated(run))
                run = []
            made.append(self.one(each, spans, threads))
        if run:
            made.append(self._repeated(run))
        return made

    def _join(
        self, watched: Sequence[Watched], spans: Sequence[RawSpan], threads: dict[int, str]
    ) -> list[list[RawSpan | None]]:
        if not spans:
            return [[None] * len(_all_of(each)) for each in watched]
        to_unix = self._setting.clock.to_unix
        lengths, issued = [], []
        for each in watched:
            collectives = _all_of(each)
            lengths.append(len(collectives))
            issued += [Issued(c.op, c.group, to_unix(c.issue_ns)) for c in collectives]
        found = join(spans, issued, threads)
        at = 0
        parts: list[list[RawSpan | None]] = []
        for length in lengths:
            parts.append(found[at : at + length])
            at += length
        return parts

    def one(
        self,
        each: Watched,
        spans: Sequence[RawSpan] | None,
        threads: dict[int, str],
        device: DeviceReading | None = None,
    ) -> StepRows:
        """Return one region's rows, the longer way. `device` is what the device's events said of it."""
        region, setting = each.region, self._setting
        if each.template is not None:
            places = each.template.places
            for wait in region.waits:
                if isinstance(wait.owner, int):
                    wait.owner = places[wait.owner]
            region.collectives = _all_of(each)
        begin, end = setting.clock.to_unix(region.start_ns), setting.clock.to_unix(each.end_ns)
        return make_rows(
            region,
            each.end_ns,
            rank=setting.rank,
            spans=None if spans is None else [s for s in spans if begin <= s.start_ns <= end],
            threads=threads,
            prints=(),
            sequence_at_end=each.at_end,
            mesh_dim_of=setting.mesh_dim_of,
            clock=setting.clock,
            epoch_ns=setting.epoch_ns,
            host_times=setting.host_times,
            device=device,
        )

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
        rows = template.collectives
        values: dict[str, list[Any]] = {name: [getattr(c, name) for c in rows] for name in _SAME}
        values |= {name: [getattr(c.place, name) for c in rows] for name in _PLACED}
        values["rank"] = [self._setting.rank] * len(rows)
        values["mesh_dim"] = [self._setting.mesh_dim_of(c.group) for c in rows]
        schema = SCHEMAS["collectives"]
        return {
            field.name: column(values.get(field.name, [None] * len(rows)), schema.field(field.name).type)
            for field in fields(Collective)
            if field.name not in _MEASURED
        }

    def _repeated(self, run: Sequence[tuple[Watched, list[RawSpan | None]]]) -> Batches:
        setting = self._setting
        epoch_ns, to_epoch = setting.epoch_ns, setting.clock.offset_ns - setting.epoch_ns
        known = setting.host_times
        measured: dict[str, list[Any]] = {name: [] for name in _MEASURED}
        copied: dict[str, list[pa.Array]] = {}
        steps: list[tuple[Any, ...]] = []
        stalls: list[Stall] = []
        counts: list[tuple[Any, ...]] = []
        for _, same in groupby(run, lambda one: id(one[0].template)):
            alike = [each.template for each, _ in same]
            assert alike[0] is not None
            for name, values in self._static(alike[0], len(alike)).items():
                copied.setdefault(name, []).append(values)
        for each, spans in run:
            region = each.region
            exposed, total_ns = exposed_of_each(region)
            length_ns = each.end_ns - region.start_ns
            measured["step"] += [region.step] * len(exposed)
            measured["seq"] += [c.seq for c in region.collectives]
            measured["issue_ns"] += [c.issue_ns + to_epoch for c in region.collectives]
            # What is cut has an end if the thread has waited for it.
            spans = [
                s if s is None or not s.cut else with_end(s, region, at, setting.clock)
                for at, s in enumerate(spans)
            ]
            measured["start_ns"] += [None if s is None else s.start_ns - epoch_ns for s in spans]
            measured["duration_ns"] += [None if s is None else s.end_ns - s.start_ns for s in spans]
            measured["exposed_ns"] += exposed if known else [None] * len(exposed)
            capture_ns = sum(end - begin for begin, end in region.capture)
            total_ns = total_ns if known else 0
            rest_ns = length_ns - total_ns
            steps.append(
                (
                    region.step,
                    setting.rank,
                    region.start_ns + to_epoch,
                    length_ns,
                    0,
                    total_ns,
                    0,
                    0,
                    rest_ns,
                    min(capture_ns, rest_ns),
                    "watch",
                )
            )
            counts += _counts(each, setting.rank)
            stalls += lost_rows(region, setting.rank, _fetching(region) if known else None)
        schema = SCHEMAS["collectives"]
        collectives = [
            column(measured[field.name], field.type)
            if field.name in measured
            else _together(copied[field.name])
            for field in schema
        ]
        made = {
            "collectives": pa.RecordBatch.from_arrays(collectives, schema=schema),
            "counts": _batch("counts", counts),
            "steps": _batch("steps", steps),
        }
        return made | {"stalls": to_batch("stalls", stalls)} if stalls else made


def _together(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _fetching(region: Region) -> list[Interval]:
    """Return the instants of a watched step that fetching may have lost it."""
    # Hardly any step fetches its own batch: what it was blocked on is then not looked at.
    return subtract(union(fetched(region.fetches)), blocked(region)) if region.fetches else []


def _batch(table: str, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = SCHEMAS[table]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [column(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _counts(each: Watched, rank: int) -> list[tuple[Any, ...]]:
    recorded = growths(each.region.collectives)
    found = []
    for group in sorted({*each.at_end, *recorded}):
        after = each.at_end.get(group)
        before = each.region.sequence_at_start.get(group, 0)
        issued = None if after is None or before is None or after < before else after - before
        found.append((each.region.step, rank, group, issued, recorded.get(group, 0)))
    return found


def _repeats(each: Watched) -> bool:
    """Whether the region is a surveyed step once more, and its times are simple."""
    region = each.region
    return (
        each.template is not None
        and each.same
        and each.template.all_seen
        and not region.elsewhere
        and not region.drains
        and not region.excluded
        and not region.moved
        # A wait that names nothing may be one for a collective of an earlier region.
        and all(wait.owner is not None for wait in region.waits)
    )


def _all_of(each: Watched) -> list[PendingCollective]:
    return (
        each.region.collectives
        if each.template is None
        else completed(each.region, each.template, same=each.same)
    )


def _by_start(wait: Wait) -> tuple[int, int]:
    return wait.start_ns, -wait.end_ns


def exposed_of_each(region: Region) -> tuple[list[int], int]:
    """Return for each collective how long the thread was blocked on it, and the sum, in ns.

    A wait within a wait counts once. Every wait names its collective, else the region is no repetition.
    """
    exposed = [0] * len(region.collectives)
    until_ns = 0
    # Noted as they end: only a wait within a wait stands out of its order.
    region.waits.sort(key=_by_start)
    for wait in region.waits:
        begin_ns, until_ns = max(wait.start_ns, until_ns), max(wait.end_ns, until_ns)
        blocked_ns = wait.end_ns - begin_ns
        if blocked_ns > 0 and wait.owner is not None:
            exposed[wait.owner] += blocked_ns
    return exposed, sum(exposed)
