"""The surveyed step that a watched one repeats, found collective by collective and never guessed.

Every collective that Python issues has a key. It holds its kind (op, group, dtype, how it reduces, root), its
number in its group within the step, and its place. The place is the stack, the module, and in backward the
running node of the step's graph. Two steps are of one sequence if all keys are equal, each group's count grew
equally and the same reducers of DDP ran. Then a collective's place in one is its place in the other. The key
does not contain sizes: they are measured in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from shardtoll.ledger.records.ddp_causes import DDP
from shardtoll.profiler.live.cause.callsite import Site
from shardtoll.profiler.live.cause.pending import PendingCollective, Region, growths

Key: TypeAlias = tuple[Any, ...]

MOST: Final = 64
"""Sequences that are remembered; of more, the one learnt first is forgotten."""


def key_of(pending: PendingCollective, region: Region, site: Site) -> Key:
    """Return the key of a collective about to be issued, whose `seq` is still its group's number before."""
    message, place = pending.message, pending.seq
    if place is not None:
        start = region.sequence_at_start.get(message.group, 0)
        place = None if start is None else place - start - region.uncounted.get(message.group, 0)
    return (message.op, message.group, message.dtype, message.reduce_op, message.root, place, site)


@dataclass(frozen=True, slots=True)
class Template:
    """A surveyed step's collectives, as they were, in order."""

    collectives: tuple[PendingCollective, ...]
    numbers: tuple[int | None, ...]
    """Each one's sequence number, counted from its group's at the step's beginning."""
    keys: tuple[Key, ...]
    """Keys of those that Python issued."""
    places: tuple[int, ...]
    """Positions of those in `collectives`."""
    growth: Mapping[str, int | None]
    """Group -> how much its count grew in the step; None if it does not count."""
    surveyed: bool
    """Not so: a watched step that repeated none, which those after it may repeat."""
    reducers: tuple[int, ...] = ()
    """DDP's reducers that took part: their collectives from C++ have no key."""
    graphs: tuple[int, ...] | None = None
    """Numbers of its backwards' graphs; None if the forward's collectives already distinguish it from
    others."""

    @property
    def all_seen(self) -> bool:
        """Whether Python issued every collective, so that watching sees them all."""
        return len(self.keys) == len(self.collectives)

    @property
    def unseen_sizes_stay(self) -> bool:
        """Whether what C++ issued is DDP's: buckets of parameters and buffers, as large in every step."""
        unseen = (pending.place for pending in self.collectives if pending.key is None)
        return all((place.caused_by_op or "").startswith(DDP) for place in unseen)


def grown(region: Region, at_end: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return how much each group's count grew by the training thread's doing; groups idle in it left out."""
    elsewhere = growths(region.elsewhere)
    growths_by_group: dict[str, int | None] = {}
    for group, after in at_end.items():
        before = region.sequence_at_start.get(group, 0)
        if after is None or before is None:
            growths_by_group[group] = None
            continue
        growth = after - before - region.uncounted.get(group, 0) - elsewhere.get(group, 0)
        if growth:
            growths_by_group[group] = growth
    return growths_by_group


class Templates:
    """The sequences learnt, and how far the step now running agrees with them."""

    def __init__(self) -> None:
        self._known: list[Template] = []
        self._alive: list[Template] = []
        self._at = 0
        self._backwards = 0

    def begin(self) -> None:
        """Begin a step: it may turn out to be any of those known."""
        self._alive = self._known
        self._at = self._backwards = 0

    def told_by_graph(self) -> bool:
        """Whether the graph of a backward that begins now has a say in which sequence the step repeats."""
        return any(each.graphs is not None for each in self._alive)

    def backward(self, graph: int) -> None:
        """Go on with those known whose next backward has this graph."""
        index = self._backwards
        self._backwards = index + 1
        self._alive = [
            each for each in self._alive if each.graphs is None or each.graphs[index : index + 1] == (graph,)
        ]

    def expected(self) -> Site | None:
        """Return where the next collective is issued if the step goes on as one known, None if it cannot."""
        index = self._at
        for each in self._alive:
            if index < len(each.keys):
                site: Site = each.keys[index][-1]
                return site
        return None

    def follow(self, key: Key) -> PendingCollective | None:
        """Return the surveyed collective that the next one repeats, None if the step has left them all."""
        index, alive = self._at, self._alive
        self._at = index + 1
        if len(alive) == 1:
            keys = alive[0].keys
            if index < len(keys) and keys[index] == key:
                return alive[0].collectives[alive[0].places[index]]
            self._alive = []
            return None
        self._alive = alive = [each for each in alive if index < len(each.keys) and each.keys[index] == key]
        return alive[0].collectives[alive[0].places[index]] if alive else None

    def end(self, growth: Mapping[str, int | None], reducers: Sequence[int] = ()) -> Template | None:
        """Return the sequence that the step has repeated from beginning to end, None for a new one."""
        for template in self._alive:
            if template.reducers != tuple(reducers):
                continue
            if len(template.keys) == self._at and template.growth == growth:
                counted = all(value is not None for value in growth.values())
                if template.all_seen or counted:
                    return template
        return None

    def learn(self, region: Region, at_end: Mapping[str, int | None]) -> tuple[Template, bool]:
        """Remember a step, in place of an earlier one like it; return it, and whether its sequence is new."""
        collectives = tuple(region.collectives)
        places = tuple(index for index, pending in enumerate(collectives) if pending.key is not None)
        keys = tuple(pending.key for pending in collectives if pending.key is not None)
        numbers = tuple(_number(pending, region) for pending in collectives)
        growth, reducers = grown(region, at_end), tuple(region.reducers)
        by_graph = bool(region.graphs) if region.watched else _needs_graph(collectives)
        graphs = tuple(region.graphs) if by_graph else None
        template = Template(collectives, numbers, keys, places, growth, not region.watched, reducers, graphs)
        same = [
            learnt
            for learnt in self._known
            if learnt.keys == keys
            and learnt.growth == growth
            and learnt.reducers == reducers
            and learnt.graphs == graphs
        ]
        others = [learnt for learnt in self._known if learnt not in same]
        self._known = [*others[-MOST + 1 :], template]
        new = not any(_alike(learnt.collectives, collectives) for learnt in same)
        return template, new


def _number(pending: PendingCollective, region: Region) -> int | None:
    group = pending.message.group
    start = region.sequence_at_start.get(group, 0)
    if pending.seq is None or start is None:
        return None
    return pending.seq - start - region.uncounted.get(group, 0)


def _needs_graph(collectives: Sequence[PendingCollective]) -> bool:
    """Whether some place is known by an autograd node while nothing near its module was seen in forward.

    Another branch of the model may make as many nodes: only the parameters that its graph reaches then
    distinguish it.
    """
    seen: set[str] = set()
    for pending in collectives:
        name = pending.place.module if pending.place.phase == "forward" and pending.key is not None else None
        while name:
            seen.add(name)
            name = name.rpartition(".")[0]
    by_node = (each.place.module or "" for each in collectives if each.place.by_node and each.key is not None)
    return any(name not in seen and name.rpartition(".")[0] not in seen for name in by_node)


def _alike(a: Sequence[PendingCollective], b: Sequence[PendingCollective]) -> bool:
    """Whether two steps of equal keys issue the same; what C++ issued has no key, but op, group and size."""
    return len(a) == len(b) and all(_what(x) == _what(y) for x, y in zip(a, b, strict=True))


def _what(pending: PendingCollective) -> tuple[Any, ...]:
    message = pending.message
    return (message.op, message.group, message.message_bytes if pending.key is None else None)
