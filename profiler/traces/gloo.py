"""Collectives of traces without a device: gloo's spans and the operators that asked for them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from shardtoll.profiler.traces.comms import op_of
from shardtoll.profiler.traces.link import Linked
from shardtoll.profiler.traces.said import NOTHING
from shardtoll.profiler.traces.steps import Steps
from shardtoll.profiler.traces.trace import Trace


def spans(trace: Trace, steps: Steps) -> list[Linked]:
    """Return a row for each gloo span, linked to the `c10d::` operator that asked for it.

    The spans name no operator. Requests of one op run in the order in which they were made, so the
    earliest request still open that lies before a span is taken as its own.
    """
    names = trace.names
    notes, ops = trace.annotations, trace.ops
    gloo = {number for number, name in enumerate(names) if name.startswith("gloo:")}
    asks = {
        number: op for number, name in enumerate(names) if name.startswith("c10d::") and (op := op_of(name))
    }
    waiting: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    asked_until: dict[tuple[str, int], int] = {}
    asking = np.flatnonzero(np.isin(ops.name, list(asks)))
    for row in asking[np.argsort(ops.start_ns[asking], kind="stable")].tolist():
        ask, begun_ns, thread = asks[int(ops.name[row])], int(ops.start_ns[row]), int(ops.thread[row])
        # Below a dispatch mode an operator is recorded twice, one call inside the other: one request.
        if begun_ns < asked_until.get((ask, thread), begun_ns):
            continue
        asked_until[ask, thread] = int(ops.end_ns[row])
        waiting[ask].append((begun_ns, thread))
    for found in waiting.values():
        found.sort(reverse=True)
    rows = np.flatnonzero(np.isin(notes.name, list(gloo)))
    rows = rows[np.argsort(notes.start_ns[rows], kind="stable")]
    made = []
    for row in rows.tolist():
        name, comm, start_ns = int(notes.name[row]), int(notes.comm[row]), int(notes.start_ns[row])
        op = op_of(names[name])
        open_asks = waiting[op or ""]
        asked = open_asks.pop() if open_asks and open_asks[-1][0] <= start_ns else None
        issue_ns, thread = asked or (start_ns, int(notes.thread[row]))
        owner = int(steps.at(np.array([issue_ns]))[0])
        args = trace.comm_args[comm] if comm >= 0 else NOTHING
        made.append(
            Linked(start_ns, int(notes.end_ns[row]), owner, name, None, op, args, issue_ns, thread, "span")
        )
        made[-1].label = names[name]
    return made
