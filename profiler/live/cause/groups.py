"""Process groups of the job: names, ranks, mesh dimensions and their own sequence numbers."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable
from types import CellType, FrameType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.ledger.records.record import Group
from shardtoll.profiler.live.cause.backends import backend_of

_MESH_PREFIX = "mesh_"
"""torch names the group of mesh dimension `tp` `mesh_tp` in its description."""
_C10D: Final = getattr(torch.distributed, "distributed_c10d", None)


def initialized() -> bool:
    """Whether the default process group exists."""
    return dist.is_available() and dist.is_initialized()


class Groups:
    """Knows every group seen; `mesh` collects dimension name -> size of the meshes seen."""

    def __init__(self, device_type: str | None = None) -> None:
        """`device_type`: the kind of device that the job computes on, as `cpu`; None if unknown."""
        self._device_type = device_type
        self._used: Counter[str] = Counter()
        """Backend -> collectives that ran on it, of groups of more than one rank."""
        self.mesh: dict[str, int] = {}
        self._records: dict[str, Group] = {}
        self._seen: dict[str, weakref.ref[Any]] = {}
        """Group name -> the torch group its record describes: a later one may take the same name."""
        self._earlier: list[Group] = []
        """Records of groups that were destroyed or replaced."""
        self._mesh_dims: dict[str, str] = {}
        self._meshes: set[int] = set()
        self._kept_meshes: list[Any] = []
        self._uncounted: set[str] = set()
        """Groups whose backend keeps no sequence number; asking costs an exception each time."""
        self._known: tuple[int, ...] = ()
        self._mine: list[tuple[str, weakref.ref[Any]]] = []
        """This rank's groups when those of the process were the ones of `_known`."""
        self.changes = 0
        """How often the groups were found to be others than before."""

    def sequence_number(self, group: Any, name: str | None = None) -> int | None:
        """Return how many collectives the group has issued; None if its backend does not count."""
        name = name or str(group.group_name)
        if name in self._uncounted:
            return None
        try:
            return int(group._get_sequence_number_for_group())
        except (RuntimeError, AttributeError):
            self._uncounted.add(name)
            return None

    def sequence_numbers(self) -> dict[str, int | None]:
        """Return the sequence number of each of this rank's groups, by name."""
        # If the groups are those of before, torch is asked nothing else: it would cost more than numbers.
        ids = tuple(map(id, _of_process()))
        if ids == self._known and ids:
            numbers: dict[str, int | None] = {}
            for name, ref in self._mine:
                group = ref()
                if group is None:
                    break
                numbers[name] = None if name in self._uncounted else self.sequence_number(group, name)
            else:
                return numbers
        mine = [(str(group.group_name), group) for group in live_groups()]
        self._known = tuple(map(id, _of_process()))
        self._mine = [(name, weakref.ref(group)) for name, group in mine]
        self.changes += 1
        return {name: self.sequence_number(group, name) for name, group in mine}

    def all_fake(self) -> bool:
        """Whether there are groups, and all of them belong to the backend that transfers nothing."""
        groups = live_groups()
        return bool(groups) and all(self.record(group).backend == "fake" for group in groups)

    def note_mesh(self, mesh: Any) -> None:
        """Learn from a DeviceMesh which group spans which dimension."""
        if id(mesh) in self._meshes:
            return
        self._meshes.add(id(mesh))
        self._kept_meshes.append(mesh)  # keeps the id from being reused
        for dim, name in enumerate(mesh.mesh_dim_names or ()):
            self.mesh.setdefault(name, mesh.size(dim))
            group_name = mesh.get_group(dim).group_name
            self._mesh_dims.setdefault(group_name, name)
            record = self._records.get(group_name)
            if record is not None and record.mesh_dim is None:
                del self._records[group_name]

    def note_live_meshes(self) -> None:
        """Learn the meshes that the program holds: pipelines and plain collectives carry none.

        Looks through all objects, some ten ms in a large program: once, before the first step. A mesh that
        only torch still holds, in its caches, is no more in use. If two meshes call one group by two names,
        as the whole world is easily called, it stays without.
        """
        if not initialized():
            return
        from torch.distributed.device_mesh import DeviceMesh

        named: dict[str, dict[str, int]] = {}
        for mesh in _held([thing for thing in gc.get_objects() if type(thing) is DeviceMesh]):
            for name, group_name, size in _dims_of(mesh):
                named.setdefault(group_name, {})[name] = size
        for group_name, sizes in named.items():
            if len(sizes) == 1 and group_name not in self._mesh_dims:
                ((name, size),) = sizes.items()
                self._mesh_dims[group_name] = name
                self.mesh.setdefault(name, size)

    def note_tensors(self, tensors: Any) -> None:
        """Learn the meshes of the DTensors among these tensors."""
        for tensor in tensors:
            mesh = getattr(tensor, "device_mesh", None)
            if mesh is not None:
                self.note_mesh(mesh)

    def record(self, group: Any) -> Group:
        """Return the record of a torch ProcessGroup."""
        name = str(group.group_name)
        record = self._records.get(name)
        seen = self._seen.get(name)
        if record is not None and seen is not None and seen() is not group:
            self._earlier.append(record)
            self._uncounted.discard(name)
            record = None
        if record is None:
            description = str(getattr(group, "group_desc", "") or "") or None
            dim = self._mesh_dims.get(name)
            if dim is None and description and description.startswith(_MESH_PREFIX):
                dim = description.removeprefix(_MESH_PREFIX)
            record = Group(
                name=name,
                ranks=tuple(dist.get_process_group_ranks(group)),
                mesh_dim=dim,
                backend=backend_of(group, self._device_type),
                description=description,
            )
            self._records[name] = record
            self._seen[name] = weakref.ref(group)
        return record

    def named(self, name: str) -> Group | None:
        """Return the record of the group of this name; None if it was never used."""
        return self._records.get(name)

    def used(self, group: Any) -> Group:
        """Return the record of a torch ProcessGroup that runs a collective now."""
        record = self.record(group)
        if record.backend is not None and record.size > 1:
            self._used[record.backend] += 1
        return record

    def backend(self) -> str | None:
        """Return the backend that most collectives ran on; that of the default group before any has run.

        A program may make its default group for one backend, and train over groups of another.
        """
        if self._used:
            return self._used.most_common(1)[0][0]
        return backend_of(None, self._device_type) if initialized() else None

    def size(self, name: str) -> int:
        """Return the number of ranks of the group of this name, 1 if it is not known any more."""
        for mine, ref in self._mine:
            group = ref()
            if mine == name and group is not None:
                return self.record(group).size
        record = self._records.get(name)
        return 1 if record is None else record.size

    def mesh_dim(self, name: str) -> str | None:
        """Return the mesh dimension that the group of this name spans, as far as known by now."""
        record = self._records.get(name)
        return self._mesh_dims.get(name) or (record.mesh_dim if record else None)

    def all_records(self) -> tuple[Group, ...]:
        """Return every group of this rank: unused ones, and those that are no more but were used."""
        live = [self.record(group) for group in live_groups()]
        return tuple(dict.fromkeys([*live, *self._records.values(), *self._earlier]))


