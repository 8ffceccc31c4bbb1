"""Who stands still for whom in a rooted operation on gloo, whose sends end only when the receiver has come.

gloo hands a message over when both sides are there, however small it is. So a sender waits for its receivers:
the root of a broadcast or scatter, a leaf of a gather. Who sends to whom follows from gloo's algorithms
(broadcast.cc, scatter.cc, gather.cc, reduce.cc). A broadcast goes down a binomial tree. Scatter and gather
have one message for each leaf. For reduces see `reduces`. Measured with 2 and 4 ranks from 8 bytes to 16 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.match import OVERLAP_NS, Matches
from shardtoll.analyzers.context.peers import ROOTED
from shardtoll.analyzers.shared.tally import codes
from shardtoll.ledger import Group, Run

Ints = npt.NDArray[np.int64]

_GLOO: Final = {"gloo", "cpu:gloo"}


def is_gloo(backend: str | None) -> bool:
    """Return whether gloo alone carries a group's collectives, as `cpu:gloo` says too."""
    return set((backend or "").split(",")) <= _GLOO


def places(frame: pd.DataFrame, matches: Matches, groups: Sequence[Group], run: Run) -> Ints:
    """Return how many places after its root each rank stands in its group, in rooted operations on gloo.

    -1 in other rows, and if root or group are unknown.
    """
    place = np.full(len(frame), -1, dtype=np.int64)
    rooted = frame["op"].isin(ROOTED)
    if not rooted.any():
        return place
    has_root = rooted & frame["root"].notna() & matches.rows["group_id"].notna().to_numpy()
    here = np.flatnonzero(has_root.to_numpy(dtype=bool))
    if not len(here):
        return place
    columns = ["group", "rank", "root"]
    keyed = frame[columns[1:]].iloc[here].assign(group=matches.rows["group_id"].array[here])
    code, keys = codes(keyed[columns], columns)
    members: dict[int, dict[int, int]] = {}
    """By group: the place of each of its ranks; empty on other backends than gloo."""
    of_keys = []
    for group, rank, root in keys[columns].itertuples(index=False):
        if group not in members:
            backend = groups[int(group)].backend if int(group) < len(groups) else None
            ranks = matches.members[int(group)] if is_gloo(backend or run.backend) else ()
            members[group] = {member: nth for nth, member in enumerate(ranks)}
        nth, first = members[group].get(int(rank)), members[group].get(int(root))
        of_keys.append(-1 if nth is None or first is None else (nth - first) % len(members[group]))
    place[here] = np.array(of_keys, dtype=np.int64)[code]
    return place


def pairs(op: npt.NDArray[np.object_], match: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Return rows of rooted operations on gloo that may wait, and for each the row that it waits for.

    Reduces are left out: in these all wait for all. `match` numbers operations, -1 for unmatched rows;
    `place` is from `places`. In a broadcast a rank waits for those between the root and it, and for those to
    whom it sends.
    """
    rows = np.flatnonzero((match >= 0) & (place >= 0) & (op != "reduce"))
    if not len(rows):
        return rows, rows
    number, size = match[rows], np.bincount(match[rows])
    most = int(place.max()) + 1
    key = number * most + place[rows]
    order = np.argsort(key, kind="stable")
    waiter, awaited = [], []

    def add(of: Ints, stands: Ints) -> None:
        """Let these rows, by place in `rows`, wait for who stands there."""
        wanted = number[of] * most + stands
        at = np.searchsorted(key[order], wanted)
        there = (at < len(order)) & (key[order][np.minimum(at, len(order) - 1)] == wanted)
        waiter.append(rows[of[there]])
        awaited.append(rows[order[at[there]]])

    name, stands = op[rows], place[rows]
    all_of = size[number]
    tree = np.flatnonzero(name == "broadcast")
    for bit in 1 << np.arange(most.bit_length()):
        bit = int(bit)
        # Its sender is the place without its highest bit, and so on up to the root.
        up = tree[stands[tree] >= bit]
        add(up, stands[up] & (bit - 1))
        down = tree[(stands[tree] < bit) & (stands[tree] + bit < all_of[tree])]
        add(down, stands[down] + bit)
    leaves = np.flatnonzero(np.isin(name, ("scatter", "gather")) & (stands > 0))
    add(leaves, np.zeros(len(leaves), dtype=np.int64))
    # The root waits for each leaf that waits for it.
    waiter.append(awaited[-1])
    awaited.append(waiter[-2])
    return np.concatenate(waiter), np.concatenate(awaited)


def until(held: tuple[Ints, Ints], start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return from when on nobody holds each row up, at the earliest its own start, and who came then.

    A row that ended well before one of them came did not wait for it: times are what counts.
    """
    waiter, awaited = held
    there = end[waiter] + OVERLAP_NS >= start[awaited]
    waiter, awaited = waiter[there], awaited[there]
    release, by = start.copy(), np.arange(len(start))
    # The last one counts; of equal ones the later row.
    order = np.lexsort((awaited, start[awaited], waiter))
    waiter, awaited = waiter[order], awaited[order]
    last = np.flatnonzero(np.diff(waiter, append=-1))
    waiter, awaited = waiter[last], awaited[last]
    stood = start[awaited] > start[waiter]
    release[waiter[stood]] = np.minimum(start[awaited[stood]], end[waiter[stood]])
    by[waiter[stood]] = awaited[stood]
    return release, by
