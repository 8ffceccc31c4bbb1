"""Which operator each `External id` is, with its inputs as written: equal ones are kept once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, Final

import numpy as np

from shardtoll.profiler.traces.file.columns import externals
from shardtoll.profiler.traces.file.event import ABSENT
from shardtoll.profiler.traces.file.op_work import has_rule, needs_numbers
from shardtoll.profiler.traces.file.trace_columns import Operators, OpKind

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
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._plain = _Plain(self._number)
        self._external = bytearray()
        self._kind = bytearray()

    def add(self, events: list[Any]) -> None:
        """Note the complete operators of a chunk."""
        called = [event for event in events if event.args is not None]
        if not called or len(self._kind) >= 4 * MOST_CALLS:
            return
        external = externals([event.args for event in called])
        usable = external > 0
        if not usable.all():
            called = list(compress(called, usable.tolist()))
            external = external[usable]
        plain = self._plain
        # Shapes are seldom recorded: then a name is all there is.
        kinds = [
            plain[event.name or ""] if event.args.dims is ABSENT else self._shaped(event) for event in called
        ]
        self._external += external.data.cast("B")
        self._kind += np.array(kinds, np.int32).data.cast("B")

    def _shaped(self, event: Any) -> int:
        """Return the number of an operator whose inputs are recorded."""
        name, args = event.name or "", event.args
        if not has_rule(name):
            return self._plain[name]
        if needs_numbers(name):
            return self._number(name, *map(bytes, (args.dims, args.types, args.strides, args.concrete)))
        return self._number(name, *map(bytes, (args.dims, args.types, args.strides)))

    def _number(self, *key: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= MOST_KINDS or sum(map(len, key)) > _LONGEST:
                kind = OpKind(key[0][:_LONGEST])
            else:
                kind = OpKind(*key)
            number = self._numbers[key] = self._kinds.setdefault(kind, len(self._kinds))
        return number

    def done(self) -> Operators:
        """Return what was found; an id that comes twice is the first one's."""
        external = np.frombuffer(self._external, np.int64)
        kind = np.frombuffer(self._kind, np.int32)
        ids, first = np.unique(external, return_index=True)
        return Operators(ids, kind[first], tuple(self._kinds))


class _Plain(dict[str, int]):
    """Name -> number of the operator without inputs."""

    def __init__(self, number: Callable[[str], int]) -> None:
        super().__init__()
        self._number = number

    def __missing__(self, name: str) -> int:
        number = self[name] = self._number(name)
        return number
