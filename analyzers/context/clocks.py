"""Offsets between the hosts' clocks, from collectives that no rank can leave before the others.

All ranks leave an all_reduce, for example, together: if a host's records repeatedly disagree, its clock is
off. Ranks of one host share a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context import clock_fit
from shardtoll.analyzers.context.match import UNEVEN_OPS, Ints, Matches, one_host
from shardtoll.analyzers.context.peers import SYNCHRONISING
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Run

LEAST_NS: Final = 100_000
"""Ranks leave a collective up to this long after one another: a smaller offset is not claimed."""

LEAST_COLLECTIVES: Final = 3
"""A median of fewer ends is unreliable: clocks are then known only if all ends agree within `LEAST_NS`."""

GLOO_NS: Final = 1_000_000
"""The same within a host under gloo: its threads share the cores, so ranks leave later by habit."""

ONE_HOST_NS: Final = 1_000_000
"""The same where the devices on record show that the job fits one host. Its ranks have one clock. A rank
whose kernels are launched late may still leave some hundred microseconds after the others each time."""

LEAST_WEIGHT: Final = 1 / 64
"""Weight of the smallest message against the largest: the end of a tiny one is mostly noise."""


@dataclass(frozen=True, slots=True)
class Clock:
    """One host's clock against that of `reference`; positive: it is ahead. None: unknown."""

    host: str
    ranks: tuple[int, ...]
    reference: str | None = None
    offset_ns: int | None = None
    """At `at_ns`, ns since the run's epoch."""
    drift_ppm: float | None = None
    """By how much it runs faster; None if too small to be seen against the residual."""
    residual_ns: int | None = None
    """By how much ends still differ, one robust standard deviation."""
    collectives: int = 0
    """On how many ends the estimate rests."""
    at_ns: int = 0
    span_ns: int = 0
    """Time covered by the collectives looked at."""

    @property
    def largest_ns(self) -> int | None:
        """Return the largest offset in the time looked at; None unknown."""
        if self.offset_ns is None:
            return None
        return round(abs(self.offset_ns) + abs(self.drift_ppm or 0.0) * 1e-6 * self.span_ns / 2)

    @property
    def claimed(self) -> bool:
        """Whether the clock is off by more than ends of collectives differ anyway."""
        if self.largest_ns is None or self.residual_ns is None:
            return False
        return self.largest_ns > max(LEAST_NS, self.residual_ns)


class Clocks(Struct, frozen=True):
    """The clocks of a run, in order of their first rank."""

    clocks: tuple[Clock, ...]

    def codes(self, ranks: Ints) -> Ints:
        """Return for each rank the number of its clock."""
        return _code_table(self.clocks)[ranks]

    def frames(self, ranks: Ints) -> Ints:
        """Return for each rank a number that ranks share whose times can be compared, once corrected."""
        numbers: dict[str, int] = {}
        frame = [numbers.setdefault(clock.reference or clock.host, len(numbers)) for clock in self.clocks]
        return np.array(frame, dtype=np.int64)[self.codes(ranks)]

    def corrected(self, ranks: Ints, times_ns: Ints) -> Ints:
        """Return times as the reference's clock has them; if no offset is claimed they stay."""
        if not any(clock.claimed for clock in self.clocks):
            return times_ns
        claimed = [clock if clock.claimed else None for clock in self.clocks]
        offset = np.array([0 if c is None else c.offset_ns for c in claimed], dtype=np.int64)
        drift = np.array([0.0 if c is None else (c.drift_ppm or 0.0) * 1e-6 for c in claimed])
        offset_at_ns = np.array([c.at_ns for c in self.clocks], dtype=np.int64)
        code = self.codes(ranks)
        late = np.rint(drift[code] * (times_ns - offset_at_ns[code])).astype(np.int64)
        corrected: Ints = times_ns - offset[code] - late
        return corrected


def _code_table(clocks: tuple[Clock, ...]) -> Ints:
    most = max((max(clock.ranks) for clock in clocks), default=0)
    table = np.zeros(most + 1, dtype=np.int64)
    for code, clock in enumerate(clocks):
        table[list(clock.ranks)] = code
    return table


def shared(run: Run) -> Clocks:
    """Return which ranks share a clock, nothing known of their offsets.

    By the hosts of the ranks, else by the number of ranks a host or of its devices, else each rank has its
    own.
    """
    per_host = run.ranks_per_host
    if per_host is None and ((run.source == "live" and len(run.hosts) == 1) or one_host(run)):
        per_host = run.world_size
    by_host: dict[str, list[int]] = {}
    for number_seen, rank in enumerate(run.ranks_seen):
        host = run.rank_hosts[number_seen] if run.rank_hosts else None
        if host is None and not run.rank_hosts and per_host:
            number = rank // per_host
            host = run.hosts[number] if number < len(run.hosts) else f"host {number}"
        by_host.setdefault(f"rank {rank}" if host is None else host, []).append(rank)
    return Clocks(tuple(Clock(host, tuple(ranks)) for host, ranks in by_host.items()))


