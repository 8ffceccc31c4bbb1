"""The host's work for calls that an edit takes out: their Python, dispatcher and wrapper, as far as known.

Steps made from points hold it in the ranks' own time. It is in three places.

- Between two such calls of one place of the program, one right after the other. Both have the same operation,
  cause, module and line, and the rank issued nothing else between them. It goes with the calls, as far as
  such times are short as a rule: a longer one holds other work too. Inside of them too. In a forward or
  backward pass it is as for a call that stands alone. From one pass to the next lies all that the program
  does.
- Before and inside of a call that stands alone: at most the time between two successive calls of its
  operation and cause. It holds all that the first does after it and the second before it.
- Around a call whose like never follow each other, as if there is one per step: any of it, or none.

Only time outside operators counts, and only while the rank was awake: a sleep is no work of a call. If the
system did not say how long a rank slept, or if nothing divides a step, nothing is known.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.micro_batches import BACKWARD
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.replay.points.point_graph import Graph
from shardtoll.analyzers.shared.tally import numbered
from shardtoll.analyzers.whatif.edits.draft import Draft

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PLACE: Final = ("op", "caused_by_op", "module", "phase", "source")
CALL: Final = ("op", "caused_by_op")

LIKELY_ALONE: Final = 0.5
"""Share of its bound that a call which stands alone is taken to cost its host. The band has none and all."""
LEAST: Final = 0.5
"""Share of what lies between two calls of one place that goes with them at least. Some of it may be work that
stays, such as a norm that is reduced later."""
LONGER: Final = 2.0
"""So many times its median is what lies between two calls of one place taken to be at most."""
SHORTEST: Final = 0.1
"""Quantile of the times between two calls of one cause that bounds the work for one: longer ones hold other
work too."""

_PARTS: Final = (
    *("duration_ns", "asleep_ns", "capture_ns", "compute_ns", "exposed_copy_ns", "exposed_comm_ns"),
    "idle_ns",
)
_ON_HOST: Final = (Kind.HOST, Kind.GAP)


class HostWork(Struct, frozen=True):
    """Own time that goes with calls, by node: which share of its duration."""

    least: Floats
    likely: Floats
    most: Floats

    def take_out(self, draft: Draft, end: float) -> None:
        """Shorten the nodes, at this end of the band: -1 takes out least."""
        share = self.likely if end == 0 else self.least if end < 0 else self.most
        # Another edit may have taken out the same work: it is gone once.
        draft.take_out("calls", share)

    def saves_ns(self, recorded: Recorded, end: float) -> float:
        """Return what a step has less of it on the rank that has most, mean over the steps."""
        share = self.likely if end == 0 else self.least if end < 0 else self.most
        place, size = recorded.rank_steps()
        taken = np.bincount(place, share * recorded.graph.duration_ns, minlength=size)
        by_rank = taken.reshape(len(recorded.ranks), -1).sum(axis=1)
        return float(by_rank.max(initial=0.0)) / max(1, len(recorded.steps))


def host_work(context: Context, recorded: Recorded, gone: Ints, kept: Ints | None = None) -> HostWork:
    """Return what goes with these nodes of collectives; nothing of steps that are made from events.

    Those have the host's calls as nodes of their own. `kept` are those of them that stay in place of others:
    the work inside of these stays. Time between one that goes and the one that stays goes too.
    """
    none = np.zeros(len(recorded.graph))
    if recorded.source != "points" or not len(gone):
        return HostWork(none, none, none)
    frame = context.collectives
    is_gone = np.zeros(len(frame), dtype=np.bool_)
    is_gone[recorded.row[gone]] = True
    is_kept = np.zeros(len(frame), dtype=np.bool_)
    if kept is not None:
        is_kept[recorded.row[kept]] = True
    place, call = numbered(frame, PLACE), numbered(frame, CALL)
    on_host = recorded.of_kinds(_ON_HOST) & (recorded.point >= 0)
    points = sum(len(graph.own_ns) for graph in recorded.graphs)
    total = np.bincount(recorded.point[on_host], recorded.graph.duration_ns[on_host], points).astype(
        np.float64
    )
    host = total * _awake(context, recorded, total)
    in_pass = frame["phase"].isin(("forward", *BACKWARD)).to_numpy(dtype=np.bool_)
    places = _places(recorded.graphs, is_gone, is_kept, place, call, host, in_pass)
    least, likely, most = np.zeros(points), np.zeros(points), np.zeros(points)
    most[places.around] = host[places.around]
    bound = np.minimum(host[places.alone], places.bounds)
    likely[places.alone], most[places.alone] = LIKELY_ALONE * bound, np.maximum(most[places.alone], bound)
    between = host[places.between]
    likely[places.between] = np.minimum(between, places.rule)
    least[places.between] = LEAST * likely[places.between]
    most[places.between] = np.minimum(between, LONGER * places.rule)
    made = []
    for taken in (least, likely, most):
        share = taken / np.where(total > 0, total, np.inf)
        made.append(np.where(on_host, share[np.maximum(recorded.point, 0)], 0.0))
    return HostWork(*made)


class _Places(Struct, frozen=True):
    """Points at which the host works for calls that are gone, counted over all graphs."""

    between: Ints
    """From one of them to the next of the same place, and inside those."""
    rule: Floats
    """How long each of `between` is as a rule."""
    alone: Ints
    """Before and inside of others."""
    bounds: Floats
    """How much of each of `alone` is for the call at most."""
    around: Ints
    """Before and after those whose like never follow each other: how much of it is for them nothing tells."""


def _places(
    graphs: tuple[Graph, ...],
    is_gone: Bools,
    is_kept: Bools,
    place: Ints,
    call: Ints,
    host: Floats,
    in_pass: Bools,
) -> _Places:
    made: dict[str, list[Ints]] = {
        name: [np.zeros(0, np.int64)] for name in ("between", "alone", "key", "after", "ruled")
    }
    seen: dict[int, list[float]] = {}
    calls, places = int(call.max(initial=0)) + 1, int(place.max(initial=0)) + 1
    first = 0
    for graph in graphs:
        for number in range(len(graph.ranks)):
            points = graph.of_rank(number)
            row = np.where(graph.row[points] >= 0, graph.index[graph.row[points]], -1)
            before = np.concatenate([row[:1], row[:-1]])
            done = graph.done[points]
            goes_on = np.concatenate([[False], (row[1:] >= 0) & (row[:-1] >= 0)])
            was_done = np.concatenate([[False], done[:-1]])
            # From the end of one call to the arrival at the next, or from a call's arrival to its own end.
            follows = goes_on & ~done & was_done
            inside = goes_on & done & ~was_done & (row == before)
            likes = (follows & (call[row] == call[before])) | inside
            key = call[row] + calls * inside
            for each, ns in zip(key[likes].tolist(), host[first + points[likes]].tolist(), strict=True):
                seen.setdefault(each, []).append(ns)
            gone = (row >= 0) & is_gone[row]
            both = follows & gone & is_gone[before] & (place[row] == place[before]) & ~in_pass[row]
            paired = np.union1d(row[both], before[both])
            goes = gone & ~is_kept[row]
            both |= inside & goes & np.isin(row, paired)
            lone = goes & ~both & (inside | ~done)
            after = np.concatenate([[False], (done & goes)[:-1]]) & ~both
            for name, values in (("between", both), ("alone", lone), ("after", after)):
                made[name].append(first + points[values])
            made["key"].append(key[lone])
            made["ruled"].append((place[row] + places * inside)[both])
        first += len(graph.own_ns)
    between, alone, keys, after, ruled = (np.concatenate(each) for each in made.values())
    bound = {each: float(np.quantile(times, SHORTEST)) for each, times in seen.items()}
    bounds = np.array([bound.get(each, 0.0) for each in keys.tolist()])
    rule = _middle(host[between], ruled)
    is_bound = np.isin(keys, list(bound))
    around = np.zeros(0, dtype=np.int64) if is_bound.all() else np.union1d(alone[~is_bound], after)
    return _Places(between, rule, alone[is_bound], bounds[is_bound], around)


def _middle(times: Floats, key: Ints) -> Floats:
    """Return for each time the median of those with its key; of two in the middle the shorter one."""
    of_key = pd.Series(times).groupby(key).transform("quantile", q=0.5, interpolation="lower")
    made: Floats = of_key.to_numpy(dtype=np.float64)
    return made


def _awake(context: Context, recorded: Recorded, host: Floats) -> Floats:
    """Return by point for which share of its time outside operators in that step the rank was awake."""
    rows = context.step_rows.set_index(["step", "rank"])
    took = {name: rows[name].astype("float64") for name in _PARTS}
    # A rank may be awake while it waits for a collective: that is no time outside it.
    busy = took["capture_ns"] + took["compute_ns"] + took["exposed_copy_ns"]
    asleep = took["asleep_ns"]
    slept = asleep.where(asleep.isna(), asleep.clip(lower=took["exposed_comm_ns"]))
    awake = (took["duration_ns"] - busy - slept).clip(lower=0).fillna(0.0)
    # Steps that nothing divides hold their operators in what is unattributed.
    was_timed = took["compute_ns"] + took["exposed_copy_ns"] + took["idle_ns"] > 0
    awake = awake.where(was_timed, 0.0)
    share = np.zeros(len(host))
    first = 0
    for graph in recorded.graphs:
        for number, rank in enumerate(graph.ranks):
            points = first + graph.of_rank(number)
            outside = float(host[points].sum())
            if outside > 0:
                share[points] = min(1.0, float(awake.loc[(graph.step, rank)]) / outside)
        first += len(graph.own_ns)
    return share
