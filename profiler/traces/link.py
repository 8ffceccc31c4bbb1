"""Which collective each communication kernel carried out: the kernel's own words, then those of its launch.

Sources are asked in this order, each fills what those before it left open and contradicts none of them:
the kernel's args; `External id` of an operator that describes a collective; the launch call and the
`nccl:*` annotation and `record_param_comms` around it; those that were issued on the launching thread
since its last collective kernel (a coalescing block launches one kernel for several); the kernel's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardtoll.profiler.traces.comms import BACKENDS, op_of
from shardtoll.profiler.traces.kernels import KernelTable
from shardtoll.profiler.traces.stacks import nests_of, paths
from shardtoll.profiler.traces.steps import Steps
from shardtoll.profiler.traces.trace import KERNEL, CommArgs, HostWork, Trace

NOTHING: Final = CommArgs()
_FIELDS: Final = tuple(item.name for item in fields(CommArgs))


@dataclass(slots=True)
class Linked:
    """One row of the collectives' table before its words are settled."""

    start_ns: int
    end_ns: int
    owner: int
    """Place of the step that launched it."""
    kernel: int
    """Name of the kernel or span, number into `Trace.names`."""
    stream: int | None
    op: str | None
    args: CommArgs
    issue_ns: int | None
    thread: int
    """Thread that asked for it; -1 where unknown."""
    how: str
    """The first source that named it: `args`, `external`, `launch`, `coalesced`, `span` or `name`."""
    shared: bool = False
    """Whether other kernels carried the same collective, so that its size is not this kernel's."""
    label: str | None = None
    """Name of the annotation, as `nccl:send 0->1`."""


@dataclass(frozen=True, slots=True)
class Said:
    """Events on the host that describe a collective, in order of start."""

    start_ns: np.ndarray[tuple[int], np.dtype[np.int64]]
    end_ns: np.ndarray[tuple[int], np.dtype[np.int64]]
    thread: np.ndarray[tuple[int], np.dtype[np.int32]]
    external: list[int]
    comm: list[int]
    name: list[int]


def said(trace: Trace) -> Said:
    """Return operators and annotations that describe a collective."""
    wanted = np.array(
        [name.startswith(BACKENDS) or name == "record_param_comms" for name in trace.names], bool
    )
    parts: list[tuple[HostWork, np.ndarray[tuple[int], np.dtype[np.int64]]]] = []
    for work in (trace.ops, trace.annotations):
        named = wanted[work.name] if len(work.name) else np.zeros(0, bool)
        parts.append((work, np.flatnonzero(named | (work.comm >= 0))))
    columns = {
        key: np.concatenate([getattr(work, key)[rows] for work, rows in parts])
        for key in ("start_ns", "end_ns", "thread", "external", "comm", "name")
    }
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
    sorted_columns = {key: column[order] for key, column in columns.items()}
    lists = {key: sorted_columns[key].tolist() for key in ("external", "comm", "name")}
    return Said(sorted_columns["start_ns"], sorted_columns["end_ns"], sorted_columns["thread"], **lists)


