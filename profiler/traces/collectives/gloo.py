"""Collectives of traces without a device: gloo's spans and the operators that asked for them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.profiler.traces.collectives.comms import op_of
from shardtoll.profiler.traces.collectives.link import Linked
from shardtoll.profiler.traces.collectives.said import NOTHING
from shardtoll.profiler.traces.collectives.steps import Steps
from shardtoll.profiler.traces.file.trace_columns import CommArgs, Trace

_CARRIES: Final = {"all_reduce": ("all_reduce", "reduce_scatter")}
"""Name of a span -> what may have asked for it. Gloo has no reduce_scatter: it reduces the whole on all ranks
and keeps a part, and its span says so. The request is what the program sends."""

_OF_LISTS: Final = "c10d::reduce_scatter_"
"""Takes a list of tensors; gloo makes one span per tensor."""


_THREADS: Final = 2
"""Threads on which torch runs a group's requests to gloo: so many may begin out of order."""


class _Request(Struct, eq=False):
    """A `c10d::` operator that asks for a collective."""

    begun_ns: int
    thread: int
    op: str
    spans: int
    """Spans that may still come of it."""
    shapes: frozenset[tuple[int, ...]] | None
    """Those of its tensors; None if unknown."""
    row: Linked | None = None
    """The resulting row so far."""


def spans(trace: Trace, steps: Steps) -> list[Linked]:
    """Return a row for each collective of gloo, linked to the `c10d::` operator that asked for it.

    The spans name no operator. Requests whose spans have one name are taken up in the order in which they
    were made. A span therefore takes the earliest request still open that lies before it. Two threads of gloo
    may take up two requests at once, and begin in either order: of those the shapes decide.
    """
    names, notes = trace.names, trace.annotations
    gloo = [number for number, name in enumerate(names) if name.startswith("gloo:")]
    waiting = _requests(trace)
    rows = np.flatnonzero(np.isin(notes.name, gloo))
    made: list[Linked] = []
    for row in rows[np.argsort(notes.start_ns[rows], kind="stable")].tolist():
        name, comm, start_ns = int(notes.name[row]), int(notes.comm[row]), int(notes.start_ns[row])
        end_ns, op = int(notes.end_ns[row]), op_of(names[name])
        args = trace.comm_args[comm] if comm >= 0 else NOTHING
        queues = [waiting[each] for each in _CARRIES.get(op or "", (op or "",))]
        ready = [(request, queue) for queue in queues for request in _begun(queue, start_ns)]
        if not ready:
            made.append(_linked(trace, steps, row, start_ns, int(notes.thread[row]), op, args))
            continue
        request, queue = min(ready, key=lambda each: (not _fits(each[0], args), each[0].begun_ns))
        request.spans -= 1
        if request.row is not None:
            _add(request.row, end_ns, args)
        else:
            request.row = _linked(trace, steps, row, request.begun_ns, request.thread, request.op, args)
            made.append(request.row)
        if not request.spans:
            queue.remove(request)
    return made


def _begun(queue: deque[_Request], start_ns: int) -> Iterator[_Request]:
    """Return the open requests that were made before a span began, no more than gloo takes up at once."""
    for request in islice(queue, _THREADS):
        if request.begun_ns > start_ns:
            return
        yield request


def _fits(request: _Request, args: CommArgs) -> bool:
    """Return whether a span has shapes of the request's tensors only; unknown ones fit."""
    return request.shapes is None or args.dims is None or request.shapes.issuperset(args.dims)


def _requests(trace: Trace) -> defaultdict[str, deque[_Request]]:
    """Return the requests by op, the earliest first."""
    names, ops = trace.names, trace.ops
    asks = {
        number: op for number, name in enumerate(names) if name.startswith("c10d::") and (op := op_of(name))
    }
    waiting: defaultdict[str, deque[_Request]] = defaultdict(deque)
    asked_until: dict[tuple[str, int], int] = {}
    asking = np.flatnonzero(np.isin(ops.name, list(asks)))
    for row in asking[np.argsort(ops.start_ns[asking], kind="stable")].tolist():
        name = int(ops.name[row])
        ask, begun_ns, thread = asks[name], int(ops.start_ns[row]), int(ops.thread[row])
        # Below a dispatch mode an operator is recorded twice, one call inside the other: one request.
        if begun_ns < asked_until.get((ask, thread), begun_ns):
            continue
        asked_until[ask, thread] = int(ops.end_ns[row])
        several = names[name] == _OF_LISTS
        dims = trace.comm_args[int(ops.comm[row])].dims if ops.comm[row] >= 0 else None
        shapes = None if dims is None else frozenset(dims)
        waiting[ask].append(_Request(begun_ns, thread, ask, _ranks(trace) if several else 1, shapes))
    return waiting


def _ranks(trace: Trace) -> int:
    """Return the length of a list with one tensor per rank; 1 if the job's groups differ in size."""
    sizes = {group.size or len(group.ranks) for group in trace.meta.groups}
    return sizes.pop() or 1 if len(sizes) == 1 else 1


def _linked(
    trace: Trace, steps: Steps, row: int, issue_ns: int, thread: int, op: str | None, args: CommArgs
) -> Linked:
    notes, owner = trace.annotations, int(steps.at(np.array([issue_ns]))[0])
    start_ns, end_ns, name = int(notes.start_ns[row]), int(notes.end_ns[row]), int(notes.name[row])
    made = Linked(start_ns, end_ns, owner, name, None, op, args, issue_ns, thread, "span")
    made.label = trace.names[name]
    return made


def _add(row: Linked, end_ns: int, args: CommArgs) -> None:
    """Take in one more span of the same request: it lasts longer and moves more."""
    row.end_ns = max(row.end_ns, end_ns)
    if row.args.dims is None or args.dims is None:
        row.args = replace(row.args, dims=None)
        return
    types = None if row.args.types is None or args.types is None else row.args.types + args.types
    row.args = replace(row.args, dims=row.args.dims + args.dims, types=types)
