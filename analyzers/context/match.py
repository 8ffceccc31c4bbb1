"""Which records of different ranks are one collective (rule 4 of the accounting).

Records are the same one only when group, sequence number, op and size agree. A group is its name
and its ranks: sub-groups of a mesh dimension may share a name. The order within the step replaces the number
if a group has no sequence numbers or has sends and receives. Those take numbers on two ranks only (see
`peers`). It also does so if the group had such before the audit began: its ranks' numbers are then a constant
apart. All this holds only if every rank has as many records. In traces whose windows differ, `align` matches
by end time what this leaves open.

If no rank knows the size, only group, place and op must agree: such a match is likely, not certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.peers import PEER_OPS, SYNCHRONISING, paired
from shardtoll.analyzers.shared.tally import changes, codes, keep, numbered
from shardtoll.ledger import Group, Ledger, Run

OVERLAP_NS: Final = 100_000
"""Clocks of one host are as good as one within this."""

UNEVEN_OPS: Final = ("all_to_all",)
"""Ranks may send different amounts in these. With a sequence number they are one whatever their sizes; by
order, a size that differs only leaves them unmatched."""

COLUMNS: Final = [
    *("rank", "group", "group_size", "step", "seq", "op"),
    *("message_bytes", "dtype", "root", "issue_ns"),
]
"""Columns that matching reads of a record; in traces, times as well."""

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matches:
    """The outcome of matching: `rows` has one row for each of the collectives' frame, in its order."""

    rows: pd.DataFrame
    """`group_id`: index into `members`, NA if the group's ranks are unknown. `match_id`: equal on the records
    that are one collective, NA if they do not agree. `whole`: every rank of the group was seen, so the last
    arrival is known. `slot_id`: equal on the records that should be one collective, NA if unknown. `suspect`:
    the records of the slot disagree, or a seen rank of the group has none. `by_order`: the slot is a place in
    the step's order, not a sequence number. `likely`: matched by order, by end time or without a size; not
    certain. `open`: of a trace, and to be matched by end time if at all."""
    members: tuple[tuple[int, ...], ...]
    """Global ranks of each group."""
    undescribed: tuple[Group, ...] = ()
    """The last of these groups, which the ledger does not describe: all have the whole job as ranks."""


def _groups(ledger: Ledger, rows: pd.DataFrame) -> tuple[pd.api.extensions.ExtensionArray, list[Group]]:
    """Return each row's group id, which is the group's place in the list returned with them.

    The list begins with the ledger's own groups. A group that was never described is known only when it is
    as large as the job.
    """
    groups = list(ledger.groups)
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    for number, group in enumerate(groups):
        numbers.setdefault((group.name, group.ranks), number)
    world = tuple(range(ledger.run.world_size))
    ids: list[int | None] = []
    columns = ["group", "rank", "group_size"]
    key_of, keys = codes(rows[columns], columns)
    for name, rank, size in keys.itertuples(index=False):
        fits = [i for (n, ranks), i in numbers.items() if n == name and rank in ranks and len(ranks) == size]
        if not fits and size == len(world):
            if (name, world) not in numbers:
                numbers[name, world] = len(groups)
                groups.append(Group(name, world))
            fits = [numbers[name, world]]
        ids.append(fits[0] if len(fits) == 1 else None)
    return pd.array(ids, dtype="Int64").take(key_of), groups


def _apart(work: pd.DataFrame) -> list[int]:
    """Return the groups whose ranks' numbers begin at different ones."""
    numbered = work["seq"].notna().to_numpy(dtype=bool)
    group, rank, seq = (
        work[name].to_numpy(dtype=np.int64, na_value=0)[numbered] for name in ("group_id", "rank", "seq")
    )
    order = np.lexsort((seq, rank, group))
    first = order[changes(group[order], rank[order])]
    starts = np.flatnonzero(changes(group[first]))
    if not len(starts):
        return []
    differ = np.minimum.reduceat(seq[first], starts) != np.maximum.reduceat(seq[first], starts)
    apart: list[int] = group[first][starts[differ]].tolist()
    return apart


