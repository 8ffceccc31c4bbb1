"""The report as a trace for ui.perfetto.dev: ranks, streams, waiting, findings and what belongs together.

Each rank is a process. It has a track for each device stream, or for each group if streams are unknown.
Further tracks hold the steps, the waiting, and each finding. Arrows join the records of one collective on all
its ranks. Written in pieces, rank by rank, so that a long run need not lie in memory as text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.exports import perfetto_findings
from shardtoll.dashboards.exports.packed import packed
from shardtoll.dashboards.exports.perfetto_text import (
    Arg,
    flows,
    metadata,
    microseconds,
    number_column,
    quoted,
    quoted_column,
    quoted_words,
    slices,
    spelled,
)
from shardtoll.dashboards.facts.row_codes import NONE, Ints, codes, ints
from shardtoll.dashboards.facts.spoken import Spoken, spoken
from shardtoll.dashboards.words.files import write as write_file
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.words import human

CHUNK: Final = 1 << 15
"""Rows made into text at a time."""
FARTHEST_NS: Final = 1 << 60
"""36 years, which no run lasts."""
NUMBERS: Final = (
    *("step", "seq", "group_size", "message_bytes", "wire_bytes", "busbw_gbps", "floor_ns", "light_ns"),
    *("exposed_ns", "wait_ns", "transfer_ns", "implicit", "root"),
)
WORDS: Final = (
    *("phase", "group", "mesh_dim", "dtype", "source", "caused_by_op", "module", "parameter"),
    *("placements_from", "placements_to", "kernel"),
)


def write(report: Report, path: Path) -> list[Path]:
    """Write the trace and return the files written; gzip if the name ends in `.gz`."""
    data: Iterator[bytes] = (piece.encode("ascii") for piece in pieces(report))
    write_file(path, _gzipped(data) if path.name.lower().endswith(".gz") else data)
    return [path]


def _gzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    # zlib's own header holds no time and no name, so that equal reports give equal bytes.
    packer = zlib.compressobj(6, wbits=31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def pieces(report: Report, chunk: int = CHUNK) -> Iterator[str]:
    """Yield the text of the trace, ASCII alone."""
    job = _Job.of(report)
    about = {
        "tool": "shardtoll",
        "headline": clip(report.verdict, 1000),
        "epoch_ns_of_ts_0": report.run.epoch_ns + job.least_ns,
        "shifted_by_ns": -job.least_ns,
        "collectives": report.tables["collectives"].num_rows,
        "collectives_without_times": report.tables["collectives"].num_rows - len(job.order),
        "ranks_missing": clip(human.ranks(report.run.ranks_missing), 300)
        if report.run.ranks_missing
        else "none",
        "fabric": clip(f"{report.fabric.name}: {report.fabric.provenance}", 1000),
    }
    yield f'{{"otherData":{json.dumps(about)},\n"traceEvents":[\n'
    yield metadata("process_name", job.bill_pid, None, "shardtoll: the bill")
    yield ",\n" + metadata("process_sort_index", job.bill_pid, None, -1)
    tid = job.new_tid()
    yield ",\n" + metadata("thread_name", job.bill_pid, tid, "findings without a record")
    drawn: set[int] = set()
    for rank in job.ranks:
        for events in _rank(job, rank, drawn, chunk):
            yield ",\n" + events
    for number, finding in job.numbered:
        if number not in drawn:
            began_us = microseconds(np.array([job.first_step_ns(finding)], dtype=np.int64))
            yield ",\n" + perfetto_findings.instant(job.bill_pid, tid, began_us, number, finding)
    yield "\n]}\n"


@dataclass(slots=True)
class _Job:
    """Facts about a report that are looked up once. Times are shifted so that the first is 0."""

    report: Report
    numbered: list[tuple[int, Finding]]
    least_ns: int
    ranks: list[int]
    table: pa.Table
    order: Ints
    """Rows of `table` with a time, by rank, start and end: the order in which they are written."""
    rank: Ints
    start: Ints
    end: Ints
    """Ends of the rows in that order."""
    flow: Ints
    phase: list[str | None] | npt.NDArray[np.object_]
    track: Ints
    track_names: list[str]
    of_collectives: Spoken
    of_computes: Spoken
    speaking: pa.Array | None
    """Code of `of_collectives` -> the findings that speak of it, as JSON text."""
    step: Ints
    wait: Ints
    """Waits of the rows in that order; -1 for no step, 0 for no known wait."""
    steps: _ByRank
    computes: _ByRank
    tids: int = field(default=0)

    @property
    def bill_pid(self) -> int:
        """The process that stands for the whole job."""
        return max([self.report.run.world_size, *self.ranks]) + 2

    def new_tid(self) -> int:
        """Return a number that no other track of any process has: old readers name threads by it alone."""
        self.tids += 1
        return self.bill_pid + self.tids

    def first_step_ns(self, finding: Finding) -> int:
        """Return when the first step began on the finding's ranks; 0 if there is none."""
        start = self.steps.start[np.isin(self.steps.rank, finding.ranks)]
        return int(start.min()) - self.least_ns if len(start) else 0

    @classmethod
    def of(cls, report: Report) -> _Job:
        table = report.tables["collectives"]
        placed = _placed(table)
        start = np.where(placed, ints(table.column("start_ns")), 0)
        end = start + np.where(placed, ints(table.column("duration_ns")), 0)
        rank = ints(table.column("rank"))
        order = np.lexsort((end, start, rank))
        order = order[placed[order]]
        of_collectives = spoken(report, "collectives")
        computes = _ByRank.of(report.tables["computes"])
        steps = _ByRank.of(report.tables["steps"])
        starts = [start[order], steps.start, computes.start]
        least = min((int(some.min()) for some in starts if len(some)), default=0)
        numbered = list(enumerate(report.findings, start=1))
        track, names = _tracks(table)
        match = ints(table.column("match_id"), NONE)[order]
        seen = {*rank[order].tolist(), *steps.rank.tolist(), *report.run.ranks_seen}
        return cls(
            report=report,
            numbered=numbered,
            least_ns=least,
            ranks=sorted(seen),
            table=_compact(table),
            order=order,
            rank=rank[order],
            start=start[order] - least,
            end=end[order] - least,
            flow=match,
            phase=_phases(match, start[order]),
            track=track[order],
            track_names=names,
            of_collectives=of_collectives,
            of_computes=spoken(report, "computes"),
            speaking=perfetto_findings.words(of_collectives),
            step=ints(table.column("step"), NONE)[order],
            wait=np.minimum(ints(table.column("wait_ns"))[order], end[order] - start[order]),
            steps=steps,
            computes=computes,
        )


