"""Which operator each `External id` is, with its inputs as written: equal ones are kept once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shardtoll.profiler.traces.event import Args, whole
from shardtoll.profiler.traces.op_work import has_rule, needs_numbers
from shardtoll.profiler.traces.trace import Operators, OpKind

MOST_KINDS: Final = 200_000
"""Different operators with different inputs of one file; the inputs of more are left out."""
MOST_CALLS: Final = 30_000_000
"""Calls of one file; the operators of more are unknown."""
_LONGEST: Final = 1 << 16
"""Inputs written with more characters are left out."""


class OperatorCollector:
    """Takes the operators of chunk after chunk."""

    def __init__(self) -> None:
        self._kinds: dict[OpKind, int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._external = bytearray()
        self._kind = bytearray()

    def add(self, events: list[Any]) -> None:
        """Note the operators among the events of category `cpu_op`."""
        ids, kinds = [], []
        for event in events:
            args = event.args
            if args is None or event.ph != "X":
                continue
            external = args.external
            if external is None:
                external = args.old_external
            number = external if external.__class__ is int else whole(external)
            if 0 < number < 2**62:
                ids.append(number)
                kinds.append(self._number(event.name or "", args))
        if ids and len(self._kind) < 4 * MOST_CALLS:
            self._external += np.array(ids, np.int64).tobytes()
            self._kind += np.array(kinds, np.int32).tobytes()

    def _number(self, name: str, args: Args) -> int:
        if not has_rule(name):
            key: tuple[Any, ...] = (name,)
        elif needs_numbers(name):
            key = (name, bytes(args.dims), bytes(args.types), bytes(args.strides), bytes(args.concrete))
        else:
            key = (name, bytes(args.dims), bytes(args.types), bytes(args.strides))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_KINDS or sum(map(len, key)) > _LONGEST:
                key = (name[:_LONGEST],)
            kind = OpKind(*key)
            found = self._known[key] = self._kinds.setdefault(kind, len(self._kinds))
        return found

    def done(self) -> Operators:
        """Return what was found; an id that comes twice is the first one's."""
        external = np.frombuffer(self._external, np.int64)
        kind = np.frombuffer(self._kind, np.int32)
        ids, first = np.unique(external, return_index=True)
        return Operators(ids, kind[first], tuple(self._kinds))