def _shifted(work: pd.DataFrame) -> set[int]:
    """Return the groups whose ranks tell one and the same story under numbers a constant apart.

    A send or recv before the audit, or gloo's monitored barrier, took numbers on some ranks only. They stay
    apart for as long as the group lives. One record a rank is no story.
    """
    shifted: set[int] = set()
    for group_id in _apart(work):
        rows = keep(work, (work["group_id"] == group_id) & work["seq"].notna())
        rows = rows.sort_values("seq", kind="stable")
        stories = {
            (
                tuple(part["seq"] - part["seq"].min()),
                tuple(part[["step", "op", "message_bytes"]].fillna(-1).itertuples(index=False, name=None)),
            )
            for _, part in rows.groupby("rank")
        }
        if len(stories) == 1 and len(stories.pop()[0]) > 1:
            shifted.add(group_id)
    return shifted


def _slots(rows: pd.DataFrame, *, live: bool) -> pd.DataFrame:
    """Return the rows whose counterparts on other ranks can be identified, each with its slot."""
    peers = rows["op"].isin(PEER_OPS)
    work: pd.DataFrame = keep(rows, rows["group_id"].notna() & ~peers).copy()
    group = work["group_id"].to_numpy(dtype=np.int64)
    unnumbered = set(group[work["seq"].isna().to_numpy(dtype=bool)].tolist())
    if live:
        # Only in a live audit do all ranks number their steps equally, so that places in a step's order
        # agree.
        unnumbered |= _shifted(work)
    if peers.any():
        unnumbered |= set(rows.loc[peers, "group_id"].dropna())
    by_order = np.isin(group, sorted(unnumbered))
    work["by_order"] = by_order
    # Outside every step ranks may have begun to record at different moments: order says nothing.
    unplaced = by_order & work["step"].isna().to_numpy(dtype=bool)
    if unplaced.any():
        work = keep(work, ~unplaced).copy()
    work["slot"] = work["seq"].where(~work["by_order"], work["step"])
    # Several records may share a number (coalesced ones): then their order tells them apart.
    place = numbered(work, ["group_id", "by_order", "slot"])
    work["slot_id"] = _joined(place, _asked_order(work, place))
    return work


def _joined(first: Ints, second: Ints) -> Ints:
    """Return for each row the number of its pair of numbers, by first appearance."""
    numbers, _ = pd.factorize(first * (int(second.max(initial=0)) + 1) + second)
    return numbers.astype(np.int64)


def _asked_order(work: pd.DataFrame, place: Ints) -> Ints:
    """Return each row's position among its rank's rows of the place.

    Ranks ask for a group's collectives in one order; on several streams they may begin in another. So issue
    times count, if every row of the place has one; else the order in which they began.
    """
    unasked = work["issue_ns"].isna().to_numpy(dtype=bool)
    asked = np.bincount(place, weights=unasked)[place] == 0
    key = work["issue_ns"].to_numpy(dtype=np.int64, na_value=0) * asked
    lane = _joined(place, work["rank"].to_numpy(dtype=np.int64))
    order = np.lexsort((key, lane))
    starts = np.flatnonzero(changes(lane[order]))
    nth = np.empty(len(work), dtype=np.int64)
    nth[order] = np.arange(len(work)) - np.repeat(starts, np.diff(starts, append=len(work)))
    return nth


