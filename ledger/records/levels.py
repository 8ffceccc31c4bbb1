"""Which steps were surveyed, so that everything is known of them, and which were only watched.

Some watched steps know their exposed communication. In the others a 0 is no figure, more is a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import column, ints, literal

_KEYS: Final = ("step", "rank")


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


def exposure_told(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of the steps' table whose `exposed_comm_ns` is known, in no order.

    Left out are rows of watched steps that say 0 although one of their collectives is unclear. Its exposed
    time is unknown, or its group counted it without a record. In such a step no record shows the waiting.
    """
    steps = tables["steps"]
    said = pc.and_(_watched(steps), pc.equal(steps.column("exposed_comm_ns"), literal(0)))
    if not pc.any(said).as_py():
        return steps
    sure = _joined(steps.filter(said), tables, "left anti")
    return pa.concat_tables([steps.filter(pc.invert(said)), sure])


def exposure_doubted(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of watched steps in which the exposed time of some collective is unknown, in no order.

    Their `exposed_comm_ns` is a lower bound; if it is 0 nothing is known, see `exposure_told`.
    """
    steps = tables["steps"]
    return _joined(steps.filter(_watched(steps)), tables, "left semi")


def _watched(steps: pa.Table) -> pa.ChunkedArray:
    return pc.equal(steps.column("level"), literal("watch"))


def _joined(steps: pa.Table, tables: Mapping[str, pa.Table], how: str) -> pa.Table:
    """Return those of the rows that have (`left semi`) or do not have (`left anti`) an untold collective."""
    collectives, counts = tables["collectives"], tables["counts"]
    untimed = collectives.filter(pc.is_null(collectives.column("exposed_ns")))
    unseen = counts.filter(pc.greater(counts.column("issued"), counts.column("recorded")))
    doubted = pa.concat_tables(
        [table.select(_KEYS) for table in (untimed, unseen)], promote_options="default"
    )
    if not doubted.num_rows:
        return steps if how == "left anti" else steps.slice(0, 0)
    doubted = doubted.group_by(list(_KEYS)).aggregate([])
    joined = steps.join(doubted, keys=list(_KEYS), join_type=how)
    return joined.select(steps.column_names).cast(steps.schema)
