"""Bytes that a step sends, by operation and group."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import tally
from shardtoll.ledger.answers.traffic import Traffic

KEYS: Final = ("op", "net", "group_size")
VALUES: Final = ("message_bytes", "wire_bytes", "exposed_ns", "floor_ns", "expected_ns")


def op_traffic(context: Context) -> tuple[Traffic, ...]:
    """Return one row an operation and kind of group, the most exposed first; empty without finished steps.

    Calls and bytes are means over all steps. Times are of the steps whose times are truest, see
    `Context.timed`. So exposed time is a part of the step that the report shows.
    """
    frame = context.in_steps
    if frame.empty:
        return ()
    result = tally(frame, KEYS, VALUES, context.steps, times_in=context.timed)
    groups = frame["group"].groupby(result.code).nunique()
    rows = [
        Traffic(
            op=str(line.first["op"]),
            group=line.text("group") if groups[line.code] == 1 else None,
            mesh_dim=line.text("mesh_dim"),
            group_size=int(line.first["group_size"]),
            calls=line.calls,
            **{name: line.figures[name] for name in VALUES},
        )
        for line in result.lines
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.exposed_ns or 0), -(row.message_bytes or 0))))