def _agreement(work: pd.DataFrame, expected: Ints) -> tuple[Bools, Bools]:
    """Return for each row whether its slot agrees on all seen ranks, and whether it is suspect."""
    slot = work["slot_id"].to_numpy(dtype=np.int64)
    if not len(slot):
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
    # Slots are numbered from 0 without a gap: what is reduced slot by slot is indexed by its number.
    order = np.argsort(slot, kind="stable")
    starts = np.flatnonzero(changes(slot[order]))

    def least(values: Any) -> Any:
        return np.minimum.reduceat(values[order], starts)

    def most(values: Any) -> Any:
        return np.maximum.reduceat(values[order], starts)

    def same(values: Ints) -> Bools:
        is_same: Bools = least(values) == most(values)
        return is_same

    barrier = (work["op"] == "barrier").to_numpy(dtype=bool)
    missing = work["message_bytes"].isna().to_numpy(dtype=bool) & ~barrier
    one_size = same(np.where(barrier, 0, work["message_bytes"].to_numpy(dtype=np.int64, na_value=0)))
    one_op = same(pd.factorize(work["op"])[0])
    # An unknown type is no difference: gloo's scatter says none on the ranks that only receive.
    dtype = pd.factorize(work["dtype"])[0]
    by_order = most(work["by_order"].to_numpy(dtype=bool))
    one_type = same(np.where(dtype >= 0, dtype, most(dtype)[slot])) | ~by_order
    unsized, all_unsized = most(missing), least(missing)
    uneven = least(work["op"].isin(UNEVEN_OPS).to_numpy(dtype=bool))
    group = work["group_id"].to_numpy(dtype=np.int64)[order][starts]
    present = np.diff(starts, append=len(slot)) == expected[group]
    numbered_uneven = uneven & ~by_order
    agrees = present & one_op & one_type & ((one_size & (~unsized | all_unsized)) | numbered_uneven)
    differs = ~one_op | ~one_type | (~one_size & ~unsized & ~uneven)
    return agrees[slot], (differs | ~present)[slot]


def _lopsided(work: pd.DataFrame, expected: Ints) -> Bools:
    """Return for each row matched by order whether the ranks of its group have different numbers of rows in
    its step."""
    by_order: Bools = work["by_order"].to_numpy(dtype=bool, copy=True)
    if not by_order.any():
        return by_order
    place = numbered(work, ["group_id", "step"])
    _, first = np.unique(place, return_index=True)
    lane = _joined(place, work["rank"].to_numpy(dtype=np.int64))
    _, first_of_lane = np.unique(lane, return_index=True)
    calls, place_of_lane = np.bincount(lane), place[first_of_lane]
    low, high = np.full(len(first), len(work)), np.zeros(len(first), dtype=np.int64)
    np.minimum.at(low, place_of_lane, calls)
    np.maximum.at(high, place_of_lane, calls)
    group = work["group_id"].to_numpy(dtype=np.int64)[first]
    of_place = (low != high) | (np.bincount(place_of_lane) != expected[group])
    lopsided: Bools = of_place[place] & by_order
    return lopsided


def _disputed(work: pd.DataFrame, suspect: Bools) -> Bools:
    """Return for each row matched by order whether its group and step hold any disagreement.

    Windows that are cut may have equal counts by chance: what then agrees by its place proves nothing.
    """
    place = numbered(work, ["group_id", "step"])
    by_order = work["by_order"].to_numpy(dtype=bool)
    disputed: Bools = (np.bincount(place, weights=suspect)[place] > 0) & by_order
    return disputed


def one_host(run: Run) -> bool:
    """Whether the devices on record show that all ranks are on one host: it has one for each of them.

    More hosts than one by name speak against it.
    """
    return len(run.hosts) < 2 and run.world_size > 1 and (run.devices_per_host or 0) >= run.world_size


