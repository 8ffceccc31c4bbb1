"""A simulated step divided: compute, exposed communication by collective, exposed copies, idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Spans = npt.NDArray[np.float64]
"""[n, 2] start and end in ns."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a step in ns; they add up to its length."""

    compute_ns: float
    exposed_ns: npt.NDArray[np.float64]
    """[collectives] Each one's share of the time that it was in flight without compute."""
    copy_ns: float
    idle_ns: float


def divide(step_ns: float, compute: Spans, collectives: Spans, copies: Spans) -> Shares:
    """Return the parts of a step from 0 to `step_ns`: an instant of several belongs to the first of them.

    An instant in which several collectives run exposed is split evenly among them.
    """
    edges = np.unique(np.concatenate([compute.ravel(), collectives.ravel(), copies.ravel(), [0.0, step_ns]]))
    edges = edges[(edges >= 0) & (edges <= step_ns)]
    lengths = np.diff(edges)
    computing = _open(compute, edges) > 0
    flying = _open(collectives, edges)
    copying = _open(copies, edges) > 0
    exposed = ~computing & (flying > 0)
    per_collective = np.zeros(len(collectives))
    share = np.where(exposed, lengths / np.maximum(flying, 1), 0.0)
    total = np.concatenate([[0.0], np.cumsum(share)])
    if len(collectives):
        first = np.searchsorted(edges, collectives[:, 0])
        last = np.searchsorted(edges, collectives[:, 1])
        per_collective = total[np.minimum(last, len(total) - 1)] - total[np.minimum(first, len(total) - 1)]
    rest = ~computing & ~exposed
    return Shares(
        float(lengths[computing].sum()),
        per_collective,
        float(lengths[rest & copying].sum()),
        float(lengths[rest & ~copying].sum()),
    )


def _open(spans: Spans, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return how many spans are open in each interval between two edges."""
    changes = np.zeros(len(edges), dtype=np.int64)
    if len(spans):
        np.add.at(changes, np.searchsorted(edges, spans[:, 0]), 1)
        np.add.at(changes, np.minimum(np.searchsorted(edges, spans[:, 1]), len(edges) - 1), -1)
    return np.cumsum(changes)[:-1]
