"""Reads what nccl-tests and rccl-tests print: the table of each test, and which ranks on which hosts ran it.

The reader follows the programs' public format. It has `# Collective test starting: all_reduce_perf`, a line
`# Rank 0 Group 0 Pid 1 on host device 0 [0000:18:00] NVIDIA H100` for each rank, and a header of columns.
Each size has a row with the out-of-place and then the in-place times. Everything between is ignored, and
prefixes that launchers write before each line.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from shardtoll.ledger import TraceError
from shardtoll.ledger.measured.measured import Timings
from shardtoll.ledger.records.volume import busbw_factor

MOST_CHARACTERS: Final = 4000
"""Length of one line; no program of these writes longer ones."""
MOST_ROWS: Final = 200_000
MOST_RANKS: Final = 1_000_000

OPS_OF: Final[dict[str, tuple[str, ...]]] = {
    "all_reduce": ("all_reduce",),
    "all_gather": ("all_gather",),
    "reduce_scatter": ("reduce_scatter",),
    "broadcast": ("broadcast",),
    "reduce": ("reduce",),
    "alltoall": ("all_to_all",),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "sendrecv": ("send", "recv"),
}
"""Name of a test without `_perf` -> the ops whose time it measures."""

_BODY: Final = ("time", "algbw", "busbw", "#wrong")
COLUMNS: Final = ("size", "count", "type", "redop", "root", *_BODY, *_BODY)
"""Columns if no header says another."""

BUSBW_ROUNDING_GBPS: Final = 0.011
BUSBW_SHARE: Final = 0.02
"""A printed busbw and one from the printed time differ by their roundings at most."""

_NAME = "|".join(sorted(OPS_OF, key=len, reverse=True))
_TEST = re.compile(r"\b([a-z][a-z0-9_]{1,40}?)_perf(?:_mpi)?\b")
_FILE_NAME = re.compile(rf"(?<![a-z])({_NAME}|all_to_all)(?![a-z])")
_VERSION = re.compile(r"nccl-tests version (\S{1,40})")
_LIBRARY = re.compile(r"\b((?:NCCL|RCCL) version [\w.+-]{1,40})")
_BEGIN = re.compile(r"#?\s*nThread\s+\d{1,6}\s+nGpus\s+\d{1,6}\s+minBytes")
_RANK = re.compile(
    r"#\s*Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?Pid\s+\d{1,10}\s+on\s+(\S{1,1024})\s+device\s+\d{1,4}\s+"
    r"\[[^\]\s]{1,40}\]\s*(\S.{0,200})"
)
_HEADER = re.compile(r"#?\s*size\s+count\s+type\s.*")
_ROW = re.compile(r"(?:^|[\s:>\]])(\d{1,18})\s+(\d{1,18})\s+([a-z][a-z0-9_]{1,15})\s+(\S.*)")


@dataclass(slots=True)
class Table:
    """One table of a file: the test that printed it, where its ranks were, and the times it gave."""

    place: str
    """File and line, for messages."""
    test: str | None = None
    """Name without `_perf`; None if no line has it."""
    groups: Counter[int] = field(default_factory=Counter)
    hosts: dict[int, dict[str, None]] = field(default_factory=dict)
    """Group -> its hosts, in order."""
    device: str | None = None
    version: str = ""
    columns: tuple[str, ...] = COLUMNS
    times_us: dict[int, list[float]] = field(default_factory=dict)
    busbw_gbps: list[tuple[int, float, float]] = field(default_factory=list)
    """(message bytes, time in us, busbw) of every time."""
    wrong: int = 0
    """Times left out because the results were wrong."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Content of a file of nccl-tests."""

    timings: tuple[Timings, ...]
    device: str | None
    hosts: tuple[str, ...]
    ranks: int
    notes: tuple[str, ...]
    """Parts that were left out and why, one line each."""


