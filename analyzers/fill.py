"""What becomes known of a collective once its ranks are matched and a fabric is chosen."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.clocks import LEAST_NS, SYNCHRONISING, Clocks
from shardtoll.analyzers.match import UNEVEN_OPS, Bools, Ints, Matches
from shardtoll.analyzers.peers import PEER_OPS
from shardtoll.analyzers.roofline import Fabric, Placement, collective_cost, place, ranks_per_host
from shardtoll.analyzers.tally import codes, number
from shardtoll.ledger import Run
from shardtoll.ledger.volume import busbw_factor

CLOCK_SLACK_NS: Final = 1_000_000
"""A rank that seems to leave earlier than that before the last arrival has another clock: ranks of
one host agree to microseconds, and hosts under NTP to about a millisecond."""


def _filled(frame: pd.DataFrame, column: str, values: npt.NDArray[Any], known: Bools) -> pd.Series[Any]:
    """Return the known values as a nullable column; elsewhere what the record itself held."""
    column_is: pd.Series[Any] = frame[column].copy()
    column_is[known] = values[known]
    return column_is


def add_waits(frame: pd.DataFrame, matches: Matches, clocks: Clocks) -> pd.DataFrame:
    """Return `frame` with wait_ns, transfer_ns and, new, arrival_ns, skew_ns and torn.

    arrival_ns: the start as the reference's clock has it, where clocks are known to be off.

    wait: from this rank's start to the last rank's, within this rank's own span. transfer: the
    rest of the span. Both stay unknown where a rank is missing or a time is, where the ranks' clocks are
    not tied to each other, and where they plainly disagree: skew_ns is then how far apart the ends lie,
    which ranks reach together. torn: a rank left before another arrived although all share a clock, so
    that the record and not the clock must be wrong. Collectives of no bytes, and those to which ranks
    give different amounts, need not wait for everybody: they are neither.
    """
    frame = frame.copy(deep=False)  # columns are replaced whole, never written into
    has_time = (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    whole = matches.rows["whole"].to_numpy(dtype=bool)
    rank: Ints = frame["rank"].to_numpy(dtype=np.int64)
    start: Ints = clocks.corrected(rank, frame["start_ns"].to_numpy(dtype=np.int64, na_value=0))
    span: Ints = frame["duration_ns"].to_numpy(dtype=np.int64, na_value=0)
    match_id = matches.rows["match_id"].to_numpy(dtype=np.int64, na_value=-1)
    spans = pd.DataFrame({"match": match_id, "start": start, "end": start + span, "has_time": has_time})
    spans["clock"] = clocks.codes(rank)
    spans["frame"] = clocks.frames(rank)
    spans["bytes"] = frame["message_bytes"].to_numpy(dtype=np.int64, na_value=0)
    of_match = spans[whole].groupby("match")
    by_match = pd.DataFrame(
        {
            "last": of_match["start"].max(),
            "first_end": of_match["end"].min(),
            "has_time": of_match["has_time"].all(),
            "last_end": of_match["end"].max(),
            "clocks": of_match["clock"].max() - of_match["clock"].min(),
            "frames": of_match["frame"].max() - of_match["frame"].min(),
            "bytes": of_match["bytes"].max() - of_match["bytes"].min(),
        }
    )
    by_row = by_match.reindex(match_id)
    timed = by_row["has_time"].eq(True).to_numpy(dtype=bool)
    last = by_row["last"].fillna(0).to_numpy(dtype=np.int64)
    early = last - by_row["first_end"].fillna(0).to_numpy(dtype=np.int64)
    apart = (by_row["last_end"] - by_row["first_end"]).fillna(0).to_numpy(dtype=np.int64)
    untied = timed & (by_row["frames"].fillna(0).to_numpy(dtype=np.int64) > 0)
    several = by_row["clocks"].fillna(0).to_numpy(dtype=np.int64) > 0
    no_bytes = (frame["message_bytes"] == 0) & (frame["op"] != "barrier")
    uneven = frame["op"].isin(UNEVEN_OPS).to_numpy(dtype=bool) & (by_row["bytes"] > 0).to_numpy(dtype=bool)
    synchronising = frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool) & ~uneven
    off = timed & synchronising & (early > CLOCK_SLACK_NS)
    skewed = (off & several) | (untied & synchronising & (apart > LEAST_NS))
    nothing = no_bytes.to_numpy(dtype=bool, na_value=False)
    wait = np.clip(last - start, 0, span)
    told = timed & ~off & ~untied
    frame["wait_ns"] = _filled(frame, "wait_ns", wait, told)
    frame["transfer_ns"] = _filled(frame, "transfer_ns", span - wait, told)
    frame["arrival_ns"] = pd.arrays.IntegerArray(start, ~has_time)
    frame["skew_ns"] = pd.arrays.IntegerArray(apart, ~(skewed & ~nothing))
    frame["torn"] = off & ~several & ~nothing
    return frame


def add_busbw(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `frame` with busbw_gbps: message bytes over transfer time, times nccl-tests' factor."""
    frame = frame.copy(deep=False)  # columns are replaced whole, never written into
    code, keys = codes(frame, ["op", "group_size"])
    factors = [busbw_factor(op, int(n)) for op, n in zip(keys["op"], keys["group_size"], strict=True)]
    factor = np.array([np.nan if f is None else f for f in factors], dtype=np.float64)[code]
    size = frame["message_bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    transfer = frame["transfer_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    known = (transfer > 0) & ~np.isnan(size) & ~np.isnan(factor)
    # bytes / ns is GB/s (1e9).
    busbw = np.divide(size * factor, transfer, out=np.zeros(len(frame)), where=known)
    frame["busbw_gbps"] = _filled(frame, "busbw_gbps", busbw, known)
    return frame


def add_floors(frame: pd.DataFrame, matches: Matches, run: Run, fabric: Fabric) -> pd.DataFrame:
    """Return `frame` with floor_ns and, new, floor_latency_ns, group_id, match_id.

    A send or recv is placed by its peer (`root`), other ops by their group; unknown stays unknown.
    """
    frame = frame.copy(deep=False)  # columns are replaced whole, never written into
    for name in ("group_id", "match_id"):
        frame[name] = matches.rows[name].array
    peers = frame["op"].isin(PEER_OPS)
    frame["_own"], frame["_peer"] = frame["rank"].where(peers), frame["root"].where(peers)
    columns = ["op", "message_bytes", "group_id", "group_size", "_own", "_peer"]
    code, keys = codes(frame, columns)
    per_host = ranks_per_host(run, fabric)
    costs = []
    for op, size, group, group_size, own, peer in keys[columns].itertuples(index=False):
        at: Placement | None = None
        if op in PEER_OPS:
            at = None if pd.isna(peer) or peer == own else place((int(own), int(peer)), per_host)
        elif not pd.isna(group):
            at = place(matches.members[int(group)], per_host)
        elif group_size == 1 and run.source != "trace":  # in a trace it may stand for an unknown size
            at = place((0,), per_host)
        costs.append(collective_cost(fabric, op, number(size), at))
    known = np.array([cost is not None for cost in costs], dtype=bool)
    floor = np.array([0 if cost is None else cost.time_ns for cost in costs], dtype=np.int64)
    latency = np.array([0 if cost is None else cost.latency_ns for cost in costs], dtype=np.int64)
    frame["floor_ns"] = _filled(frame, "floor_ns", floor[code], known[code])
    frame["floor_latency_ns"] = pd.arrays.IntegerArray(latency[code], ~known[code])
    filled: pd.DataFrame = frame.drop(columns=["_own", "_peer"])
    return filled