def estimate(run: Run, frame: pd.DataFrame, matches: Matches) -> Clocks:
    """Return the clocks with their offsets, as far as matched collectives tell.

    Clocks are compared group by group, the widest first. A group whose hosts are all known adds nothing. One
    that shares a host with known ones is tied to them by it. Groups with few ends, or with uneven ones only,
    come last: they tie clocks only if all ends agree.
    """
    clocks = shared(run)
    if run.source != "trace" and len(clocks.clocks) < 2:
        return clocks
    by_rank, first = _ends(frame, matches)
    if run.source == "trace":
        clocks = _split(run, clocks, by_rank[by_rank["even"]])
    settled = list(clocks.clocks)
    if len(settled) < 2:
        return clocks
    for few, data in ((False, by_rank[by_rank["even"]]), (True, by_rank)):
        ends = _of_hosts(data, clocks)
        wide = ends.groupby("group")["code"].nunique().sort_values(ascending=False, kind="stable")
        by_group = ends.groupby("group").indices
        for group, hosts in wide.items():
            if hosts < 2:
                break
            rows = ends.iloc[by_group[group]]
            codes = np.unique(rows["code"].to_numpy())
            before = [settled[code] for code in codes]
            if _tied(before) or (not few and len(rows) < hosts * LEAST_COLLECTIVES):
                continue
            _settle(settled, codes, (_agreeing if few else _compared)(rows, first, before))
    return Clocks(tuple(settled))


def _tied(clocks: list[Clock]) -> bool:
    """Return whether the offsets between these clocks are known."""
    return all(clock.offset_ns is not None for clock in clocks) and len({c.reference for c in clocks}) == 1


def _settle(settled: list[Clock], codes: Ints, seen: list[Clock]) -> None:
    """Take over what a group says of its clocks, if that is new.

    Clocks that were tied to another reference before move to the group's, all that share theirs with them.
    """
    for code, clock in zip(codes, seen, strict=True):
        before = settled[code]
        if before.offset_ns is None:
            settled[code] = clock
        elif clock.reference != before.reference:
            shift = _offset_at(clock, clock.at_ns) - _offset_at(before, clock.at_ns)
            rate = (clock.drift_ppm or 0.0) - (before.drift_ppm or 0.0)
            for code_there, other in enumerate(settled):
                if other.reference == before.reference:
                    moved = shift + rate * 1e-6 * (other.at_ns - clock.at_ns)
                    drift = round((other.drift_ppm or 0.0) + rate, 3)
                    settled[code_there] = replace(
                        other,
                        reference=clock.reference,
                        offset_ns=(other.offset_ns or 0) + round(moved),
                        drift_ppm=drift or None,
                    )


def _split(run: Run, clocks: Clocks, ends: pd.DataFrame) -> Clocks:
    """Return the clocks, that of a host divided by rank if its ranks' ends contradict a shared one.

    Hosts that share a name (`localhost`) are not one host.
    """
    coded = ends.assign(code=clocks.codes(ends["rank"].to_numpy(dtype=np.int64)))
    least = GLOO_NS if "gloo" in (run.backend or "") else ONE_HOST_NS if one_host(run) else LEAST_NS
    parted = clock_fit.apart(coded, least, LEAST_COLLECTIVES)
    return Clocks(
        tuple(
            part
            for code, clock in enumerate(clocks.clocks)
            for part in (
                [Clock(f"{clock.host} (rank {rank})", (rank,)) for rank in clock.ranks]
                if code in parted
                else [clock]
            )
        )
    )


def _ends(frame: pd.DataFrame, matches: Matches) -> tuple[pd.DataFrame, int]:
    """Return one row a matched symmetric collective and rank: its size, its end there, and even: whether
    all ranks give as much.

    Ends count from the instant that comes second, as medians are floats and hold small numbers only.
    """
    marks = matches.rows
    fit = (
        marks["match_id"].notna().to_numpy(dtype=bool)
        & frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool)
        & (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
        # A collective of nothing need not wait for anybody.
        & ~((frame["message_bytes"] == 0) & (frame["op"] != "barrier")).to_numpy(dtype=bool, na_value=False)
    )
    rows = keep(frame, fit)
    data = pd.DataFrame(
        {
            "group": marks["group_id"].to_numpy(dtype=np.int64, na_value=-1)[fit],
            "match": marks["match_id"].to_numpy(dtype=np.int64, na_value=-1)[fit],
            "rank": rows["rank"].to_numpy(dtype=np.int64),
            "end": (rows["start_ns"] + rows["duration_ns"]).to_numpy(dtype=np.int64),
            "bytes": rows["message_bytes"].to_numpy(dtype=np.int64, na_value=0),
            "uneven": rows["op"].isin(UNEVEN_OPS).to_numpy(dtype=bool),
        }
    )
    # Ranks that send different amounts need not leave together.
    data["even"] = ~data["uneven"]
    if data["uneven"].any():
        sizes = data.groupby("match")["bytes"]
        data["even"] |= sizes.transform("min") == sizes.transform("max")
    first = int(data["end"].min()) if len(data) else 0
    counted: pd.DataFrame = data.assign(end=data["end"] - first)
    return counted, first


