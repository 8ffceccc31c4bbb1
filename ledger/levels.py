"""Which steps were surveyed, so that everything is known of them, and which were only watched."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def surveyed_steps(steps: pa.Table) -> tuple[int, ...]:
    """Return the numbers of the steps that every rank which finished them surveyed, in order.

    `steps` is the ledger's table. A step that one rank surveyed and another watched is a watched one: what
    rests on comparing its ranks cannot be told.
    """
    watched = steps.filter(pc.equal(steps.column("level"), "watch")).column("step")
    every = set(steps.column("step").unique().to_pylist())
    return tuple(sorted(every - set(watched.unique().to_pylist())))


def alike_steps(steps: pa.Table) -> tuple[int, ...]:
    """Return the numbers of the steps that every rank which finished them looked at in one way, in order.

    Where one rank surveys a step and another watches it, the second waits for the first one's capture: no
    waiting in it may be compared. Where all steps are like that, all are returned.
    """
    levels = steps.group_by("step").aggregate([("level", "count_distinct")])
    every = levels.column("step").to_pylist()
    alike = levels.filter(pc.equal(levels.column("level_count_distinct"), 1)).column("step").to_pylist()
    return tuple(sorted(alike or every))


def watched_steps(steps: pa.Table) -> tuple[int, ...]:
    """Return the numbers of the steps that tell time without a survey's cost, in order.

    Those that every rank only watched; where there are none, those that some rank watched, if all are
    like that.
    """
    return tuple(sorted(set(alike_steps(steps)) - set(surveyed_steps(steps))))


def in_steps(table: pa.Table, numbers: tuple[int, ...]) -> pa.Table:
    """Return the rows of any table of the ledger that are of these steps; rows of no step are not."""
    return table.filter(pc.is_in(table.column("step"), pa.array(numbers, pa.int64())))
