"""Which records of different ranks are one collective, told from the report's tables alone (rule 4).

The analyses match before there is a report and keep no numbers of it. Here the strict half of their rule is
enough: what agrees in group, sequence number, op and size is one collective, and what is in doubt stays
alone. Order within the step stands in for the number only in a group that has no numbers, or that has sends
and receives, which take numbers on two ranks only, or had such before a live audit began: its ranks' numbers
are then a constant apart.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from shardtoll.dashboards.members import KEYS, members
from shardtoll.dashboards.row_codes import NONE, Bools, Ints, all_differ, codes, equal_rows, ints, row_codes
from shardtoll.dashboards.shifted_numbers import shifted
from shardtoll.ledger import Report
from shardtoll.ledger.tables import to_frame

PEER_OPS: Final = ("send", "recv")
_SIZELESS: Final = ("barrier", "all_to_all")
"""Ranks need not agree on the size of these."""
_NUMBER, _ORDER, _MESSAGE = range(3)


def match_ids(report: Report) -> Ints:
    """Return a number for each row of `collectives` that the records of one collective share; -1 for none.

    Groups that share a name are told apart by their ranks; a group nobody described is known only when it is
    as large as the job. Where ranks have several records of one number, or of one step, their order tells
    them apart if all have as many. Unknown sizes are equal to each other.
    """
    table = report.tables["collectives"]
    found = np.full(table.num_rows, NONE, dtype=np.int64)
    group = group_ids(report, table)
    op, ops = codes(table.column("op"))
    seq = table.column("seq")
    numbered = seq.is_valid().to_numpy()
    peers = _are(op, ops, PEER_OPS)
    by_order = _by_order(group, numbered, peers)
    if report.run.source == "live":
        # Only there do all ranks number their steps alike, so that places in a step's order agree.
        by_order |= np.isin(group, _apart(table, group, op, numbered & ~peers & ~by_order))
    kind = np.where(peers, _MESSAGE, np.where(by_order, _ORDER, _NUMBER))
    step = table.column("step").is_valid().to_numpy()
    root = table.column("root").is_valid().to_numpy()
    known = np.select([kind == _NUMBER, kind == _ORDER], [numbered, step], step & root)
    at = np.flatnonzero(known & (group != NONE))
    if not len(at):
        return found
    # A number of another rank's step says nothing, so it is looked at only where it is what counts.
    place = np.where(kind == _NUMBER, ints(seq), ints(table.column("step")))[at]
    rank = ints(table.column("rank"))[at]
    size = ints(table.column("message_bytes"), NONE)[at]
    size[_are(op, ops, _SIZELESS)[at]] = 0
    op, kind = op[at], kind[at]
    keys = [group[at], kind, place]
    if (kind == _MESSAGE).any():
        # A message is one of those from its sender to its receiver, whichever end it was recorded on.
        peer, message = ints(table.column("root"))[at], kind == _MESSAGE
        sends = _are(op, ops, ("send",))
        keys += [
            np.where(message, np.where(sends, rank, peer), NONE),
            np.where(message, np.where(sends, peer, rank), NONE),
        ]
        op = np.where(message, NONE, op)
    slot = equal_rows(*keys)
    nth = _nth(slot, rank, table, at)
    number = _told_apart(slot, nth, equal_rows(op, size))
    told = (nth != NONE) & (np.bincount(number)[number] > 1)
    found[at[told]] = number[told]
    return found


def group_ids(report: Report, table: pa.Table) -> Ints:
    """Return each row's group, told by its name and ranks; -1 where the ranks of it are not known."""
    code, first = row_codes(table, KEYS)
    kinds = to_frame(table.select(list(KEYS)).take(first))
    numbers: dict[tuple[object, tuple[int, ...]], int] = {}
    # Keys of the dict are the different rows of the frame, in its order.
    each = [
        NONE if ranks is None else numbers.setdefault((name, ranks), len(numbers))
        for (name, *_), ranks in members(report, kinds).items()
    ]
    found: Ints = np.array(each, dtype=np.int64)[code]
    return found


def _apart(table: pa.Table, group: Ints, op: Ints, rows: Bools) -> Ints:
    """Return the groups whose numbers, on these rows, are a constant apart from rank to rank."""
    at = np.flatnonzero(rows & (group != NONE))
    facts = (ints(table.column("step"), NONE), op, ints(table.column("message_bytes"), NONE))
    rank, number = ints(table.column("rank")), ints(table.column("seq"))
    return shifted(group[at], rank[at], number[at], tuple(fact[at] for fact in facts))


def _are(op: Ints, ops: list[str], wanted: tuple[str, ...]) -> Bools:
    found: Bools = np.isin(op, [at for at, name in enumerate(ops) if name in wanted])
    return found


def _by_order(group: Ints, numbered: Bools, peers: Bools) -> Bools:
    """Return which rows are of a group whose sequence numbers do not count."""
    # The last one stands for NONE.
    some = np.zeros(int(group.max(initial=NONE)) + 2, dtype=bool)
    mixed = some.copy()
    some[group[numbered]] = True
    mixed[group[peers]] = True
    found: Bools = (mixed | ~some)[group]
    return found


def _told_apart(slot: Ints, nth: Ints, what: Ints) -> Ints:
    """Return a number for each row, equal where slot, place in it and what it is are."""
    of_slot = np.empty(int(slot.max()) + 1, dtype=np.int64)
    of_slot[slot] = what
    # As a rule each slot holds one collective.
    return equal_rows(slot, nth, what) if nth.any() or (of_slot[slot] != what).any() else slot


def _nth(slot: Ints, rank: Ints, table: pa.Table, at: Ints) -> Ints:
    """Return each row's position among its rank's rows of the slot, as they were asked for.

    All ranks ask in one order; begin they may in another. So issue times count, where every row of the slot
    has one; else starts. -1 where ranks have different numbers of rows in it, or a time is not known.
    """
    nth: Ints = np.zeros(len(slot), dtype=np.int64)
    if all_differ(slot, rank):
        return nth
    own = equal_rows(slot, rank)
    count = np.bincount(own)
    slots = int(slot.max()) + 1
    least, most = np.full(slots, len(slot)), np.zeros(slots, dtype=np.int64)
    np.minimum.at(least, slot, count[own])
    np.maximum.at(most, slot, count[own])
    issue, start = table.column("issue_ns"), table.column("start_ns")
    unasked, untimed = np.zeros(slots, dtype=bool), np.zeros(slots, dtype=bool)
    unasked[slot[issue.is_null().to_numpy()[at]]] = True
    untimed[slot[start.is_null().to_numpy()[at]]] = True
    open_ = (least != most) | ((most > 1) & unasked & untimed)
    time = np.where(unasked[slot], ints(start)[at], ints(issue)[at])
    order = np.lexsort((time, own))
    first = np.cumsum(count) - count
    nth[order] = np.arange(len(slot)) - np.repeat(first, count)
    nth[open_[slot]] = NONE
    return nth
