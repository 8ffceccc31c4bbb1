"""A measured sweep of one collective over sizes, read from CSV with the columns of nccl-tests' own table.

The text comes from elsewhere and is not trusted: an implausible value is reported in one line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.model.library import Library
from shardtoll.analyzers.roofline.model.place import Placement
from shardtoll.ledger import UsageError
from shardtoll.ledger.records.volume import OPS

COLUMNS: Final = ("hardware", "nodes", "gpus", "collective", "bytes", "time_us")
"""Columns that must be there. Read where they are: time_us_inplace, settings, source. algbw_GBps and
busbw_GBps follow from bytes and time, and are not read."""

MOST_BYTES: Final = 4_000_000
MOST_ROWS: Final = 20_000
_MOST_RANKS: Final = 10_000_000
_MOST_MESSAGE: Final = 1 << 50
_MOST_US: Final = 1e12
_ONE: Final = ("hardware", "nodes", "gpus", "collective")
"""Columns that are equal in all rows of a sweep."""
_ONE_SWEEP: Final = "one sweep a file: one hardware, number of nodes and GPUs, and collective"
_SEE: Final = "see columns under `shardtoll fabrics eval --help`"

_OF_NCCL_TESTS: Final = {"alltoall": "all_to_all", "alltoallv": "all_to_all", "sendrecv": "send"}
"""Names of nccl-tests that differ from ours. In its sendrecv each rank sends to the next one and receives
from the one before. Size and time are those of one send."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One size of a sweep."""

    message_bytes: int
    time_ns: float
    """Out of place."""
    inplace_ns: float | None
    """The same in place; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One collective on one machine at many sizes."""

    hardware: str
    nodes: int
    ranks: int
    op: str
    """A name in `ledger.records.volume.OPS`."""
    points: tuple[SweepPoint, ...]
    """By size, ascending; a size may come more than once."""
    settings: str = ""
    source: str = ""

    @property
    def placement(self) -> Placement:
        """Positions of its ranks: evenly over the nodes, as nccl-tests wants them."""
        most, least = -(-self.ranks // self.nodes), self.ranks // self.nodes
        return Placement(self.ranks, self.nodes, most, fewest_ranks=None if least == most else least)

    def placement_on(self, fabric: Fabric) -> Placement:
        """Return where its ranks stand on a fabric; a node is a domain there, if it has domains."""
        domain = fabric.ranks_per_domain
        if domain is None:
            return self.placement
        nodes = max(1, -(-self.ranks // int(domain.value)))
        return Placement(self.ranks, nodes, min(self.ranks, int(domain.value)))

    def least_ns(self, library: Library) -> float:
        """Return what each call takes at least in the tool that measured: from torch it costs host time."""
        host_us = library.number("host_call_us", "torch", otherwise=0.0)
        return 1000 * host_us if "torch" in self.settings.lower() else 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its sizes in bytes, each once, ascending."""
        return tuple(sorted({point.message_bytes for point in self.points}))


def parse_sweep(text: str, where: str) -> Sweep:
    """Return the sweep in a CSV text; `where` names it in messages.

    Raises UsageError, in one line: no rows, a missing column, several sweeps in one file, an unknown
    collective, an invalid number.
    """
    if len(text) > MOST_BYTES:
        raise UsageError(f"{where} holds more than {MOST_BYTES / 1e6:g} MB", "a sweep has a row a size")
    try:
        rows = _rows(text, where)
    except csv.Error as error:
        raise UsageError(f"{where} is not CSV ({error})", _SEE) from error
    for name in _ONE:
        values = sorted({row[name] for _, row in rows})
        if len(values) > 1:
            shown = ", ".join(repr(value[:40]) for value in values[:3])
            raise UsageError(f"{where} holds several sweeps: {name} is {shown}", _ONE_SWEEP)
    line, first = rows[0]
    where_line = f"{where} line {line}"
    nodes = _whole(first, "nodes", where_line, 1, _MOST_RANKS)
    ranks = _whole(first, "gpus", where_line, 1, _MOST_RANKS)
    if nodes > ranks:
        raise UsageError(f"{where_line} has {nodes} nodes and {ranks} GPUs", "gpus counts those of all nodes")
    points = [_point(row, f"{where} line {line}") for line, row in rows]
    return Sweep(
        hardware=first["hardware"],
        nodes=nodes,
        ranks=ranks,
        op=_op(first["collective"], where_line),
        points=tuple(sorted(points, key=lambda point: point.message_bytes)),
        settings=first.get("settings", ""),
        source=first.get("source", ""),
    )


def _rows(text: str, where: str) -> list[tuple[int, dict[str, str]]]:
    """Return line number and stripped cells by column name of every row that is not blank."""
    reader = csv.reader(text.lstrip("\ufeff").splitlines(), strict=True)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise UsageError(f"{where} has no column {', '.join(missing)}", _SEE)
    twice = [name for name in COLUMNS if header.count(name) > 1]
    if twice:
        raise UsageError(f"{where} has the column {twice[0]} twice", _SEE)
    rows: list[tuple[int, dict[str, str]]] = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise UsageError(
                f"{where} line {reader.line_num} has {len(cells)} cells, the header {len(header)}",
                "quote cells that hold a comma",
            )
        if len(rows) == MOST_ROWS:
            raise UsageError(f"{where} has more than {MOST_ROWS:,} rows", "a sweep has a row a size")
        rows.append((reader.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
    if not rows:
        raise UsageError(f"{where} has no rows", "a sweep has a row a size")
    return rows


def _point(row: dict[str, str], where: str) -> SweepPoint:
    inplace = row.get("time_us_inplace", "")
    return SweepPoint(
        _whole(row, "bytes", where, 0, _MOST_MESSAGE),
        1e3 * _number(row, "time_us", where, lambda value: 0 < value <= _MOST_US),
        # nccl-tests prints N/A for what has no in-place form, other tools nothing or 0.
        None
        if inplace in ("", "N/A", "0", "0.0", "0.00")
        else 1e3 * _number(row, "time_us_inplace", where, lambda value: 0 < value <= _MOST_US),
    )


def _number(row: dict[str, str], name: str, where: str, holds: Callable[[float], bool]) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not holds(value):
        raise UsageError(f"{where} has {name} {row[name][:40]!r}", "that is no number, or out of range")
    return value


def _whole(row: dict[str, str], name: str, where: str, least: int, most: int) -> int:
    # Tables that went through a spreadsheet or pandas hold 8.0 for 8.
    return int(_number(row, name, where, lambda value: least <= value <= most and value == int(value)))


def _op(name: str, where: str) -> str:
    plain = name.lower().removesuffix("_perf")
    op = _OF_NCCL_TESTS.get(plain, plain)
    if op not in OPS:
        names: Sequence[str] = sorted({*OPS, *_OF_NCCL_TESTS})
        raise UsageError(f"{where} has the collective {name[:40]!r}", f"known are {', '.join(names)}")
    return op
