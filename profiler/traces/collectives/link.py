"""Which collective each communication kernel carried out: the kernel's own words, then those of its launch.

Sources are asked in this order, each fills what those before it left open and contradicts none of them.

1. The kernel's args.
2. `External id` of an operator that describes a collective.
3. The launch call, and the `nccl:*` annotation and `record_param_comms` around it.
4. Those that were issued on the launching thread since its last collective kernel: a coalescing block
   launches one kernel for several.
5. The kernel's name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardtoll.profiler.traces.collectives.comms import BACKENDS, op_of
from shardtoll.profiler.traces.collectives.kernels import KernelTable
from shardtoll.profiler.traces.collectives.said import NOTHING, added, filled, said
from shardtoll.profiler.traces.collectives.stacks import nests_of, paths
from shardtoll.profiler.traces.file.trace_columns import CommArgs, Trace


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
    """Thread that asked for it; -1 if unknown."""
    how: str
    """The first source that named it: `args`, `external`, `launch`, `coalesced`, `span` or `name`."""
    shared: bool = False
    """Whether other kernels carried the same collective, so that its size is not this kernel's."""
    label: str | None = None
    """Name of the annotation, as `nccl:send 0->1`."""
    timed: bool = True
    """Whether it is known when it ran; else start and end are when it was issued."""


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

    def _merged(self, comm: int, rows: tuple[int, ...]) -> tuple[str | None, CommArgs, str | None]:
        """Return op and args of the kernel's own words filled up from rows, nearest first."""
        args = self.trace.comm_args[comm] if comm >= 0 else NOTHING
        op, label = op_of(args.name), None
        for row in rows:
            its_op, more, name = self._source(row)
            if its_op is None or (op is not None and its_op != op):
                continue
            op = op or its_op
            label = label or (name if name.startswith(BACKENDS) else None)
            args = filled(args, more)
        return op, args, label

    def link(self, works: Sequence[int], launch: Sequence[int], owner: Sequence[int]) -> list[Linked]:
        """Return a row for each communication kernel in `works`, in order of start.

        `launch` and `owner` hold, for each of them, the call that launched it (-1: unknown) and its step.
        """
        device, calls = self.trace.device, self.trace.calls
        launched = np.asarray(launch, np.int64)
        seen = launched >= 0
        call_ns = np.where(seen, calls.start_ns[launched] if len(calls.start_ns) else 0, 0)
        thread = np.where(seen, calls.thread[launched] if len(calls.thread) else -1, -1)
        rows = np.arange(len(self.said.comm))
        around = paths(
            nests_of(self.said.start_ns, self.said.end_ns, self.said.thread, rows), thread, call_ns
        )
        made: list[Linked] = []
        used: defaultdict[int, list[int]] = defaultdict(list)
        for place, work in enumerate(works):
            comm = int(device.comm[work])
            external = self.by_external.get(int(device.external[work]), -1)
            near = [row for row in reversed(around[place]) if self._source(row)[0] is not None]
            order = tuple(dict.fromkeys([external, *near] if external >= 0 else near))
            op, args, label = self._merge(comm, order)
            how = "args" if comm >= 0 and op_of(self.trace.comm_args[comm].name) else ""
            how = how or (
                "external" if external >= 0 and self._source(external)[0] else "launch" if near else "name"
            )
            name = int(device.name[work])
            by_name = self.table.classify(self.trace.names[name]).op
            outer = order[-1] if order else -1
            if outer >= 0:
                used[outer].append(len(made))
            described = outer >= 0
            row = Linked(
                start_ns=int(device.start_ns[work]),
                end_ns=int(device.end_ns[work]),
                owner=int(owner[place]),
                kernel=name,
                stream=_or_none(int(device.stream[work])),
                op=op or by_name,
                args=args,
                issue_ns=int(self.said.start_ns[outer])
                if described
                else int(call_ns[place])
                if seen[place]
                else None,
                thread=int(self.said.thread[outer]) if described else int(thread[place]),
                how=how,
                label=label,
            )
            made.append(row)
        for sharers in used.values():
            for number in sharers if len(sharers) > 1 else ():
                made[number].shared = True
        counts = Counter(launched[seen].tolist())
        replayed = {
            place
            for place, row in enumerate(launched.tolist())
            if row >= 0 and (counts[row] > 1 or "GraphLaunch" in self.trace.names[calls.name[row]])
        }
        return self._coalesced(made, set(used), call_ns.tolist(), replayed)

    def _coalesced(
        self, made: list[Linked], used: set[int], call_ns: list[int], replayed: set[int]
    ) -> list[Linked]:
        """Give kernels without words the operators issued on their thread since its last collective kernel.

        Operators of one op and group become one row with their sizes added; else each gets a row. Kernels
        at the places in `replayed` are of a graph: what was issued on the host before is not theirs.
        """
        if all(row.how != "name" or row.thread < 0 for row in made):
            return made
        captured = self._captured()
        waiting: defaultdict[int, list[int]] = defaultdict(list)
        for number, (name, comm) in enumerate(zip(self.said.name, self.said.comm, strict=True)):
            is_op = comm >= 0 and self.trace.names[name] == "record_param_comms"
            if is_op and number not in used and not captured[number] and self._source(number)[0] is not None:
                waiting[int(self.said.thread[number])].append(number)
        last: defaultdict[int, int] = defaultdict(lambda: -(2**62))
        result: dict[int, list[Linked]] = {}
        for place in sorted(range(len(made)), key=lambda place: call_ns[place]):
            row, at_ns = made[place], call_ns[place]
            result[place] = [row]
            if row.thread < 0:
                continue
            if row.how == "name" and place not in replayed:
                ops = [
                    number
                    for number in waiting[row.thread]
                    if last[row.thread] < int(self.said.start_ns[number]) <= at_ns
                ]
                result[place] = self._rows(row, ops) or [row]
            last[row.thread] = at_ns
        return [row for place in range(len(made)) for row in result[place]]

    def _captured(self) -> list[bool]:
        """Return which events of `said` were recorded into a graph, and launched nothing."""
        calls, names = self.trace.calls, self.trace.names
        marks: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
        for number, name in enumerate(names):
            if "BeginCapture" in name or "EndCapture" in name:
                for row in np.flatnonzero(calls.name == number).tolist():
                    marks[int(calls.thread[row])].append((int(calls.start_ns[row]), "BeginCapture" in name))
        for listed in marks.values():
            listed.sort()
        captured = []
        for start_ns, thread in zip(self.said.start_ns.tolist(), self.said.thread.tolist(), strict=True):
            listed = marks.get(thread, [])
            before = bisect_right(listed, (start_ns, True)) - 1
            captured.append(before >= 0 and listed[before][1])
        return captured

    def _rows(self, row: Linked, ops: Iterable[int]) -> list[Linked]:
        kinds: dict[tuple[object, ...], CommArgs] = {}
        issue: dict[tuple[object, ...], int] = {}
        op_at: dict[tuple[object, ...], str | None] = {}
        for number in ops:
            op, args, _ = self._source(number)
            if row.op is not None and op != row.op:
                continue
            peer = (
                (args.source_rank, args.target_rank, args.peer_place)
                if op in ("send", "recv")
                else number
                if op is None
                else 0
            )
            key = (op, args.group, args.ranks, args.dtype, peer)
            kinds[key] = added(kinds[key], args) if key in kinds else args
            issue.setdefault(key, int(self.said.start_ns[number]))
            op_at[key] = op

        def typed(args: CommArgs) -> CommArgs:
            """Return the args with the type that the kernel's own name has, if they say none."""
            return args if args.dtype or args.types else replace(args, dtype=row.args.dtype)

        return [
            replace(row, op=op_at[key], args=typed(args), issue_ns=issue[key], how="coalesced")
            for key, args in kinds.items()
        ]


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None