def _one_window(run: Run, collectives: pd.DataFrame, work: pd.DataFrame) -> Bools:
    """Return for each row whether times prove the order of its group and step, so that it needs no marks.

    Nobody leaves a synchronising collective before all have come. If the ranks of one host share a clock, all
    places that belong together therefore overlap. Places of shifted windows do not.
    """
    times = collectives.loc[work.index, ["start_ns", "duration_ns"]]
    start = times["start_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    end = start + times["duration_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    rows = work[["group_id", "step", "slot_id"]].assign(start=start, end=end)
    rows["synchronising"] = work["op"].isin(SYNCHRONISING).to_numpy(dtype=bool)
    slots = rows.groupby("slot_id")
    apart = slots["end"].min() + OVERLAP_NS < slots["start"].max()
    untimed = rows["end"].isna().groupby(rows["slot_id"]).any()
    refuted = (apart | untimed).reindex(rows["slot_id"]).to_numpy(dtype=bool) & rows["synchronising"]
    place = [rows[name] for name in ("group_id", "step")]
    proven: Bools = (
        rows["synchronising"].groupby(place, dropna=False).transform("any")
        & ~refuted.groupby(place, dropna=False).transform("any")
    ).to_numpy(dtype=bool)
    return proven & (len(run.hosts) == 1 or one_host(run))


def _outside_window(work: pd.DataFrame, seen: set[int], members: list[tuple[int, ...]]) -> Bools:
    """Return for each row whether its number lies outside what some seen rank of its group recorded."""
    numbers = work.groupby(["group_id", "rank"])["seq"].agg(["min", "max"]).reset_index()
    both = numbers.groupby("group_id").agg(first=("min", "max"), last=("max", "min"), ranks=("rank", "size"))
    both = both.reindex(work["group_id"])
    wanted = [len(seen.intersection(ranks)) for ranks in members]
    lacking = (
        both["ranks"].to_numpy() < np.array(wanted, dtype=np.int64)[work["group_id"].to_numpy(dtype=np.int64)]
    )
    seq = work["seq"].to_numpy(dtype=np.int64, na_value=0)
    first = both["first"].to_numpy(dtype=np.int64, na_value=0)
    last = both["last"].to_numpy(dtype=np.int64, na_value=0)
    numbered = work["seq"].notna().to_numpy(dtype=bool)
    outside: Bools = numbered & ((seq < first) | (seq > last) | lacking)
    return outside


def match(ledger: Ledger, collectives: pd.DataFrame) -> Matches:
    """Return which rows of the collectives' frame are one collective on several ranks."""
    rows = collectives[COLUMNS].reset_index(drop=True)
    group_ids, groups = _groups(ledger, rows)
    rows["group_id"] = group_ids
    members = [group.ranks for group in groups]
    seen = set(ledger.run.ranks_seen)
    expected = np.array([len(seen.intersection(ranks)) for ranks in members], dtype=np.int64)
    sizes = np.array([len(ranks) for ranks in members], dtype=np.int64)
    work = _slots(rows, live=ledger.run.source == "live")
    agrees, suspect = _agreement(work, expected)
    lopsided = _lopsided(work, expected)
    by_order = work["by_order"].to_numpy(dtype=bool)
    if ledger.run.source == "trace":
        lopsided |= _disputed(work, suspect)
        if "no-steps" in set(ledger.frame("notices")["kind"]):
            # If nothing marks the steps, ranks may have begun to record at different moments. Then order
            # counts only if times prove it.
            lopsided |= by_order & ~_one_window(ledger.run, collectives, work)
    agrees &= ~lopsided
    group_of = work["group_id"].to_numpy(dtype=np.int64)
    slot_of = work["slot_id"].to_numpy(dtype=np.int64)
    places = work.index.to_numpy()

    def spread(values: Bools) -> Bools:
        """Return what is known of the rows at work for all rows; False of the others."""
        all_rows = np.zeros(len(rows), dtype=np.bool_)
        all_rows[places] = values
        return all_rows

    match_id, slot_id = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    match_id[places[agrees]] = slot_of[agrees]
    slot_id[places] = slot_of
    suspect |= lopsided
    is_open = np.zeros(len(rows), dtype=np.bool_)
    if ledger.run.source == "trace":
        # Windows of traces differ: a record that one rank is missing there may lie outside its window.
        suspect &= ~lopsided & ~_outside_window(work, seen, members)
        peers = rows["op"].isin(PEER_OPS).to_numpy(dtype=bool)
        is_open = (rows["group_id"].notna() & rows["seq"].isna()).to_numpy(dtype=bool) & ~peers
        is_open[places[agrees]] = False
    unsized = (work["message_bytes"].isna() & (work["op"] != "barrier")).to_numpy(dtype=bool)
    pair = paired(rows)
    message = pair >= 0
    beyond = int(slot_of.max()) + 1 if len(slot_of) else 0
    match_id[message] = beyond + pair[message]
    matched = pd.DataFrame(
        {
            "group_id": group_ids,
            "match_id": pd.arrays.IntegerArray(match_id, ~(spread(agrees) | message)),
            "slot_id": pd.arrays.IntegerArray(slot_id, ~spread(np.ones(len(places), dtype=np.bool_))),
            "whole": spread(agrees & (expected[group_of] == sizes[group_of])) | message,
            "suspect": spread(suspect),
            "by_order": spread(by_order) | message,
            "likely": spread(agrees & (by_order | unsized)) | message,
            "open": is_open,
        }
    )
    return Matches(matched, tuple(members), tuple(groups[len(ledger.groups) :]))