def tables_of(text: str, where: str) -> Iterator[Table]:
    """Yield the tables of a text; `where` names the file in messages."""
    table, rows = Table(where), 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw[:MOST_CHARACTERS]
        test = _TEST.search(line) if "_perf" in line else None
        ends = test is not None and "concluded" in line
        begins = _VERSION.search(line) or _BEGIN.search(line)
        used = table.times_us or table.wrong
        # Logs may name the program again after its ranks: that begins no other table.
        if (begins and (used or table.groups)) or (test is not None and not ends and used):
            if used:
                yield table
            table = Table(where)
        if test is not None and (not ends or table.test is None):
            table.test = test[1]
        for pattern in (_VERSION, _LIBRARY):
            if said := pattern.search(line):
                table.version = f"{table.version}, {said[0]}" if table.version else said[0]
        if rank := _RANK.search(line):
            _add_rank(table, rank)
        elif _HEADER.search(line):
            table.columns = tuple(line[line.index("size") :].split())
            if "cputime" in table.columns:
                raise TraceError(f"{where}, line {number}: times of the CPU", "run the test without -C 1")
        elif row := _ROW.search(line):
            if not table.times_us:
                table.place = f"{where}, line {number}"
            rows += 1
            _add_row(table, [row[1], row[2], row[3], *row[4].split()])
        if rows > MOST_ROWS:
            raise TraceError(f"{where}: more than {MOST_ROWS} rows", "split the file")
    if table.times_us or table.wrong:
        yield table


def _add_rank(table: Table, rank: re.Match[str]) -> None:
    group = int(rank[2] or 0)
    if len(table.groups) < MOST_RANKS:
        table.groups[group] += 1
        table.hosts.setdefault(group, {})[rank[3]] = None
        table.device = table.device or rank[4].strip()


def _add_row(table: Table, tokens: Sequence[str]) -> None:
    """Add the times of a row, as far as it is whole."""
    size = int(tokens[0])
    for start in (column for column, name in enumerate(table.columns) if name == "time"):
        time, busbw = _number(tokens, start), _number(tokens, start + 2)
        if size == 0 or not time:
            continue
        if table.columns[start + 3 : start + 4] == ("#wrong",) and _number(tokens, start + 3):
            table.wrong += 1
            continue
        table.times_us.setdefault(size, []).append(time)
        if busbw is not None:
            table.busbw_gbps.append((size, time, busbw))


def _number(tokens: Sequence[str], place: int) -> float | None:
    if place >= len(tokens):
        return None
    try:
        value = float(tokens[place])
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e15 else None