class Linker:
    """Links the kernels of one trace."""

    def __init__(self, trace: Trace, table: KernelTable) -> None:
        self.trace = trace
        self.table = table
        self.said = said(trace)
        self.by_external: dict[int, int] = {}
        for row, external in enumerate(self.said.external):
            if external > 0 and self.said.comm[row] >= 0:
                self.by_external.setdefault(external, row)
        self._merge = lru_cache(maxsize=None)(self._merged)

    def _source(self, row: int) -> tuple[str | None, CommArgs, str]:
        """Return (op, args, name) of an event on the host."""
        comm, name = self.said.comm[row], self.trace.names[self.said.name[row]]
        args = self.trace.comm_args[comm] if comm >= 0 else NOTHING
        return op_of(args.name) or op_of(name), args, name

    def _merged(self, own: int, rows: tuple[int, ...]) -> tuple[str | None, CommArgs, str | None]:
        """Return op and args of the kernel's own words filled up from rows, nearest first."""
        args = self.trace.comm_args[own] if own >= 0 else NOTHING
        op, label = op_of(args.name), None
        for row in rows:
            its_op, more, name = self._source(row)
            if its_op is None or (op is not None and its_op != op):
                continue
            op = op or its_op
            label = label or (name if name.startswith(BACKENDS) else None)
            args = _filled(args, more)
        return op, args, label

    def link(self, works: Sequence[int], launch: Sequence[int], owner: Sequence[int]) -> list[Linked]:
        """Return a row for each communication kernel in `works`, in order of start.

        `launch` and `owner` hold, for each of them, the call that launched it (-1: unknown) and its step.
        """
        device, calls = self.trace.device, self.trace.calls
        at = np.asarray(launch, np.int64)
        seen = at >= 0
        call_ns = np.where(seen, calls.start_ns[at] if len(calls.start_ns) else 0, 0)
        thread = np.where(seen, calls.thread[at] if len(calls.thread) else -1, -1)
        rows = np.arange(len(self.said.comm))
        around = paths(
            nests_of(self.said.start_ns, self.said.end_ns, self.said.thread, rows), thread, call_ns
        )
        made: list[Linked] = []
        used: defaultdict[int, list[int]] = defaultdict(list)
        for place, work in enumerate(works):
            own = int(device.comm[work])
            external = self.by_external.get(int(device.external[work]), -1)
            near = [row for row in reversed(around[place]) if self._source(row)[0] is not None]
            order = tuple(dict.fromkeys([external, *near] if external >= 0 else near))
            op, args, label = self._merge(own, order)
            how = "args" if own >= 0 and op_of(self.trace.comm_args[own].name) else ""
            how = how or (
                "external" if external >= 0 and self._source(external)[0] else "launch" if near else "name"
            )
            name = int(device.name[work])
            by_name = self.table.classify(self.trace.names[name]).op
            outer = order[-1] if order else -1
            if outer >= 0:
                used[outer].append(len(made))
            known = outer >= 0
            row = Linked(
                start_ns=int(device.start_ns[work]),
                end_ns=int(device.end_ns[work]),
                owner=int(owner[place]),
                kernel=name,
                stream=_or_none(int(device.stream[work])),
                op=op or by_name,
                args=args,
                issue_ns=int(self.said.start_ns[outer])
                if known
                else int(call_ns[place])
                if seen[place]
                else None,
                thread=int(self.said.thread[outer]) if known else int(thread[place]),
                how=how,
                label=label,
            )
            made.append(row)
        for sharers in used.values():
            for number in sharers if len(sharers) > 1 else ():
                made[number].shared = True
        return self._coalesced(made, set(used), call_ns.tolist())

    def _coalesced(self, made: list[Linked], used: set[int], call_ns: list[int]) -> list[Linked]:
        """Give kernels without words the operators issued on their thread since its last collective kernel.

        Operators of one op and group become one row with their sizes added; else each gets a row.
        """
        if all(row.how != "name" or row.thread < 0 for row in made):
            return made
        waiting: defaultdict[int, list[int]] = defaultdict(list)
        for number, (name, comm) in enumerate(zip(self.said.name, self.said.comm, strict=True)):
            is_op = comm >= 0 and self.trace.names[name] == "record_param_comms"
            if is_op and number not in used and self._source(number)[0] is not None:
                waiting[int(self.said.thread[number])].append(number)
        last: defaultdict[int, int] = defaultdict(lambda: -(2**62))
        result: dict[int, list[Linked]] = {}
        for place in sorted(range(len(made)), key=lambda place: call_ns[place]):
            row, at_ns = made[place], call_ns[place]
            result[place] = [row]
            if row.thread < 0:
                continue
            if row.how == "name":
                ops = [
                    number
                    for number in waiting[row.thread]
                    if last[row.thread] < int(self.said.start_ns[number]) <= at_ns
                ]
                result[place] = self._rows(row, ops) or [row]
            last[row.thread] = at_ns
        return [row for place in range(len(made)) for row in result[place]]

    def _rows(self, row: Linked, ops: Iterable[int]) -> list[Linked]:
        kinds: dict[tuple[object, ...], CommArgs] = {}
        issue: dict[tuple[object, ...], int] = {}
        op_at: dict[tuple[object, ...], str | None] = {}
        for number in ops:
            op, args, _ = self._source(number)
            if row.op is not None and op != row.op:
                continue
            peer = (
                (args.source_rank, args.target_rank)
                if op in ("send", "recv")
                else number
                if op is None
                else 0
            )
            key = (op, args.group, args.ranks, args.dtype, peer)
            kinds[key] = _added(kinds[key], args) if key in kinds else args
            issue.setdefault(key, int(self.said.start_ns[number]))
            op_at[key] = op
        return [
            replace(row, op=op_at[key], args=args, issue_ns=issue[key], how="coalesced")
            for key, args in kinds.items()
        ]


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None


def _filled(args: CommArgs, more: CommArgs) -> CommArgs:
    """Return `args` with what it leaves open taken from `more`."""
    if args == NOTHING:
        return more
    missing = {name: getattr(more, name) for name in _FIELDS if getattr(args, name) is None}
    return replace(args, **missing)


def _added(args: CommArgs, more: CommArgs) -> CommArgs:
    """Return args of two coalesced collectives as one: sizes added, unknown where one is unknown."""

    def total(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    return replace(
        args,
        in_elements=total(args.in_elements, more.in_elements),
        out_elements=total(args.out_elements, more.out_elements),
        dims=None if args.dims is None or more.dims is None else (*args.dims, *more.dims),
        types=None if args.types is None or more.types is None else (*args.types, *more.types),
    )


def layers_of(trace: Trace, table: KernelTable) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the layer of each piece of device work, as `split` numbers them."""
    number = {"compute": 0, "communication": 1, "lookalike": 2}
    kinds = np.zeros(len(trace.names), np.int64)
    kernels = trace.device.kind == KERNEL
    for name in np.unique(trace.device.name[kernels]).tolist():
        kinds[name] = number[table.classify(trace.names[name]).what]
    return np.where(kernels, kinds[trace.device.name] if len(kinds) else 0, 3)


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
    for row in np.flatnonzero(np.isin(ops.name, list(asks))).tolist():
        waiting[asks[int(ops.name[row])]].append((int(ops.start_ns[row]), int(ops.thread[row])))
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