def _held(meshes: list[Any]) -> list[Any]:
    """Return the meshes that a variable of the program or a module of its model refers to.

    All in one look: each look for holders passes over all objects again, and torch keeps meshes of before.
    """
    wanted, held = {id(mesh) for mesh in meshes}, set[int]()
    for holder in gc.get_referrers(*meshes):
        if isinstance(holder, (CellType, FrameType, nn.Module)) or (
            isinstance(holder, dict) and ("_parameters" in holder or "__name__" in holder)
        ):
            held |= wanted & set(map(id, gc.get_referents(holder)))
    return [mesh for mesh in meshes if id(mesh) in held]


def _dims_of(mesh: Any) -> list[tuple[str, str, int]]:
    """Return name, group and size of the named dimensions of a mesh that has groups."""
    try:
        return [
            (name, str(mesh.get_group(dim).group_name), mesh.size(dim))
            for dim, name in enumerate(mesh.mesh_dim_names or ())
        ]
    except (RuntimeError, ValueError, KeyError, IndexError, AttributeError):
        # A mesh without groups of its own: one of a part of the ranks, or made for planning only.
        return []


def _of_process() -> Iterable[Any]:
    """Return the groups that this process has made, whether it belongs to them or not."""
    made: Iterable[Any] = getattr(getattr(_C10D, "_world", None), "pg_map", ())
    return made


def live_groups() -> list[Any]:
    """Return the process groups this rank belongs to now."""
    if not initialized():
        return []
    made = list(_of_process()) or [dist.group.WORLD]
    return [group for group in made if dist.get_rank(group) >= 0]
