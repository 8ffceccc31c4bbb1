"""Data that the timeline draws from: rows, one for each rank or for each of its streams or groups, and
records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardtoll.dashboards.facts.row_codes import Ints
from shardtoll.dashboards.facts.sites import cause, plain
from shardtoll.dashboards.page.html.figure import Columns, Strings, literal, ms
from shardtoll.dashboards.page.views.timeline_clock import Clock
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.tables.tables import to_frame
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    import pandas as pd

RANKS: Final = 16
"""With more ranks each has one row: they would be too thin to see."""
EACH: Final = 4
"""Rows that a rank has at most; the last one then holds all its other streams or groups."""
OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class Lanes:
    """Rows from the top, numbered from 0."""

    of_call: Ints
    """Row of each collective of the frame."""
    ranks: tuple[int, ...]
    """Rank of each row."""
    names: tuple[str, ...]
    """Stream or group of each row; empty if its rank has no other."""
    notes: tuple[str, ...]

    def label(self, row: int) -> str:
        """Return what stands at the axis."""
        name = f" · {literal(self.names[row], 14)}" if self.names[row] else ""
        return f"rank {self.ranks[row]}{name}"

    def extent(self) -> dict[int, tuple[float, float]]:
        """Return rank -> the middle of its rows, and how far its first and last row lie from there."""
        extents = {}
        for rank in dict.fromkeys(self.ranks):
            rows = [row for row, each in enumerate(self.ranks) if each == rank]
            extents[rank] = ((rows[0] + rows[-1]) / 2, (rows[-1] - rows[0]) / 2)
        return extents


def lanes(calls: pd.DataFrame, ranks: Sequence[int]) -> Lanes:
    """Return the rows for a frame of collectives on these ranks.

    A rank's collectives are split by device stream if any is known, else by mesh dimension or group.
    """
    rank_of_call = calls["rank"].to_numpy(dtype=np.int64)
    row_of = {rank: row for row, rank in enumerate(ranks)}
    single = Lanes(_looked_up(rank_of_call, row_of), tuple(ranks), ("",) * len(ranks), ())
    if calls["stream"].notna().any():
        words = calls["stream"].map(lambda stream: f"stream {stream}", na_action="ignore").fillna("no stream")
        what = "stream"
    else:
        words, what = calls["mesh_dim"].fillna(calls["group"]), "group"
    words = words.astype(str)
    weight = calls["duration_ns"].groupby([calls["rank"], words]).sum().sort_index()
    if int(weight.groupby(level=0).size().max()) < 2:
        return single
    if len(ranks) > RANKS:
        note = f"Each rank has one row: there are {len(ranks)}, and up to {RANKS} have one for each {what}."
        return Lanes(single.of_call, single.ranks, single.names, (note,))
    place: dict[tuple[int, str], int] = {}
    rows: list[tuple[int, str]] = []
    folded = False
    for rank in ranks:
        names = list(weight[rank].index) if rank in weight.index.get_level_values(0) else []
        kept = names
        if len(names) > EACH:
            folded = True
            dear = weight[rank].sort_values(ascending=False, kind="stable").index[: EACH - 1]
            kept = [name for name in names if name in set(dear)]
        for name in kept:
            place[rank, name] = len(rows)
            rows.append((rank, name if len(names) > 1 else ""))
        for name in (name for name in names if name not in set(kept)):
            place[rank, name] = len(rows)
        if len(names) > len(kept):
            rows.append((rank, OTHERS))
        if not names:
            rows.append((rank, ""))
    pairs = (
        calls["rank"].astype("int64").to_frame("rank").assign(word=words).groupby(["rank", "word"], sort=True)
    )
    of_pair = np.array([place[int(rank), str(word)] for rank, word in pairs.size().index], dtype=np.int64)
    of_call: Ints = of_pair[pairs.ngroup().to_numpy(dtype=np.int64)]
    notes: tuple[str, ...] = ()
    if folded:
        notes = (f"A rank has at most {EACH} rows; the one named {OTHERS} holds its other {what}s.",)
    return Lanes(of_call, tuple(rank for rank, _ in rows), tuple(clip(name, 60) for _, name in rows), notes)


def _looked_up(rank_of_call: Ints, row_of: dict[int, int]) -> Ints:
    different, inverse = np.unique(rank_of_call, return_inverse=True)
    rows: Ints = np.array([row_of[int(rank)] for rank in different], dtype=np.int64)[inverse]
    return rows


def spans(rows: Sequence[float], start_ns: Sequence[int], length_ns: Sequence[int]) -> Columns:
    """Return rectangles: row, start and length in ms."""
    return {
        "row": list(rows),
        "start": [ms(start) for start in start_ns],
        "length": [ms(length) for length in length_ns],
    }


def steps(report: Report, extent: Mapping[int, tuple[float, float]], time: Clock) -> Columns:
    """Return the steps of the drawn ranks; `tall`: how far the rank's rows reach from the middle one."""
    table = report.tables["steps"].select(["step", "rank", "start_ns", "duration_ns"])
    listed = [step for step in plain(to_frame(table)) if step["rank"] in extent]
    middles = [extent[step["rank"]] for step in listed]
    starts = np.array([step["start_ns"] for step in listed], dtype=np.int64)
    return {
        **spans(
            [middle for middle, _ in middles],
            time.drawn(starts).tolist(),
            [step["duration_ns"] for step in listed],
        ),
        "step": [step["step"] for step in listed],
        "tall": [reach for _, reach in middles],
    }


def calls(listed: Sequence[dict[str, Any]], rows: Ints, met: Ints, strings: Strings, time: Clock) -> Columns:
    """Return the collectives; `met`: equal on the ranks that met in one, null if unknown."""
    starts = np.array([call["start_ns"] for call in listed], dtype=np.int64)

    def column(name: str) -> list[float | None]:
        return [None if call[name] is None else ms(call[name]) for call in listed]

    # Small numbers in the order of the rows, however many collectives are folded.
    numbers: dict[int, int] = {}
    meets = [None if each < 0 else numbers.setdefault(each, len(numbers)) for each in met.tolist()]
    return {
        **spans(rows.tolist(), time.drawn(starts).tolist(), [call["duration_ns"] for call in listed]),
        "exposed": column("exposed_ns"),
        "wait": column("wait_ns"),
        "floor": column("floor_ns"),
        "step": [call["step"] for call in listed],
        "number": [call["seq"] for call in listed],
        "met": meets,
        "text": [strings.add(_words(call)) for call in listed],
    }


def _words(call: dict[str, Any]) -> str:
    """Description and cause of the collective; its rank and numbers stand in the columns. Shown as plain
    text."""
    net = call["mesh_dim"] or f"group {call['group']}"
    group = f"×{call['group_size']} {clip(net, 40)}"
    head = f"{clip(call['op'], 40)} {group}, {human.size(call['message_bytes'])}"
    return f"{head}\n{cause(SimpleNamespace(**call))}"