def _of_hosts(ends: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """Return one row a collective and clock: its size and its median end there."""
    coded = ends.assign(code=clocks.codes(ends["rank"].to_numpy(dtype=np.int64)))
    by_host = coded.groupby(["group", "match", "code"])
    merged = by_host.agg(end=("end", "median"), bytes=("bytes", "max")).reset_index()
    # If a host has no time of a collective, the other hosts' times of it are not compared either.
    hosts = merged.groupby("match")["code"].transform("size")
    return keep(merged, hosts == merged.groupby("group")["code"].transform("nunique"))


def _compared(rows: pd.DataFrame, first_ns: int, before: list[Clock]) -> list[Clock]:
    """Return the clocks of one group's hosts, tied to those of them that were known before."""
    rows = rows.sort_values(["match", "code"], kind="stable")
    ends = rows["end"].to_numpy(dtype=np.float64).reshape(-1, len(before))
    size = rows["bytes"].to_numpy(dtype=np.float64).reshape(-1, len(before)).max(axis=1)
    weight = np.maximum(size / max(1.0, size.max()), LEAST_WEIGHT)
    chosen = clock_fit.chosen(weight)
    ends, weight = ends[chosen], weight[chosen]
    if len(ends) < LEAST_COLLECTIVES:
        return before
    middle = np.median(ends, axis=1)
    apart = ends - middle[:, None]
    centre = float((middle.min() + middle.max()) / 2)
    time, span = middle - centre, float(np.ptp(middle))
    offset, drift = clock_fit.fit(apart, time, weight, span)
    middle_ns = round(centre) + first_ns
    base = next((i for i, clock in enumerate(before) if clock.offset_ns is not None), None)
    reference = before[0].host if base is None else before[base].reference
    based = [] if base is None else [i for i, c in enumerate(before) if c.reference == reference]
    base = base or 0
    rest = apart - offset - drift * time[:, None]
    residual = 1.4826 * clock_fit.middle(np.abs(rest - rest[:, base, None]), weight)
    if based:
        # Offset of the known clocks here, seen from this group's own middle.
        there = [_offset_at(before[i], middle_ns) for i in based]
        offset = offset + float(np.median([o - offset[i] for o, i in zip(there, based, strict=True)]))
        rates = [(before[i].drift_ppm or 0.0) * 1e-6 - drift[i] for i in based]
        drift = drift + float(np.median(rates))
    else:
        offset, drift = offset - offset[0], drift - drift[0]
    return [
        clock
        if i in based
        else Clock(
            host=clock.host,
            ranks=clock.ranks,
            reference=reference,
            offset_ns=round(offset[i]),
            drift_ppm=round(float(drift[i]) * 1e6, 3) if drift[i] else None,
            residual_ns=round(residual[i]),
            collectives=len(ends),
            at_ns=middle_ns,
            span_ns=round(span),
        )
        for i, clock in enumerate(before)
    ]


def _agreeing(rows: pd.DataFrame, first_ns: int, before: list[Clock]) -> list[Clock]:
    """Return the clocks of a group with too few ends for medians: none is off, if all the ends agree.

    If they do not agree, nothing is known, and the clocks are returned as they came.
    """
    ends = rows["end"].to_numpy(dtype=np.float64).reshape(-1, len(before)).copy()
    for i, clock in enumerate(before):
        if clock.claimed:
            ends[:, i] -= [_offset_at(clock, round(end) + first_ns) for end in ends[:, i]]
    apart = np.ptp(ends, axis=1)
    if (apart > LEAST_NS).any():
        return before
    base = next((clock for clock in before if clock.offset_ns is not None), None)
    reference = before[0].host if base is None else base.reference
    here = Clock("", (), reference, 0, None, round(apart.max()), len(ends))
    return [
        clock
        if clock.reference == reference
        else replace(
            here,
            host=clock.host,
            ranks=clock.ranks,
            offset_ns=round(_offset_at(clock, first_ns)),
            drift_ppm=clock.drift_ppm,
            at_ns=first_ns,
        )
        for clock in before
    ]


def _offset_at(clock: Clock, at_ns: int) -> float:
    return float(clock.offset_ns or 0) + (clock.drift_ppm or 0.0) * 1e-6 * (at_ns - clock.at_ns)