@dataclass(frozen=True, slots=True)
class _ByRank:
    """Rows of a table that have a time, by rank and start."""

    table: pa.Table
    order: Ints
    rank: Ints
    start: Ints
    """Starts of the rows in that order, not shifted."""

    @classmethod
    def of(cls, table: pa.Table) -> _ByRank:
        rank, start = ints(table.column("rank")), ints(table.column("start_ns"))
        order = np.lexsort((start, rank))
        order = order[_placed(table)[order]]
        return cls(table, order, rank[order], start[order])

    def at(self, rank: int) -> Ints:
        """Return the rows of a rank, by start."""
        low, high = np.searchsorted(self.rank, [rank, rank + 1])
        return self.order[low:high]


def _compact(table: pa.Table) -> pa.Table:
    """Return the columns that are written, each in one piece, so that taking rows copies only those."""
    words = {name: quoted_words(table.column(name)) for name in WORDS}
    words["op"] = quoted_words(table.column("op"), 80)
    return pa.table({**{name: table.column(name).combine_chunks() for name in NUMBERS}, **words})


def _placed(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows have a time and a length that can be drawn: no damaged ones, whose sums overflow."""
    placed = np.ones(table.num_rows, dtype=bool)
    for name in ("start_ns", "duration_ns"):
        values = ints(table.column(name), FARTHEST_NS)
        placed &= (values > -FARTHEST_NS) & (values < FARTHEST_NS)
    return placed


def _phases(match: Ints, start: Ints) -> npt.NDArray[np.object_]:
    """Return for each row whether a flow starts, steps or ends there; None if no row matches it.

    Rows go by start, as time in a flow must not go backwards.
    """
    phases = np.full(len(match), None, dtype=object)
    order = np.lexsort((start, match))
    order = order[match[order] != NONE]
    if not len(order):
        return phases
    ids = match[order]
    first = np.r_[True, ids[1:] != ids[:-1]]
    last = np.r_[ids[1:] != ids[:-1], True]
    phases[order] = np.where(first, "s", np.where(last, "f", "t"))
    # A partner without a time is not drawn, and a single row left over has no flow.
    phases[order[first & last]] = None
    return phases


def _tracks(table: pa.Table) -> tuple[Ints, list[str]]:
    """Return each row's track, and the tracks' names: its stream, else its group."""
    stream = ints(table.column("stream"), NONE)
    group, names = codes(table.column("group"))
    dim, dims = codes(table.column("mesh_dim"))
    size = ints(table.column("group_size"))
    on_stream = stream != NONE
    parts = [np.where(on_stream, stream, NONE)] + [
        np.where(on_stream, 0, column) for column in (group, dim, size)
    ]
    keys = np.stack(parts, axis=1)
    every, track = np.unique(keys, axis=0, return_inverse=True)
    words = [
        f"stream {number}"
        if number != NONE
        else f"{clip(dims[of] if of != NONE else names[code], 60)} ×{count}"
        for number, code, of, count in every.tolist()
    ]
    return track.reshape(-1).astype(np.int64), words


def _rank(job: _Job, rank: int, drawn: set[int], chunk: int) -> Iterator[str]:
    """Yield the events of one rank, several at a time, joined as a list holds them."""
    pid = rank + 1
    yield metadata("process_name", pid, None, f"rank {rank}")
    yield metadata("process_sort_index", pid, None, rank)
    yield from _steps(job, rank)
    low, high = np.searchsorted(job.rank, [rank, rank + 1])
    yield from _findings(job, rank, int(low), int(high), drawn)
    yield from _collectives(job, rank, int(low), int(high), chunk)


def _named(job: _Job, pid: int, name: str, count: int) -> tuple[list[int], Iterator[str]]:
    """Return the numbers of new tracks and what names them."""
    tids = [job.new_tid() for _ in range(count)]
    words = [name if number == 0 else f"{name} ({number + 1})" for number in range(count)]
    lines = (
        line
        for tid, word in zip(tids, words, strict=True)
        for line in (metadata("thread_name", pid, tid, word), metadata("thread_sort_index", pid, tid, tid))
    )
    return tids, lines


def _steps(job: _Job, rank: int) -> Iterator[str]:
    table = job.steps.table.take(pa.array(job.steps.at(rank)))
    if not table.num_rows:
        return
    start = ints(table.column("start_ns")) - job.least_ns
    length = ints(table.column("duration_ns"))
    lane = packed(start, start + length)
    tids, names = _named(job, rank + 1, "steps", int(lane.max()) + 1)
    yield from names
    parts = [
        name
        for name in table.schema.names
        if name.endswith("_ns") and name not in ("start_ns", "duration_ns")
    ]
    args: list[Arg] = [(name, number_column(table.column(name))) for name in ("step", *parts)]
    args.append(("level", quoted_column(table.column("level"))))
    numbers = number_column(table.column("step"))
    name = pc.binary_join_element_wise('"step ', numbers, '"', "")
    tid = np.array(tids, dtype=np.int64)[lane]
    yield ",\n".join(
        slices(
            rank + 1, tid, microseconds(start), microseconds(length), name, "step", args, f'"rank":{rank}'
        ).to_pylist()
    )


def _findings(job: _Job, rank: int, low: int, high: int, drawn: set[int]) -> Iterator[str]:
    steps = job.step[low:high]
    codes_here = job.of_collectives.codes[job.order[low:high]]
    start, end = job.start[low:high], job.end[low:high]
    ran = _computes(job, rank)
    for number, finding in job.numbered:
        if rank not in finding.ranks:
            continue
        if number in job.of_collectives.flags:
            mine = job.of_collectives.flags[number][codes_here]
            rows, what = (start[mine], end[mine], steps[mine]), "collectives"
        elif number in job.of_computes.flags:
            mine = job.of_computes.flags[number][ran[0]]
            rows, what = (ran[1][mine], ran[2][mine], ran[3][mine]), "computes"
        else:
            continue
        if not len(rows[0]):
            continue
        by_step = np.lexsort((rows[0], rows[2]))
        begin, until, step = (row[by_step] for row in rows)
        tids, names = _named(
            job, rank + 1, f"#{number} {finding.kind}", perfetto_findings.lanes_of(begin, until, step)
        )
        yield from names
        yield ",\n".join(
            perfetto_findings.spans(rank + 1, tids, number, finding, begin, until, step, what).to_pylist()
        )
        drawn.add(number)


def _computes(job: _Job, rank: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return code, start, end and step of a rank's operators; empty if no finding is about any."""
    if not job.of_computes.flags:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing, nothing
    places = job.computes.at(rank)
    table = job.computes.table.select(["start_ns", "duration_ns", "step"]).take(pa.array(places))
    start = ints(table.column("start_ns")) - job.least_ns
    end = start + ints(table.column("duration_ns"))
    return job.of_computes.codes[places], start, end, ints(table.column("step"), NONE)


def _collectives(job: _Job, rank: int, low: int, high: int, chunk: int) -> Iterator[str]:
    pid = rank + 1
    tid = np.empty(high - low, dtype=np.int64)
    track = job.track[low:high]
    start, end = job.start[low:high], job.end[low:high]
    wait = job.wait[low:high]
    # In the order of the tracks' names a rank looks like every other.
    for number in sorted(
        np.unique(track).tolist(), key=lambda lane_track: (job.track_names[lane_track], lane_track)
    ):
        mine = np.flatnonzero(track == number)
        lane = packed(start[mine], end[mine])
        tids, names = _named(job, pid, job.track_names[number], int(lane.max()) + 1)
        yield from names
        tid[mine] = np.array(tids, dtype=np.int64)[lane]
    waits = np.flatnonzero(wait > 0)
    waiting = np.zeros(high - low, dtype=np.int64)
    if len(waits):
        lane = packed(start[waits], start[waits] + wait[waits])
        tids, names = _named(job, pid, "waiting", int(lane.max()) + 1)
        yield from names
        waiting[waits] = np.array(tids, dtype=np.int64)[lane]
    for begin in range(0, high - low, chunk):
        here = slice(begin, min(begin + chunk, high - low))
        rows = job.table.take(pa.array(job.order[low:high][here]))
        ts, dur = microseconds(start[here]), microseconds((end - start)[here])
        name = spelled(rows.column("op"))
        args = _arguments(rows)
        if job.speaking is not None:
            spoken_codes = pa.array(job.of_collectives.codes[job.order[low:high][here]])
            args.append(("findings", job.speaking.take(spoken_codes)))
        events = slices(pid, tid[here], ts, dur, name, "collective", args, f'"rank":{rank}')
        arrows = flows(
            pid, tid[here], ts, pa.array(job.phase[low:high][here], pa.string()), job.flow[low:high][here] + 1
        )
        yield ",\n".join(pc.binary_join_element_wise(events, arrows, "").to_pylist())
        some = np.flatnonzero(wait[here] > 0)
        if len(some):
            short = pa.array(some)
            why = slices(
                pid, waiting[here][some], ts.take(short), microseconds(wait[here][some]),
                quoted("waiting for the last rank"), "waiting",
                [(key, texts.take(short)) for key, texts in args if key in ("step", "seq", "group")]
                + [("op", name.take(short))],
                f'"rank":{rank}',
            )  # fmt: skip
            yield ",\n".join(why.to_pylist())


def _arguments(rows: pa.Table) -> list[Arg]:
    args: list[Arg] = [(name, number_column(rows.column(name))) for name in NUMBERS]
    return args + [(name, spelled(rows.column(name))) for name in WORDS]
