"""The JSON that nccl-tests writes with `-J`: the table it prints, with every iteration where it has them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from shardtoll.ledger import TraceError
from shardtoll.profiler.traces.nccl_tests import MOST_RANKS, MOST_ROWS, Table

_HINT = "give the file as nccl-tests wrote it with -J"


def tables_of_json(text: str, where: str) -> list[Table]:
    """Return the one table of such a file; TraceError where it is not one."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not whole JSON ({str(error)[:80]})", _HINT) from error
    results = data.get("results") if isinstance(data, dict) else None
    if not isinstance(results, list):
        raise TraceError(f"{where}: JSON without `results`", _HINT)
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
        own = group if isinstance(group, int) else 0
        table.groups[own] += each
        table.hosts.setdefault(own, {})[host[:1024]] = None
        info = entry.get("device_info")
        if table.device is None and isinstance(info, str):
            table.device = info.strip()[:200]


def _add(table: Table, row: Mapping[str, Any]) -> None:
    size = row.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 1 << 60:
        return
    for key in ("out_of_place", "in_place"):
        body = _mapping(row.get(key))
        time, busbw, wrong = (_number(body.get(name)) for name in ("time", "bus_bw", "nwrong"))
        if not time:
            continue
        if wrong:
            table.wrong += 1
            continue
        each = _mapping(row.get(f"{key}_per_iter")).get("times_us")
        times = [_number(value) for value in each] if isinstance(each, list) else []
        kept = [value for value in times[:MOST_ROWS] if value]
        table.times_us.setdefault(size, []).extend(kept or [time])
        if busbw is not None:
            table.busbw_gbps.append((size, time, busbw))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < 1e15 else None
