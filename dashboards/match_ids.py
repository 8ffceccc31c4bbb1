"""Which records of different ranks are one collective, told from the report's tables alone (rule 4).

The analyses match before there is a report and keep no numbers of it. Here the strict half of their rule is
enough: what agrees in group, sequence number (or order within the step), op and size is one collective, and
what is in doubt stays alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger import Report

Ints = npt.NDArray[np.int64]

_PEER_OPS: Final = ("send", "recv")
_SIZELESS: Final = ("barrier", "all_to_all")
"""Ranks need not agree on the size of these."""
NONE: Final = -1


def match_ids(report: Report) -> Ints:
    """Return a number for each row of `collectives` that the records of one collective share; -1 for none."""
    table = report.tables["collectives"]
    if not table.num_rows:
        return np.zeros(0, dtype=np.int64)
    op, ops = codes(table.column("op"))
    frame = pd.DataFrame(
        {
            "group": _group_ids(report, table),
            "rank": ints(table.column("rank")),
            "step": ints(table.column("step"), NONE),
            "seq": ints(table.column("seq"), NONE),
            "op": op,
            "bytes": ints(table.column("message_bytes"), NONE),
            "began": _asked(table),
        }
    )
    frame.loc[frame["op"].isin([at for at, name in enumerate(ops) if name in _SIZELESS]), "bytes"] = 0
    peers = frame["op"].isin([at for at, name in enumerate(ops) if name in _PEER_OPS])
    known = frame["group"] != NONE
    of_peers = frame.loc[known & peers, "group"].unique()
    live = report.run.source == "live"
    by_order = frame["group"].isin([*_unnumbered(frame[known & ~peers], live=live), *of_peers])
    found = np.full(len(frame), NONE, dtype=np.int64)
    numbered = frame[known & ~peers & ~by_order & (frame["seq"] != NONE)]
    _number(found, numbered, ["group", "seq", "op", "bytes"])
    ordered = frame[known & ~peers & by_order & (frame["step"] != NONE)]
    if len(ordered):
        ordered = ordered.assign(nth=_nth(ordered, ["group", "step"]))
        calls = ordered.groupby(["group", "step", "rank"])["nth"].transform("size")
        even = calls.groupby([ordered["group"], ordered["step"]]).transform("nunique") == 1
        _number(found, ordered[even], ["group", "step", "nth", "op", "bytes"])
    _number_messages(found, frame[known & peers & (frame["step"] != NONE)], table, ops)
    return found


def ints(column: pa.ChunkedArray, unknown: int = 0) -> Ints:
    """Return whole numbers with `unknown` where there is none."""
    values: Ints = pc.fill_null(column, unknown).to_numpy()
    return values


def codes(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """Return a code for each text, -1 where there is none, and the texts in order of their codes."""
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    values: Ints = encoded.indices.cast(pa.int64()).fill_null(NONE).to_numpy(zero_copy_only=False)
    return values, encoded.dictionary.to_pylist()


def _asked(table: pa.Table) -> Ints:
    """Return when each was asked for, which all ranks do in one order; the start where that is unknown."""
    return ints(pc.coalesce(table.column("issue_ns"), table.column("start_ns")))


def _group_ids(report: Report, table: pa.Table) -> Ints:
    """Return each row's group, told by name, member and size; -1 where the ranks of it are not known."""
    name, names = codes(table.column("group"))
    keys = pd.DataFrame(
        {"group": name, "rank": ints(table.column("rank")), "size": ints(table.column("group_size"))}
    )
    place = keys.groupby(["group", "rank", "size"], sort=False).ngroup().to_numpy(dtype=np.int64)
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    for group in report.groups:
        known.setdefault((group.name, group.ranks), len(known))
    by_name: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for (told, ranks), number in known.items():
        by_name.setdefault(told, []).append((ranks, number))
    members: Mapping[int, frozenset[int]] = {number: frozenset(ranks) for (_, ranks), number in known.items()}
    ids: list[int] = []
    for code, rank, size in keys.drop_duplicates().itertuples(index=False, name=None):
        here = by_name.get(names[code], [])
        fits = [number for ranks, number in here if len(ranks) == size and rank in members[number]]
        if not fits and size == report.run.world_size:
            # Never described, yet as large as the job: all ranks are in it.
            fits = [len(known) + code]
        ids.append(fits[0] if len(fits) == 1 else NONE)
    found: Ints = np.array(ids, dtype=np.int64)[place]
    return found


def _unnumbered(frame: pd.DataFrame, *, live: bool) -> list[int]:
    """Return groups in which sequence numbers cannot be compared: some are missing, or ranks began apart.

    The windows of traces may begin apart; the ranks of an audit begin together.
    """
    without: list[int] = frame.loc[frame["seq"] == NONE, "group"].unique().tolist()
    if not live:
        return without
    first = frame[frame["seq"] != NONE].groupby(["group", "rank"])["seq"].min()
    apart = first.groupby(level=0).nunique()
    return [*without, *apart.index[apart > 1].tolist()]


def _nth(frame: pd.DataFrame, place: list[str]) -> Ints:
    """Return each row's position among its rank's rows of the place, as they were asked for."""
    ordered = frame.sort_values("began", kind="stable")
    nth = ordered.groupby([*place, "rank"]).cumcount()
    found: Ints = nth.reindex(frame.index).to_numpy(dtype=np.int64)
    return found


def _number(found: Ints, frame: pd.DataFrame, key: list[str]) -> None:
    """Give the rows that agree in the key one number; several of a rank pair up in their order.

    A row that no other rank's agrees with gets none.
    """
    if frame.empty:
        return
    frame = frame.assign(again=_nth(frame, key))
    groups = frame.groupby([*key, "again"], sort=False)
    number = groups.ngroup().to_numpy(dtype=np.int64) + found.max(initial=NONE) + 1
    several = (groups["rank"].transform("size") > 1).to_numpy(dtype=bool)
    found[frame.index.to_numpy()] = np.where(several, number, NONE)


def _number_messages(found: Ints, frame: pd.DataFrame, table: pa.Table, ops: list[str]) -> None:
    """Pair sends with receives: the nth of one rank to another in a step, where both have as many."""
    if frame.empty:
        return
    peer = ints(table.column("root"), NONE)[frame.index.to_numpy()]
    sends = frame["op"].isin([at for at, name in enumerate(ops) if name == "send"]).to_numpy(dtype=bool)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    ends = frame.assign(source=np.where(sends, rank, peer), target=np.where(sends, peer, rank), sends=sends)[
        peer != NONE
    ]
    lane = ["group", "step", "source", "target"]
    ends = ends.assign(nth=_nth(ends, lane))
    even = ends["sends"].groupby([ends[name] for name in lane]).transform("mean") == 0.5
    _number(found, ends[even], [*lane, "nth", "bytes"])
