"""Collectives that a fix takes out or makes one of, with what the host did for them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.latency_bound import bursts
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.whatif.draft import Draft
from shardtoll.analyzers.whatif.edits import Edit
from shardtoll.analyzers.whatif.host_work import HostWork, host_work
from shardtoll.analyzers.whatif.latency_share import latency_share

Ints = npt.NDArray[np.int64]

HOST_NOTE: Final = (
    "The host's work for calls that are gone goes too, if it is known how long the rank slept. It is time "
    "outside operators between two calls of one place that follow each other. For a call that stands alone "
    "it is a half of the shortest such time; the band holds none and all."
)


class Removed:
    """Rows of collectives that are gone, and the host's work for them, looked up once for each record."""

    def __init__(self, context: Context, rows: Ints) -> None:
        self._context = context
        self.rows = rows
        self._kept: dict[int, tuple[Recorded, HostWork]] = {}

    def work(self, draft: Draft) -> HostWork:
        """Return the host's work for them in the draft's steps."""
        return self._of(draft.recorded, draft.nodes_of(self.rows))

    def _of(self, recorded: Recorded, nodes: Ints) -> HostWork:
        key = id(recorded)
        if key not in self._kept:
            # The record is held so that no other one gets its id.
            self._kept[key] = recorded, host_work(self._context, recorded, nodes)
        return self._kept[key][1]

    def host_ns(self, recorded: Recorded, _toll_ns: float, end: float) -> float:
        """Return what the host works for them per step: no toll holds it."""
        return self._of(recorded, Draft(recorded).nodes_of(self.rows)).saves_ns(recorded, end)

    def all_ns(self, recorded: Recorded, toll_ns: float, end: float) -> float:
        """Return the same, and what they are exposed in live steps beyond that toll.

        The toll is of surveyed steps at most; here meetings vanish, and what ranks wait in them
        vanishes too.
        """
        nodes = Draft(recorded).nodes_of(self.rows)
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
        removed.work(draft).take_out(draft, end)

    is_live = context.ledger.run.source == "live"
    return Edit(label, apply, banded=is_live, beyond=removed.host_ns, note=HOST_NOTE if is_live else None)


def joined(context: Context, rows: Ints, label: str) -> Edit:
    """Return the edit with one message in place of each burst of small ones, where the last of it was.

    It carries their data, and takes one latency.
    """
    burst = bursts(context)["burst"]
    known = burst[burst.index.isin(rows)]
    share = latency_share(context)
    removed = Removed(context, rows)

    def apply(draft: Draft, end: float) -> None:
        recorded = draft.recorded
        nodes = draft.nodes_of(rows)
        number = _bursts_of(recorded, nodes, known.index.to_numpy(np.int64), known.to_numpy(np.int64))
        place, _ = recorded.rank_steps()
        order = np.lexsort((recorded.start_ns[nodes], number, place[nodes]))
        nodes, number = nodes[order], number[order]
        if not len(nodes):
            return
        ends = np.append(np.diff(place[nodes]) != 0, True)
        ends[:-1] |= np.diff(number) != 0
        of_last = np.append(0, np.cumsum(ends)[:-1])
        carried = draft.duration[nodes] * (1 - share[recorded.row[nodes]])
        work = removed.work(draft)
        draft.duration[nodes[ends]] += np.bincount(of_last, np.where(ends, 0.0, carried))
        draft.remove(nodes[~ends])
        work.take_out(draft, end)

    is_live = context.ledger.run.source == "live"
    return Edit(label, apply, banded=is_live, beyond=removed.all_ns, note=HOST_NOTE if is_live else None)


def _bursts_of(recorded: Recorded, nodes: Ints, rows: Ints, burst: Ints) -> Ints:
    """Return the burst of each node: that of its row, or of the row that is the same call in another step."""
    key = recorded.row if recorded.call is None else recorded.call[np.maximum(recorded.row, 0)]
    of_rows = rows if recorded.call is None else recorded.call[rows]
    first = dict(zip(of_rows[::-1].tolist(), burst[::-1].tolist(), strict=True))
    return np.array([first.get(each, -1) for each in key[nodes].tolist()], dtype=np.int64)
