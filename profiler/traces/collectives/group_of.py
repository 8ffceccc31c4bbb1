"""The process group of a collective: as its args say, else the only one it can be, else unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from shardtoll.ledger.records.record import MOST_RANKS, Group
from shardtoll.profiler.traces.collectives.comms import UNKNOWN, ranks_in
from shardtoll.profiler.traces.file.trace_columns import CommArgs, GroupInfo

DEFAULT: Final = "default"
ASSUMED: Final = "assumed the default group"
"""How the notice ends that collectives name no group and were taken for the default group's."""

_MESH: Final = re.compile(r"mesh_(?!default)(\w+)$")


class Placed(Struct, frozen=True):
    """A collective's group; `size` is None if unknown, `ranks` empty if unknown."""

    name: str
    size: int | None
    ranks: tuple[int, ...]
    mesh_dim: str | None = None
    description: str | None = None
    assumed: bool = False
    """Whether the trace does not say, and all ranks of the job were taken."""


class Groups:
    """Finds groups, and collects those it found."""

    def __init__(
        self, groups: Sequence[GroupInfo], backend: str | None, world_size: int, *, named: bool
    ) -> None:
        """`groups`: those that the trace lists. `named`: whether any of its collectives names its group."""
        self._backend = backend
        self._world = world_size
        self._by_name = {group.name: group for group in groups}
        whole = [group for group in groups if (group.size or len(group.ranks)) == world_size]
        self._only = whole[0] if len(whole) == 1 else None
        self._named = named or bool(groups)
        self._found: dict[tuple[object, ...], Placed] = {}

    def place(self, args: CommArgs) -> Placed:
        """Return the group of a collective that is described by `args`."""
        key = (args.group, args.group_size, args.ranks, args.rank_start, args.rank_stride)
        placed = self._found.get(key)
        if placed is None:
            placed = self._found[key] = self._place(args)
        return placed

    def _place(self, args: CommArgs) -> Placed:
        if args.group is not None:
            listed = self._by_name.get(args.group, GroupInfo(args.group, ()))
            ranks = ranks_in(args) or listed.ranks
            size = args.group_size or listed.size or len(ranks) or None
            text = args.group_description or listed.description
            ranks = ranks if len(ranks) == size and len(set(ranks)) == size else ()
            return Placed(args.group, size, ranks, mesh_dim(text), text)
        if self._only is not None and args.group_size in (None, self._world):
            only = self._only
            ranks = only.ranks or tuple(range(self._world))
            return Placed(only.name, self._world, ranks, mesh_dim(only.description), only.description)
        if not self._named and args.group_size in (None, self._world):
            return Placed(DEFAULT, self._world, tuple(range(self._world)), assumed=True)
        return Placed(UNKNOWN, args.group_size, ())

    def records(self) -> tuple[Group, ...]:
        """Return the groups whose ranks are known, those the trace lists without using them too."""
        made: dict[tuple[str, tuple[int, ...]], Group] = {}
        for group in self._by_name.values():
            ranks = group.ranks
            if 0 < len(ranks) == len(set(ranks)) <= MOST_RANKS:
                backend = group.backend or self._backend
                made[group.name, ranks] = Group(
                    group.name, ranks, mesh_dim(group.description), backend, group.description
                )
        for placed in self._found.values():
            key = (placed.name, placed.ranks)
            if placed.ranks and key not in made:
                made[key] = Group(*key, placed.mesh_dim, self._backend, placed.description)
        return tuple(made.values())


def mesh_dim(description: str | None) -> str | None:
    """Return the mesh dimension in a group's description (`mesh_tp`, as DeviceMesh writes it), or None."""
    match = _MESH.match(description or "")
    return match[1] if match else None
