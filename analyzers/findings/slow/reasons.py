"""Why transfers are slower than the fabric allows: reasons ranked by what they explain of it.

A reason's score is the part of the time above the prediction that it explains. A contrast (the same
collectives with and without it) shows that directly. A pattern (the times fit what it would make of them)
could come about by chance, so it counts less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.roofline import Cost, Placement
from shardtoll.analyzers.shared.tally import numbered
from shardtoll.ledger import Evidence

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

BY_PATTERN: Final = 0.7
"""Weight of an explanation by fit alone."""

LEAST_SCORE: Final = 0.25
"""A reason that explains less of the excess is not reported."""

LEAST_EACH: Final = 3
"""Collectives with and without, to tell them apart by their medians."""


class Reason(Struct, frozen=True):
    """One explanation, with numbers that a reader can check."""

    name: str
    score: float
    """Part of the time above the prediction that it explains, 0 to 1; by a pattern at most `BY_PATTERN`."""
    why: str
    """The observation, without a full stop."""
    text: str
    """The remedy."""
    code: str | None = None
    evidence: tuple[Evidence, ...] = ()


class Slow(Struct, frozen=True):
    """The collectives of one op and net, one row each as `transfers.judged` makes them."""

    context: Context
    each: pd.DataFrame
    """All that could be judged."""
    slow: Mask
    """Those among them that the finding is about."""
    run: pd.DataFrame
    """All judged collectives of the job."""

    @property
    def bad(self) -> pd.DataFrame:
        """The slow ones."""
        slow_rows: pd.DataFrame = self.each[self.slow]
        return slow_rows

    def column(self, name: str) -> Floats:
        """Return a column of the slow ones."""
        return self.bad[name].to_numpy(dtype=np.float64)

    def costs(self) -> list[tuple[Cost, Placement, int]]:
        """Return the different costs of the slow ones, where their ranks stand, and how many have each."""
        ids, counts = np.unique(self.bad["cost_id"].to_numpy(dtype=np.int64), return_counts=True)
        context = self.context
        return [
            (context.costs[cost_id], context.places[cost_id], int(many))
            for cost_id, many in zip(ids, counts, strict=True)
        ]

    def of_cost(self, values: dict[int, float]) -> Floats:
        """Return for each slow one the value of its cost id; NaN where there is none."""
        return np.array(
            [values.get(int(cost_id), np.nan) for cost_id in self.bad["cost_id"]], dtype=np.float64
        )

    def explained(self, time_ns: Floats) -> float:
        """Return how much of the excess is explained if the slow ones should have taken these times.

        1 where they took exactly these, 0 where the times miss by as much as the prediction does.
        """
        took, predicted = self.column("transfer_ns"), self.column("predicted_ns")
        if np.isnan(time_ns).any():
            return 0.0
        excess = float(np.abs(took - predicted).sum())
        return 0.0 if excess <= 0 else float(np.clip(1 - np.abs(took - time_ns).sum() / excess, 0, 1))


class Contrast(Struct, frozen=True):
    """Collectives of the same op and about the same size that have something, and others that have not."""

    having: float
    """Median factor of those that have it."""
    lacking: float
    score: float
    """Part of the slow ones' excess that would go with it."""
    seen: int
    against: int

    def evidence(self, having: str, lacking: str) -> tuple[Evidence, ...]:
        """Return both medians, named."""
        return (
            Evidence(f"median factor {having} ({self.seen})", round(self.having, 2), "x"),
            Evidence(f"median factor {lacking} ({self.against})", round(self.lacking, 2), "x"),
        )


def contrast(of: Slow, has: Mask, lacks: Mask) -> Contrast | None:
    """Return how much slower those are that have something; None if there is nothing to compare.

    Only sizes (to a factor of two) are compared of which there are enough with and without.
    """
    each = of.each
    sizes = each["message_bytes"].fillna(0).to_numpy(dtype=np.float64)
    size = numbered(pd.DataFrame({"size": np.floor(np.log2(np.maximum(sizes, 1)))}), ("size",))
    factor = each["factor"].to_numpy(dtype=np.float64)
    with_, without = (np.bincount(size[mask], minlength=size.max() + 1) for mask in (has, lacks))
    both = (with_ >= LEAST_EACH) & (without >= LEAST_EACH)
    has, lacks = has & both[size], lacks & both[size]
    if not both.any():
        return None
    middle = pd.Series(factor[has]).groupby(size[has]).median()
    other = pd.Series(factor[lacks]).groupby(size[lacks]).median()
    weights = np.bincount(size[has], minlength=len(both))[middle.index.to_numpy(dtype=np.int64)]
    having = float(np.average(middle.to_numpy(dtype=np.float64), weights=weights))
    lacking = float(np.average(other.loc[middle.index].to_numpy(dtype=np.float64), weights=weights))
    over = (each["transfer_ns"] - each["predicted_ns"]).clip(lower=0).to_numpy(dtype=np.float64)
    excess = float(over[of.slow].sum())
    share = float(over[of.slow & has].sum()) / excess if excess > 0 else 0.0
    gone = (having - max(lacking, 1.0)) / (having - 1) if having > 1 else 0.0
    return Contrast(having, lacking, float(np.clip(share * gone, 0, 1)), int(has.sum()), int(lacks.sum()))


def best(reasons: Sequence[Reason | None], most: int = 3) -> list[Reason]:
    """Return the reasons that explain enough, the one that explains most first."""
    worth = [reason for reason in reasons if reason is not None and reason.score >= LEAST_SCORE]
    return sorted(worth, key=lambda reason: -reason.score)[:most]
