"""The parts of sharded parameters as the first step finds them: fingerprints, taken between steps.

Ranks that hold equal parts of one matrix have made them with one seed. Whoever asks for no check learns that
too, so it costs a few microseconds a parameter, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from shardtoll.ledger.records.value import Value
from shardtoll.profiler.live.values.blank import blank
from shardtoll.profiler.live.values.fingerprint import Fingerprint, Fingerprints, TakenPrints
from shardtoll.profiler.live.values.sketch import has_values
from shardtoll.profiler.live.values.values import settled, unseen

_HALVES: Final = 2


@dataclass(frozen=True, slots=True)
class _Taken:
    """Shards that were taken at once."""

    rows: list[tuple[Value, list[int]]]
    """Each with the tickets of the whole and of its halves."""
    prints: TakenPrints

    def read(self) -> Iterator[Value]:
        prints = self.prints.read()
        return (_with(row, [prints[ticket] for ticket in tickets]) for row, tickets in self.rows)


class StartingShards:
    """Takes the shards of one rank before its first step."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._step: int | None = None
        self._names: set[str] = set()
        """Parameters that were looked at in the first step."""
        self._taken: list[_Taken] = []

    def take(self, step: int, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the shards as the first step begins; a step that begins anew had not begun."""
        if self._step in (None, step):
            self._step, self._taken = step, []
            self._names.clear()
            self.take_more(step, parameters)

    def take_more(self, step: int | None, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the shards of a model that the first step's forward has only now made known."""
        if self._step is None or self._step != step:
            return
        fingerprints, rows = Fingerprints(), []
        for name, parameter in parameters:
            if name in self._names or not _is_sharded(parameter):
                continue
            self._names.add(name)
            local = settled(parameter)
            with unseen():
                tickets = _tickets(fingerprints, local)
            if tickets is not None:
                rows.append((blank(parameter, local, self._rank, "shard", name), tickets))
        if rows:
            with unseen():
                self._taken.append(_Taken(rows, fingerprints.collect()))

    def rows(self, *, wait: bool = False) -> tuple[Value, ...]:
        """Return the rows once the device has passed them; with `wait`, when no step runs, at once."""
        if not (wait or all(taken.prints.ready() for taken in self._taken)):
            return ()
        taken, self._taken = self._taken, []
        with unseen():
            return tuple(row for each in taken for row in each.read())


def _is_sharded(parameter: Any) -> bool:
    spec = getattr(parameter, "_spec", None)
    if spec is None or is_lazy(parameter):
        return False
    return any(placement.is_shard() for placement in spec.placements)


def _tickets(fingerprints: Fingerprints, local: torch.Tensor) -> list[int] | None:
    """Return the tickets of a shard and of its halves; None if it has no values to look at."""
    if not has_values(local) or local.numel() < _HALVES:
        return None
    local = local.detach()
    parts = [local]
    if local.is_contiguous():
        half = local.numel() // _HALVES
        flat = local.view(-1)
        parts += [flat[:half], flat[half : _HALVES * half]]
    tickets = [fingerprints.take(part, thorough=True) for part in parts]
    taken = [ticket for ticket in tickets if ticket is not None]
    return taken if len(taken) == len(tickets) else None


def _with(row: Value, prints: list[Fingerprint]) -> Value:
    """Return the row with its fingerprint; `constant` also if the shard's halves are equal.

    Values that repeat within a shard, as a table with equal rows or copies of one expert, were made so.
    """
    whole, *halves = prints
    repeats = len(halves) > 1 and halves[0].number == halves[1].number
    return replace(row, hash=whole.number, constant=whole.constant or not whole.finite or repeats)
