"""Tokens that an all_to_all hands out, and the later one that brings back what was made of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep, with_columns

MATRICES: Final = r"aten\.(?:mm|addmm|_scaled_mm)\.|grouped_mm"
"""Operators that multiply by weights; those of attention multiply what all_to_all brought by itself."""


@once
def exchanges(context: Context) -> pd.DataFrame:
    """Return the rows of the all_to_alls that hand out, in the steps `alike`, with `back` and more columns.

    A return exchange sends each rank what it got and gets what it sent, in the same step, phase and group.
    `back` is its row of the same rank. `nth` counts the exchanges of one line in a step and phase. `lines`
    are the lines of both, in any order: backward runs them the other way round. `load` is the bytes that the
    rank received over its group's mean. `busiest` is the rank that received most; null if several received as
    much.
    """
    frame = context.in_alike
    floats = frame["dtype"].fillna("").str.contains("float")
    known = frame["received_bytes"].notna() & frame["message_bytes"].notna() & frame["match_id"].notna()
    frame = keep(frame, (frame["op"] == "all_to_all") & (frame["group_size"] > 1) & floats & known)
    ranks = frame.groupby("match_id")["rank"].transform("nunique")
    frame = keep(frame, ranks == frame["group_size"])
    if frame.empty:
        return frame
    frame = with_columns(
        frame,
        sent_key=_key(frame, "message_bytes"),
        got_key=_key(frame, "received_bytes"),
        mean=frame.groupby("match_id")["received_bytes"].transform("mean").astype("float64"),
    )
    frame = keep(frame, frame["mean"] > 0)
    back = _backs(frame)
    there = keep(frame, frame["match_id"].isin(list(back)))
    row_of = {
        (int(match), int(rank)): int(row)
        for row, match, rank in zip(frame.index, frame["match_id"], frame["rank"], strict=True)
    }
    rows = [
        row_of[back[int(match)], int(rank)]
        for match, rank in zip(there["match_id"], there["rank"], strict=True)
    ]
    sources = [
        sorted({str(a), str(b)}) for a, b in zip(there["source"], frame.loc[rows, "source"], strict=True)
    ]
    there = with_columns(
        there,
        back=rows,
        lines=[" ".join(pair) for pair in sources],
        load=(there["received_bytes"].astype("float64") / there["mean"]),
        busiest=_busiest(there),
    )
    order = there["issue_ns"].fillna(there["start_ns"]).sort_values(kind="stable").index
    nth = there.loc[order].groupby(["step", "rank", "group", "phase", "lines"]).cumcount()
    counted: pd.DataFrame = with_columns(there, nth=nth.reindex(there.index))
    return counted


def _key(frame: pd.DataFrame, column: str) -> pd.Series[Any]:
    """Return a number for what each rank has in the column, equal for all rows of a collective."""
    plain = pd.DataFrame({name: frame[name].astype("int64").to_numpy() for name in ("rank", column)})
    each = pd.Series(pd.util.hash_pandas_object(plain, index=False).to_numpy(), index=frame.index)
    key: pd.Series[Any] = each.groupby(frame["match_id"]).transform("sum")
    return key


def _backs(frame: pd.DataFrame) -> dict[int, int]:
    """Return for each all_to_all that hands out the one that brings back, by their matches."""
    first = with_columns(frame, at=frame["issue_ns"].fillna(frame["start_ns"])).sort_values(
        "at", kind="stable"
    )
    first = first.drop_duplicates("match_id")
    under_way: dict[tuple[Any, ...], list[int]] = {}
    back: dict[int, int] = {}
    columns = ("group_id", "step", "phase", "sent_key", "got_key", "match_id")
    for group, step, phase, sent, got, match in zip(*(first[name].tolist() for name in columns), strict=True):
        waiting = under_way.get((group, step, phase, got, sent))
        if waiting:
            back[int(waiting.pop())] = int(match)
        else:
            under_way.setdefault((group, step, phase, sent, got), []).append(match)
    return back


def _busiest(there: pd.DataFrame) -> pd.Series[Any]:
    most = there["received_bytes"] == there.groupby("match_id")["received_bytes"].transform("max")
    alone = most.groupby(there["match_id"]).transform("sum") == 1
    rank = there["rank"].astype("Int64").where(most & alone)
    busiest: pd.Series[Any] = rank.groupby(there["match_id"]).transform("max")
    return busiest


def computed_between(context: Context, there: pd.DataFrame) -> bool | None:
    """Return whether ranks multiply by weights between handing out and bringing back.

    None if no step shows it: operators are recorded in surveyed steps only.
    """
    surveyed = keep(there, there["step"].isin(context.surveyed))
    computes = context.computes_in_steps
    if surveyed.empty or computes.empty:
        return None
    weights = computes["parameter"].notna() | computes["op"].str.contains(MATRICES).astype(bool)
    computes = keep(computes, weights)
    began = surveyed["issue_ns"].to_numpy(dtype=np.int64, na_value=0)
    ended = context.collectives.loc[surveyed["back"], "issue_ns"].to_numpy(dtype=np.int64, na_value=0)
    at = {
        (step, rank): np.sort(rows["start_ns"].to_numpy(dtype=np.int64))
        for (step, rank), rows in computes.groupby(["step", "rank"])
    }
    none = np.empty(0, dtype=np.int64)
    for step, rank, begin, end in zip(surveyed["step"], surveyed["rank"], began, ended, strict=True):
        times = at.get((step, rank), none)
        if np.searchsorted(times, end) > np.searchsorted(times, begin):
            return True
    return False
