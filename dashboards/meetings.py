"""Which records of several ranks are one collective: where they met."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shardtoll.dashboards.row_codes import Ints, row_codes
from shardtoll.ledger import Report


def meetings(report: Report) -> Ints:
    """Return a number for each row of the report's collectives, equal on the ranks that met; -1 unknown.

    Same group, sequence number, op and size is one collective. Groups that share a name are told apart by
    their ranks. Where a rank has several of one number, their order tells them apart. Rows without a number,
    of a group nobody described, or of one rank alone, met nobody that is on record.
    """
    table = report.tables["collectives"].select(["group", "rank", "group_size", "seq", "op", "message_bytes"])
    rows = table.num_rows
    own = _members(report, table)
    table = table.append_column("members", pa.array(own))
    keys = ["members", "seq", "op", "message_bytes"]
    alike, _ = row_codes(table, [*keys, "rank"])
    table = table.append_column("nth", pa.array(_place(alike)))
    code, first = row_codes(table, [*keys, "nth"])
    ranks = np.bincount(code, minlength=len(first)) if rows else np.zeros(0, dtype=np.int64)
    numbered = table.column("seq").is_valid().to_numpy()
    met: Ints = np.where(numbered & (own >= 0) & (ranks[code] > 1), code, -1) if rows else code
    return met


def _members(report: Report, table: pa.Table) -> Ints:
    """Return for each row the number of its group among the report's; -1 where several or none fit."""
    world = tuple(range(report.run.world_size))
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    by_name: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for group in report.groups:
        ranks = by_name.setdefault((group.name, group.size), [])
        if group.ranks not in ranks:
            ranks.append(group.ranks)
    code, first = row_codes(table, ["group", "rank", "group_size"])
    kinds = table.select(["group", "rank", "group_size"]).take(first).to_pylist()
    found = np.full(len(kinds), -1, dtype=np.int64)
    for at, kind in enumerate(kinds):
        fits = [r for r in by_name.get((kind["group"], kind["group_size"]), ()) if kind["rank"] in r]
        if not fits and kind["group_size"] == len(world):
            fits = [world]
        if len(fits) == 1:
            found[at] = numbers.setdefault((kind["group"], fits[0]), len(numbers))
    own: Ints = found[code]
    return own


def _place(codes: Ints) -> Ints:
    """Return each row's position among those of its code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1) != 0)
    within = np.arange(len(codes)) - np.repeat(starts, np.diff(starts, append=len(codes)))
    place: Ints = np.empty(len(codes), dtype=np.int64)
    place[order] = within
    return place