def read_nccl_tests(
    text: str,
    where: str,
    *,
    file_name: str = "",
    op: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> Measured:
    """Return the times of a text that nccl-tests printed, or of the JSON that it writes with `-J`.

    The collective of a table is from its own lines, else `file_name`, else `op`. The places of the ranks are
    from its own lines, else `ranks` and `nodes`. Raises TraceError, in one line, if there is no table or some
    part of it is unknown. Also if its busbw is not the one that its times give for that collective.
    """
    if text.lstrip()[:1] == "{":
        tables = tables_of_json(text, where)
    else:
        tables = list(tables_of(text, where))
    timings: list[Timings] = []
    notes: list[str] = []
    hosts: dict[str, None] = {}
    device, most = None, 0
    for table in tables:
        test = _test(table, file_name, op)
        if test is None:
            notes.append(f"{table.place}: {table.test} is no collective of ours, left out")
            continue
        if table.wrong:
            notes.append(f"{table.place}: {table.wrong} times left out, their results were wrong")
        if not table.times_us:
            continue
        count, span = _where(table, ranks, nodes)
        _check(table, test, count)
        times_ns = {
            size: [max(1, round(us * 1000)) for us in times] for size, times in table.times_us.items()
        }
        said = f" ({table.version})" if table.version else ""
        for name in OPS_OF[test]:
            wide, over = (2, min(span, 2)) if test == "sendrecv" else (count, span)
            timings.append(
                Timings(name, wide, over, times_ns, f"nccl-tests{said}, {where}", _sharing(table, over))
            )
        hosts.update({host: None for group in table.hosts.values() for host in group})
        device, most = device or table.device, max(most, count)
    if not timings:
        raise TraceError(
            f"{where}: no table of nccl-tests in it" if not notes else notes[0],
            "give what all_reduce_perf, all_gather_perf or another of its tests printed",
        )
    return Measured(tuple(timings), device, tuple(hosts), most, tuple(notes))


def _test(table: Table, file_name: str, op: str | None) -> str | None:
    """Return the test's name; None if it is one that times no collective of ours."""
    if table.test is not None:
        return table.test if table.test in OPS_OF else None
    named = _FILE_NAME.search(file_name.lower())
    if named:
        return "alltoall" if named[1] == "all_to_all" else named[1]
    if op is None:
        raise TraceError(f"{table.place}: which collective this table is of is not said", "say it with --op")
    for test, ops in OPS_OF.items():
        if op in (test, *ops):
            return test
    raise TraceError(f"--op {op!r:.40} is no collective", f"choose of {', '.join(OPS_OF)}")


def _where(table: Table, ranks: int | None, nodes: int | None) -> tuple[int, int]:
    """Return how many ranks a group of the table has, and on how many hosts."""
    if table.groups:
        first = min(table.groups)
        count, span = table.groups[first], len(table.hosts[first])
        ranks, nodes = ranks or count, nodes or span
    if ranks is None:
        raise TraceError(f"{table.place}: its `Rank` lines are missing", "say --ranks and --nodes")
    nodes = nodes or 1
    if not 2 <= ranks <= MOST_RANKS or not 1 <= nodes <= ranks:
        raise TraceError(
            f"{table.place}: {ranks} ranks on {nodes} hosts is no group",
            "say --ranks and --nodes as they were",
        )
    return ranks, nodes


def _sharing(table: Table, nodes: int) -> int:
    """Return how many groups of a split test were on one host at once; 1 if they stay inside it."""
    if nodes == 1 or len(table.groups) < 2:
        return 1
    on_host = Counter(host for group in table.hosts.values() for host in group)
    return max(on_host.values())


def _check(table: Table, test: str, ranks: int) -> None:
    """Raise TraceError if most busbw printed are not those of this collective between so many ranks."""
    factor = busbw_factor(OPS_OF[test][0], ranks)
    if factor is None:
        return
    off = [
        (size, busbw, size / time / 1000 * factor)
        for size, time, busbw in table.busbw_gbps
        if abs(size / time / 1000 * factor - busbw) > BUSBW_ROUNDING_GBPS + BUSBW_SHARE * busbw
    ]
    if 2 * len(off) > len(table.busbw_gbps):
        size, busbw, ours = off[-1]
        raise TraceError(
            f"{table.place}: {size} bytes have busbw {busbw:g} GB/s, not the {ours:.3g} of {test} on {ranks}",
            "it is of another collective, or of other ranks: say --op or --ranks",
        )


# -- the JSON that nccl-tests writes with -J: the table it prints, with every iteration if it has them --

_JSON_HINT = "give the file as nccl-tests wrote it with -J"


def tables_of_json(text: str, where: str) -> list[Table]:
    """Return the one table of such a file; TraceError if it is not one."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not whole JSON ({str(error)[:80]})", _JSON_HINT) from error
    results = data.get("results") if isinstance(data, dict) else None
    if not isinstance(results, list):
        raise TraceError(f"{where}: JSON without `results`", _JSON_HINT)
    if len(results) > MOST_ROWS:
        raise TraceError(f"{where}: more than {MOST_ROWS} rows", "split the file")
    config = _mapping(data.get("config"))
    table = Table(where, test=_name(data.get("args")))
    _add_ranks(table, config)
    version = data.get("nccl_version")
    table.version = f"NCCL version {version}" if isinstance(version, int) else ""
    for row in results:
        _add(table, _mapping(row))
    return [table] if table.times_us else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(args: Any) -> str | None:
    if not isinstance(args, list) or not args or not isinstance(args[0], str):
        return None
    name, perf, _ = PurePath(args[0]).name.partition("_perf")
    return name[:80] if perf else None


def _add_ranks(table: Table, config: Mapping[str, Any]) -> None:
    devices = config.get("devices")
    if not isinstance(devices, list):
        return
    # One entry a process, which may drive several devices.
    each = 1
    for key in ("nthreads", "ngpus"):
        count = config.get(key)
        each *= count if isinstance(count, int) and 1 <= count <= 1024 else 1
    for device in devices[:MOST_RANKS]:
        entry = _mapping(device)
        host, group = entry.get("hostname"), entry.get("group")
        if not isinstance(host, str):
            continue
        rank = group if isinstance(group, int) else 0
        table.groups[rank] += each
        table.hosts.setdefault(rank, {})[host[:1024]] = None
        info = entry.get("device_info")
        if table.device is None and isinstance(info, str):
            table.device = info.strip()[:200]


def _add(table: Table, row: Mapping[str, Any]) -> None:
    size = row.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 1 << 60:
        return
    for key in ("out_of_place", "in_place"):
        body = _mapping(row.get(key))
        time, busbw, wrong = (_json_number(body.get(name)) for name in ("time", "bus_bw", "nwrong"))
        if not time:
            continue
        if wrong:
            table.wrong += 1
            continue
        each = _mapping(row.get(f"{key}_per_iter")).get("times_us")
        times = [_json_number(value) for value in each] if isinstance(each, list) else []
        kept = [value for value in times[:MOST_ROWS] if value]
        table.times_us.setdefault(size, []).extend(kept or [time])
        if busbw is not None:
            table.busbw_gbps.append((size, time, busbw))


def _json_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < 1e15 else None
