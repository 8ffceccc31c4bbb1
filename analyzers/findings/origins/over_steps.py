"""The same rank over steps: what a rank without peers usually takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.replay.points.point_graph import Graph

Ints = npt.NDArray[np.int64]

FEWEST: Final = 3
"""Steps from which a median tells what is usual."""


class Usual(Struct, frozen=True):
    """A rank's own times in one step's graph, point by point, if that step were as its other steps."""

    busy_ns: Ints
    idle_ns: Ints


def usual(graphs: Sequence[Graph], peers: Mapping[int, tuple[int, ...]]) -> list[dict[int, Usual]]:
    """Return for each graph what ranks without peers usually take; nothing below `FEWEST` steps.

    A step in which all ranks take longer, as with longer sequences, is as long as that for each of them.
    Usual is the rank's median over steps, times what the median of the other ranks takes longer.
    """
    ranks = sorted({rank for graph in graphs for rank in graph.ranks})
    alone = [rank for rank in ranks if not peers.get(rank)]
    whole = [graph for graph in graphs if set(graph.ranks) == set(ranks)]
    by_graph: list[dict[int, Usual]] = [{} for _ in graphs]
    if len(whole) < FEWEST or len(whole) < len(graphs) or len(ranks) < 2 or not alone:
        return by_graph
    points = [{rank: graph.of_rank(place) for place, rank in enumerate(graph.ranks)} for graph in whole]
    sums = np.array(
        [
            [int(graph.own_ns[at[rank]].sum()) for rank in ranks]
            for graph, at in zip(whole, points, strict=True)
        ]
    )
    middle = np.quantile(sums, 0.5, axis=0, method="lower")
    times = sums / np.maximum(1, middle)
    for rank in alone:
        column = ranks.index(rank)
        others = np.quantile(np.delete(times, column, axis=1), 0.5, axis=1, method="lower")
        if len({len(at[rank]) for at in points}) > 1:
            # Points that do not correspond: the step's own, scaled to what is usual.
            for nth, (graph, at) in enumerate(zip(whole, points, strict=True)):
                part = min(1.0, float(middle[column] * others[nth]) / max(1, int(sums[nth, column])))
                own, idle = graph.own_ns[at[rank]], graph.idle_ns[at[rank]]
                by_graph[nth][rank] = Usual(_scaled(own - idle, part), _scaled(idle, part))
            continue
        busy = np.array([(g.own_ns - g.idle_ns)[at[rank]] for g, at in zip(whole, points, strict=True)])
        idle = np.array([g.idle_ns[at[rank]] for g, at in zip(whole, points, strict=True)])
        for nth in range(len(whole)):
            by_graph[nth][rank] = Usual(
                _scaled(np.quantile(busy, 0.5, axis=0, method="lower"), float(others[nth])),
                _scaled(np.quantile(idle, 0.5, axis=0, method="lower"), float(others[nth])),
            )
    return by_graph


def _scaled(values: npt.ArrayLike, factor: float) -> Ints:
    scaled: Ints = np.rint(np.asarray(values, dtype=np.float64) * factor).astype(np.int64)
    return scaled
