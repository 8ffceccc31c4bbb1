"""Which steps were surveyed, so that everything is known of them, and which were only watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import column, ints, literal


def surveyed_steps(steps: pa.Table) -> tuple[int, ...]:
    """Return the numbers of the steps that every rank which finished them surveyed, in order.

    `steps` is the ledger's table. A step that one rank surveyed and another watched counts as watched:
    results that compare its ranks are unknown.
    """
    watched = steps.filter(pc.equal(steps.column("level"), literal("watch"))).column("step")
    every = set(steps.column("step").unique().to_pylist())
    return tuple(sorted(every - set(watched.unique().to_pylist())))


def alike_steps(steps: pa.Table) -> tuple[int, ...]:
    """Return the numbers of the steps that every rank which finished them looked at in one way, in order.

    If one rank surveys a step and another watches it, the second waits for the first one's capture. Waiting
    in such a step must not be compared. If all steps are like that, all are returned.
    """
    # Not group_by: it would load pyarrow's dataset machinery, for one small table.
    kinds = set(zip(steps.column("step").to_pylist(), steps.column("level").to_pylist(), strict=True))
    looks = Counter(step for step, _ in kinds)
    return tuple(sorted([step for step, count in looks.items() if count == 1] or looks))


def watched_steps(steps: pa.Table) -> tuple[int, ...]:
    """Return the numbers of the steps whose time is without a survey's cost, in order.

    Those that every rank only watched; if there are none, those that some rank watched, if all are like that.
    """
    return tuple(sorted(set(alike_steps(steps)) - set(surveyed_steps(steps))))


def timed_steps(steps: pa.Table) -> tuple[int, ...]:
    """Return the numbers of the steps that times are means over: the watched ones, else those of
    `alike_steps`."""
    return watched_steps(steps) or alike_steps(steps)


def in_steps(table: pa.Table, numbers: tuple[int, ...]) -> pa.Table:
    """Return the rows of any table of the ledger that are of these steps; rows of no step are not."""
    return table.filter(pc.is_in(table.column("step"), column(numbers, pa.int64())))


def means_by_rank(steps: pa.Table, names: Iterable[str]) -> dict[int, dict[str, Any]]:
    """Return rank -> `NAME_mean` of these columns over its rows, None if none is known, and `count_all`."""
    if not steps.num_rows:
        return {}  # of most levels no step is there, and reports ask often
    # Not group_by: see `alike_steps`.
    ranks, places, counts = np.unique(ints(steps.column("rank")), return_inverse=True, return_counts=True)
    means: list[dict[str, Any]] = [{"count_all": int(count)} for count in counts]
    for name in names:
        values = steps.column(name)
        sums = np.zeros(len(ranks), np.int64)
        np.add.at(sums, places, ints(values))
        known = np.bincount(places, ints(pc.is_valid(values).cast(pa.int64())), len(ranks))
        for row, total, count in zip(means, sums.tolist(), known.tolist(), strict=True):
            row[f"{name}_mean"] = total / count if count else None
    return dict(zip(ranks.tolist(), means, strict=True))
