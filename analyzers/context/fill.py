"""Fills in what is known of a collective once its ranks are matched and a fabric is chosen.

`add_waits` has the time that a rank waited for its peers, others add bus bandwidth and floors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.clocks import LEAST_NS, Clocks
from shardtoll.analyzers.context.match import UNEVEN_OPS, Bools, Ints, Matches
from shardtoll.analyzers.context.peers import PEER_OPS, ROOTED, SYNCHRONISING
from shardtoll.analyzers.context.rooted import rooted
from shardtoll.analyzers.context.sharing import alike, at_once
from shardtoll.analyzers.roofline import Cost, Fabric, Placement, collective_costs, place, ranks_per_host
from shardtoll.analyzers.shared.tally import changes, codes, keep, number
from shardtoll.ledger import Run
from shardtoll.ledger.records.volume import busbw_factor

CLOCK_SLACK_NS: Final = 1_000_000
"""A rank that seems to leave earlier than that before the last arrival has another clock. Ranks of one host
agree to microseconds, and hosts under NTP to about a millisecond."""

LEAST_LATE_NS: Final = 10_000
"""A rank that comes less than this after the one before it is not late: somebody is always last."""

KINDS: Final = ("op", "message_bytes", "group_id", "group_size", "_own", "_peer")
"""Collectives that are equal in these cost the same."""


def _filled(
    frame: pd.DataFrame, column: str, values: npt.NDArray[Any], is_filled: Bools
) -> pd.api.extensions.ExtensionArray:
    """Return the known values as a nullable column; elsewhere what the record itself held."""
    recorded = frame[column]
    unknown = ~is_filled & recorded.isna().to_numpy(dtype=bool)
    whole = recorded.to_numpy(dtype=values.dtype, na_value=0)
    made = pd.arrays.FloatingArray if values.dtype == np.float64 else pd.arrays.IntegerArray
    return made(np.where(is_filled, values, whole), unknown)


def add_waits(
    frame: pd.DataFrame, matches: Matches, clocks: Clocks, *, live: bool, place: Ints
) -> pd.DataFrame:
    """Return `frame` with wait_ns, transfer_ns, waited_ns, late_rank, late_ns and, new, arrival_ns, skew_ns,
    torn, last_rank, last_ns, after_ns, whole_ns. root_place is the `place` of `held.places`.

    `arrival_ns`: the start by the reference's clock, if clocks are known to be off.

    `wait`: from this rank's start to the last rank's, within this rank's own span. `transfer`: the rest of
    the span. If an audit (`live`) saw a send, its transfer lasts at most as long as its receiver's. Both stay
    unknown if a rank or a time is missing, or if the ranks' clocks are not tied to each other or plainly
    disagree. `skew_ns` is then how far apart the ends lie, which ranks reach together. `torn`: a rank left
    before another arrived although all share a clock, so the record must be wrong, not the clock. Collectives
    of no bytes, and those to which ranks give different amounts, need not wait for everybody: they are
    neither. Ranks of a rooted operation wait only for those they need (see `rooted`). There, the rank that
    the others need counts as the last one. `whole_ns`: how long such an operation took as a whole, which no
    rank's own span shows. All of that is unknown if the root is. `waited_ns`: exposed time that is not
    transfer. `last_rank`, `last_ns`, `after_ns`: the seen rank that arrived last, when it did, and how long
    after the one before it. `late_rank` and `late_ns` are the same if wait is known.
    """
    frame = frame.copy(deep=False)  # columns are replaced whole, never written into
    has_time = (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    whole = matches.rows["whole"].to_numpy(dtype=bool)
    rank: Ints = frame["rank"].to_numpy(dtype=np.int64)
    start: Ints = clocks.corrected(rank, frame["start_ns"].to_numpy(dtype=np.int64, na_value=0))
    span: Ints = frame["duration_ns"].to_numpy(dtype=np.int64, na_value=0)
    match_id = matches.rows["match_id"].to_numpy(dtype=np.int64, na_value=-1)
    end = start + span
    of_match = _Spread.of(match_id, whole)
    timed = of_match.there & (of_match.least(has_time) > 0)
    last, first_end = of_match.most(start), of_match.least(end)
    early, apart = last - first_end, of_match.most(end) - first_end
    untied = timed & of_match.differs(clocks.frames(rank))
    several = of_match.differs(clocks.codes(rank))
    size: Ints = frame["message_bytes"].to_numpy(dtype=np.int64, na_value=0)
    empty = (frame["message_bytes"] == 0).to_numpy(dtype=bool, na_value=False)
    nothing = empty & (frame["op"] != "barrier").to_numpy(dtype=bool)
    uneven = frame["op"].isin(UNEVEN_OPS).to_numpy(dtype=bool) & of_match.differs(size)
    synchronising = frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool) & ~uneven
    off = timed & synchronising & (early > CLOCK_SLACK_NS)
    skewed = (off & several) | (untied & synchronising & (apart > LEAST_NS))
    of_root = rooted(frame, match_id, start, span, whole & timed & ~untied, place)
    wait = np.clip(np.where(of_root.rows, of_root.release_ns, last) - start, 0, span)
    # A send that is waited for late has been on record for long after its receiver had all of it.
    is_send = live & frame["op"].eq("send").to_numpy(dtype=bool, na_value=False)
    received = np.clip(first_end - start, wait, span)
    transfer = np.where(is_send, received, span) - wait
    divided = timed & ~off & ~untied & (~of_root.rows | of_root.known)
    frame["wait_ns"] = _filled(frame, "wait_ns", wait, divided)
    frame["transfer_ns"] = _filled(frame, "transfer_ns", transfer, divided)
    frame["arrival_ns"] = pd.arrays.IntegerArray(start, ~has_time)
    frame["skew_ns"] = pd.arrays.IntegerArray(apart, ~(skewed & ~nothing))
    frame["torn"] = off & ~several & ~nothing
    arrived, last_rank, last_ns, after = _last_arrivals(match_id, rank, start, has_time)
    last_rank = np.where(of_root.known, of_root.awaited_rank, last_rank)
    last_ns = np.where(of_root.known, of_root.awaited_ns, last_ns)
    after = np.where(of_root.known, of_root.late_ns, after)
    frame["root_place"] = place
    frame["whole_ns"] = pd.arrays.IntegerArray(of_root.whole_ns, ~of_root.known)
    for name, values in (("last_rank", last_rank), ("last_ns", last_ns), ("after_ns", after)):
        frame[name] = pd.arrays.IntegerArray(values, ~arrived)
    arrived &= divided & whole
    frame["late_rank"] = _filled(frame, "late_rank", last_rank, arrived & (after >= LEAST_LATE_NS))
    frame["late_ns"] = _filled(frame, "late_ns", after, arrived)
    exposed, moved = frame["exposed_ns"], frame["transfer_ns"]
    waited = exposed.to_numpy(dtype=np.int64, na_value=0) - moved.to_numpy(dtype=np.int64, na_value=0)
    unknown = (exposed.isna() | moved.isna()).to_numpy(dtype=bool)
    frame["waited_ns"] = pd.arrays.IntegerArray(np.maximum(waited, 0), unknown)
    return frame


class _Spread(Struct, frozen=True):
    """Least and largest values of whole matches, spread over the rows of each; 0 in rows of no such match."""

    order: Ints
    """Rows of whole matches, those of a match one after the other."""
    starts: Ints
    """Places in `order`."""
    place: Ints
    """The match of each row in `starts`."""
    there: Bools
    """Whether each row is of a match of which a record is whole."""

    @classmethod
    def of(cls, match_id: Ints, whole: Bools) -> _Spread:
        rows = np.flatnonzero(whole)
        order = rows[np.argsort(match_id[rows], kind="stable")]
        starts = np.flatnonzero(changes(match_id[order]))
        ids = match_id[order][starts]
        place = np.searchsorted(ids, match_id)
        place[place == len(ids)] = 0
        there = ids[place] == match_id if len(ids) else np.zeros(len(match_id), dtype=np.bool_)
        return cls(order, starts, place, there)

    def least(self, values: npt.NDArray[Any]) -> Ints:
        return self._spread(np.minimum, values)

    def most(self, values: npt.NDArray[Any]) -> Ints:
        return self._spread(np.maximum, values)

    def differs(self, values: Ints) -> Bools:
        """Return for each row whether its match has several values."""
        differs: Bools = self.least(values) != self.most(values)
        return differs

    def _spread(self, function: np.ufunc, values: npt.NDArray[Any]) -> Ints:
        spread = np.zeros(len(self.place), dtype=np.int64)
        if len(self.starts):
            of_each = function.reduceat(values[self.order], self.starts)
            spread[self.there] = of_each[self.place[self.there]]
        return spread


def _last_arrivals(match_id: Ints, rank: Ints, start: Ints, timed: Bools) -> tuple[Bools, Ints, Ints, Ints]:
    """Return for each row whether the last arrival at its collective is known, which needs times of all its
    records. Further: the rank that arrived last, when, and how long after the one before it."""
    order = np.flatnonzero(match_id >= 0)
    order = order[np.lexsort((start[order], match_id[order]))]
    ends = np.flatnonzero(np.diff(match_id[order], append=-1))
    last = order[ends]
    before = order[np.maximum(ends - 1, 0)]
    after = np.where(match_id[before] == match_id[last], start[last] - start[before], 0)
    place = np.zeros(len(rank), dtype=np.int64)
    place[order] = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=-1))
    untimed = np.zeros(len(ends), dtype=bool)
    untimed[place[(match_id >= 0) & ~timed]] = True
    if not len(ends):
        return np.zeros(len(rank), dtype=bool), place, place, place
    return (match_id >= 0) & ~untimed[place], rank[last][place], start[last][place], after[place]


def add_busbw(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `frame` with busbw_gbps: message bytes over transfer time, times nccl-tests' factor.

    A rooted operation is divided by the time of the whole: one rank's time in it is a part of that. A rank
    that comes late to receive makes the whole longer, so there it is a lower bound.
    """
    frame = frame.copy(deep=False)  # columns are replaced whole, never written into
    columns = ["op", "group_size"]
    code, keys = codes(frame[columns], columns)
    factors = [busbw_factor(op, int(n)) for op, n in zip(keys["op"], keys["group_size"], strict=True)]
    factor = np.array([np.nan if f is None else f for f in factors], dtype=np.float64)[code]
    size = frame["message_bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    moved, whole = (
        frame[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in ("transfer_ns", "whole_ns")
    )
    transfer = np.where(frame["op"].isin(ROOTED).to_numpy(dtype=bool), whole, moved)
    computable = (transfer > 0) & ~np.isnan(size) & ~np.isnan(factor)
    # bytes / ns is GB/s (1e9).
    busbw = np.divide(size * factor, transfer, out=np.zeros(len(frame)), where=computable)
    frame["busbw_gbps"] = _filled(frame, "busbw_gbps", busbw, computable)
    return frame


def add_floors(
    frame: pd.DataFrame, matches: Matches, run: Run, fabric: Fabric
) -> tuple[pd.DataFrame, tuple[Cost, ...], tuple[Placement, ...]]:
    """Return `frame` with floor_ns, expected_ns, light_ns, the band and, new, expected_latency_ns, group_id,
    match_id and cost_id; and the costs that cost_id counts in, with where the ranks of each stand.

    A send or recv is placed by its peer (`root`), other ops by their group; unknown stays unknown. How many
    groups share the network cards of a node follows from the mesh and, if times are known, from them.
    """
    frame = frame.copy(deep=False)  # columns are replaced whole, never written into
    for name in ("group_id", "match_id"):
        frame[name] = matches.rows[name].array
    peers = frame["op"].isin(PEER_OPS)
    ends = {"_own": frame["rank"].where(peers), "_peer": frame["root"].where(peers)}
    code, keys = codes(frame[list(KINDS[:4])].assign(**ends), KINDS)
    placed = _shared(frame, code, keys, _placed(keys, matches, run, fabric), matches, run, fabric)
    costs = _costs(keys, placed, fabric)
    has_cost = np.array([cost is not None for cost in costs], dtype=bool)
    known_costs = [cost for cost in costs if cost is not None]
    ids = np.cumsum(has_cost) - 1

    def of(values: list[int]) -> Ints:
        # A frame without a known cost takes none of these.
        column: Ints = np.array(values or [0], dtype=np.int64)[np.maximum(ids, 0)]
        return column

    for name, values in (
        ("floor_ns", [cost.floor_ns for cost in known_costs]),
        ("expected_ns", [cost.time_ns for cost in known_costs]),
        ("light_ns", [cost.light_ns for cost in known_costs]),
        ("band_low_ns", [cost.low_ns for cost in known_costs]),
        ("band_high_ns", [cost.high_ns for cost in known_costs]),
    ):
        frame[name] = _filled(frame, name, of(values)[code], has_cost[code])
    for name, ids_or_ns in (
        ("expected_latency_ns", of([cost.latency_ns for cost in known_costs])),
        ("cost_id", ids),
    ):
        frame[name] = pd.arrays.IntegerArray(ids_or_ns[code].astype(np.int64), ~has_cost[code])
    places = (
        placement for placement, has in zip(placed, has_cost, strict=True) if placement is not None and has
    )
    return frame, tuple(known_costs), tuple(places)


def _costs(keys: pd.DataFrame, placed: list[Placement | None], fabric: Fabric) -> list[Cost | None]:
    """Return what each kind of collective costs. All sizes of an op and placement are priced at once, as
    there may be as many sizes as rows."""
    kinds: dict[tuple[str, Placement | None], list[int]] = {}
    for kind, key in enumerate(zip(keys["op"], placed, strict=True)):
        kinds.setdefault(key, []).append(kind)
    sizes = [number(size) for size in keys["message_bytes"]]
    costs: list[Cost | None] = [None] * len(placed)
    for (op, placement), alike_kinds in kinds.items():
        costs_of_sizes = collective_costs(fabric, op, [sizes[kind] for kind in alike_kinds], placement)
        for kind, cost in zip(alike_kinds, costs_of_sizes, strict=True):
            costs[kind] = cost
    return costs


def _placed(keys: pd.DataFrame, matches: Matches, run: Run, fabric: Fabric) -> list[Placement | None]:
    """Return where the ranks of each kind of collective stand; None unknown."""
    per_host = ranks_per_host(run, fabric)
    placed: list[Placement | None] = []
    columns = ["op", "group_id", "group_size", "_own", "_peer"]
    for op, group, group_size, rank, peer in keys[columns].itertuples(index=False):
        placement: Placement | None = None
        if op in PEER_OPS:
            placement = None if pd.isna(peer) or peer == rank else place((int(rank), int(peer)), per_host)
        elif not pd.isna(group):
            placement = place(matches.members[int(group)], per_host)
        elif group_size == 1 and run.source != "trace":  # in a trace it may stand for an unknown size
            placement = place((0,), per_host)
        placed.append(placement)
    return placed


def _shared(
    frame: pd.DataFrame,
    code: Ints,
    keys: pd.DataFrame,
    placed: list[Placement | None],
    matches: Matches,
    run: Run,
    fabric: Fabric,
) -> list[Placement | None]:
    """Return the placements with how many groups use the cards of a node at once; `code`: each row's."""
    crossing = np.array([placement is not None and placement.spans_nodes for placement in placed], dtype=bool)
    per_host = ranks_per_host(run, fabric)
    if not crossing.any() or per_host is None:
        return placed
    might = alike(frame, matches.members, run, per_host)
    did = at_once(keep(frame, crossing[code]).assign(kind=code[crossing[code]]), matches.members, per_host)
    seen_of = did.to_dict()
    shared = list(placed)
    # A kind may be a single row, as when experts get another number of tokens each time.
    columns = (keys[name].to_list() for name in ("op", "_own", "group_id"))
    for kind, (placement, op, rank, group) in enumerate(zip(placed, *columns, strict=True)):
        if placement is None or not placement.spans_nodes:
            continue
        most = might.messages(int(rank), op) if op in PEER_OPS else might.groups(int(group), op)
        # No more than there are, and never none; half a group more or less on average is rounded.
        mean = max(1.0, min(most, seen_of.get(kind, most)))
        sharing, surely = round(mean), math.floor(mean)
        shared[kind] = replace(
            placement, sharing=sharing, surely_sharing=surely if surely < sharing else None
        )
    return shared
