"""What a step sends, by operation and group."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import Line, keep, tally
from shardtoll.ledger.answers.traffic import Traffic

KEYS: Final = ("op", "net", "group_size")
VALUES: Final = ("message_bytes", "wire_bytes", "exposed_ns", "floor_ns", "expected_ns")


def op_traffic(context: Context) -> tuple[Traffic, ...]:
    """Return one row an operation and kind of group, the most exposed first; empty without finished steps.

    Calls and bytes are means over all steps. Exposed time is that of the steps whose times are truest, the
    watched ones, where these know it: so it is a part of the step that the report shows.
    """
    frame = context.in_steps
    if frame.empty:
        return ()
    result = tally(frame, KEYS, VALUES, context.steps)
    exposed = _timed_exposed(context, frame)
    groups = frame["group"].groupby(result.code).nunique()
    rows = [
        Traffic(
            op=str(line.first["op"]),
            group=line.text("group") if groups[line.code] == 1 else None,
            mesh_dim=line.text("mesh_dim"),
            group_size=int(line.first["group_size"]),
            calls=line.calls,
            **{name: line.figures[name] for name in VALUES}
            | {"exposed_ns": exposed.get(_key(line), line.figures["exposed_ns"])},
        )
        for line in result.lines
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.exposed_ns or 0), -(row.message_bytes or 0))))


def _timed_exposed(context: Context, frame: pd.DataFrame) -> dict[tuple[str, ...], int]:
    """Return the exposed time of each row of the table that the timed steps know, by `_key`."""
    timed = tuple(sorted({int(step) for step in context.timed_rows["step"]}))
    if len(timed) == len(context.steps):
        return {}
    lines = tally(keep(frame, frame["step"].isin(timed)), KEYS, ("exposed_ns",), timed).lines
    figures = {_key(line): line.figures["exposed_ns"] for line in lines}
    return {key: exposed_ns for key, exposed_ns in figures.items() if exposed_ns is not None}


def _key(line: Line) -> tuple[str, ...]:
    return tuple(str(line.first[name]) for name in KEYS)
