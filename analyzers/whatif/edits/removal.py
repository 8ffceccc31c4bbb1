"""Collectives that a fix takes out or makes one of, with what the host did for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.latency_bound import bursts
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.host_work import HostWork, host_work
from shardtoll.analyzers.whatif.edits.latency_share import latency_share

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HOST_NOTE: Final = (
    "The host's work for calls that are gone goes too, if it is known how long the rank slept. It is time "
    "outside operators between two calls of one place that follow each other. For a call that stands alone "
    "it is a half of the shortest such time; the band holds none and all."
)
HOST_MORE: Final = "the host's work for these calls goes too"
WAITS_MORE: Final = "the host's work for these calls, and what ranks wait in them, goes too"


class Removed:
    """Collectives that are gone, and the host's work for them, looked up once for each record."""

    def __init__(self, context: Context, rows: Ints, kept: Callable[[Recorded], Ints] | None = None) -> None:
        """`rows` are what the edit is about; `kept` gives the nodes of those that are issued after it too."""
        self._context = context
        self._rows = rows
        self._stay = kept
        self._kept: dict[int, tuple[Recorded, HostWork]] = {}

    def work(self, recorded: Recorded) -> HostWork:
        """Return the host's work for them in these steps."""
        key = id(recorded)
        if key not in self._kept:
            # The record is held so that no other one gets its id.
            nodes = Draft(recorded).nodes_of(self._rows)
            stay = None if self._stay is None else self._stay(recorded)
            self._kept[key] = recorded, host_work(self._context, recorded, nodes, stay)
        return self._kept[key][1]

    def host_ns(self, recorded: Recorded, _toll_ns: float, end: float) -> float:
        """Return what the host works for them per step: no toll holds it."""
        return self.work(recorded).saves_ns(recorded, end)

    def all_ns(self, recorded: Recorded, toll_ns: float, end: float) -> float:
        """Return the same, and what they are exposed in live steps beyond that toll.

        The toll is of surveyed steps at most; here meetings vanish, and what ranks wait in them
        vanishes too.
        """
        nodes = Draft(recorded).nodes_of(self._rows)
        exposed = self._context.collectives["exposed_ns"].to_numpy(dtype=np.float64, na_value=0)
        by_rank = np.bincount(recorded.graph.rank[nodes], exposed[recorded.row[nodes]], len(recorded.ranks))
        more = float(by_rank.max(initial=0.0)) / max(1, len(recorded.steps)) - toll_ns
        is_live = recorded.source == "points"
        return (max(0.0, more) if is_live else 0.0) + self.host_ns(recorded, toll_ns, end)


def removal(context: Context, rows: Ints, label: str) -> Edit:
    """Return the edit without these collectives."""
    removed = Removed(context, rows)

    def apply(draft: Draft, end: float) -> None:
        draft.remove(draft.nodes_of(rows))
        removed.work(draft.recorded).take_out(draft, end)

    is_live = context.ledger.run.source == "live"
    note = HOST_NOTE if is_live else None
    return Edit(label, apply, banded=is_live, beyond=removed.host_ns, more=HOST_MORE, note=note)


def joined(context: Context, rows: Ints, label: str) -> Edit:
    """Return the edit with one message in place of each burst of small ones, where the last of it was.

    It carries their data, and takes one latency. The host's work for that last one stays.
    """
    burst = bursts(context)["burst"]
    known = burst[burst.index.isin(rows)]
    share = latency_share(context)

    def in_bursts(recorded: Recorded) -> tuple[Ints, Bools]:
        """Return the nodes burst by burst in the order of issue, and which of them is its burst's last."""
        nodes = Draft(recorded).nodes_of(rows)
        number = _bursts_of(recorded, nodes, known.index.to_numpy(np.int64), known.to_numpy(np.int64))
        place, _ = recorded.rank_steps()
        order = np.lexsort((recorded.start_ns[nodes], number, place[nodes]))
        nodes, number = nodes[order], number[order]
        is_last = np.ones(len(nodes), dtype=np.bool_)
        is_last[:-1] = (np.diff(place[nodes]) != 0) | (np.diff(number) != 0)
        return nodes, is_last

    def kept(recorded: Recorded) -> Ints:
        nodes, is_last = in_bursts(recorded)
        return nodes[is_last]

    removed = Removed(context, rows, kept)

    def apply(draft: Draft, end: float) -> None:
        recorded = draft.recorded
        nodes, is_last = in_bursts(recorded)
        if not len(nodes):
            return
        of_last = np.append(0, np.cumsum(is_last)[:-1])
        carried = draft.duration[nodes] * (1 - share[recorded.row[nodes]])
        draft.duration[nodes[is_last]] += np.bincount(of_last, np.where(is_last, 0.0, carried))
        draft.remove(nodes[~is_last])
        removed.work(recorded).take_out(draft, end)

    is_live = context.ledger.run.source == "live"
    note = HOST_NOTE if is_live else None
    return Edit(label, apply, banded=is_live, beyond=removed.all_ns, more=WAITS_MORE, note=note)


def _bursts_of(recorded: Recorded, nodes: Ints, rows: Ints, burst: Ints) -> Ints:
    """Return the burst of each node: that of its row, or of the row that is the same call in another step."""
    key = recorded.row if recorded.call is None else recorded.call[np.maximum(recorded.row, 0)]
    of_rows = rows if recorded.call is None else recorded.call[rows]
    first = dict(zip(of_rows[::-1].tolist(), burst[::-1].tolist(), strict=True))
    return np.array([first.get(each, -1) for each in key[nodes].tolist()], dtype=np.int64)
