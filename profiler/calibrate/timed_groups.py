"""The groups that are measured: the world, a host's ranks and parts of them, or a mesh's dimensions."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

PART_HOSTS: Final = 4
"""Hosts on which groups of some of a host's ranks are measured. The whole world makes each group together,
so that hundreds of hosts would spend the time on that; what 2 ranks of a host take, few hosts tell."""


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups of one kind, which run at the same time as they do in a job; `own` is this rank's."""

    name: str
    own: dist.ProcessGroup | None
    """None if this rank is in no group of the kind: it waits meanwhile."""
    members: tuple[tuple[int, ...], ...]
    """Global ranks of each group."""
    nodes: int
    """Hosts that one group is on."""
    sharing: int
    """Most groups that have ranks on one host, if they span several."""
    spare: bool = False
    """Whether the kind is left out if measuring it takes too long."""

    @property
    def ranks(self) -> int:
        """Ranks of one group."""
        return len(self.members[0])


def host_names() -> list[str]:
    """Return the host of each rank, on every rank."""
    names: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(names, socket.gethostname())
    return names


def make_groups(mesh: Mapping[str, int], hosts: Sequence[str]) -> list[Groups]:
    """Return the kinds of groups to measure; call it on all ranks.

    Without a mesh: the world, and if there are several hosts of as many ranks, those of each host. Then the
    first 2, 4, 8 and so on ranks of the first hosts, with all others waiting: a job of so few ranks has the
    host for itself.
    """
    world = dist.get_world_size()
    if mesh:
        return _dimensions(mesh, hosts)
    kinds = [_kind("world", dist.group.WORLD, [tuple(range(world))], hosts)]
    blocks = [tuple(r for r in range(world) if hosts[r] == host) for host in dict.fromkeys(hosts)]
    sizes = {len(block) for block in blocks}
    if len(blocks) > 1 and len(sizes) == 1 and sizes != {1}:
        subgroup, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
            [list(block) for block in blocks]
        )
        kinds.append(_kind("host", subgroup, blocks, hosts))
    return [*kinds, *_parts(blocks)] if len(sizes) == 1 else kinds


def _parts(blocks: Sequence[Sequence[int]]) -> list[Groups]:
    """Return the kinds of the first ranks of the first hosts, fewer than all by powers of two."""
    kinds, ranks = [], 2
    while ranks < len(blocks[0]):
        members = [tuple(block[:ranks]) for block in blocks[:PART_HOSTS]]
        own = None
        # Every rank takes part in making each group, whether it is in it or not.
        for group_ranks in members:
            made = dist.new_group(list(group_ranks))
            own = made if dist.get_rank() in group_ranks else own
        kinds.append(Groups(f"{ranks} ranks of a host", own, tuple(members), 1, 1, spare=True))
        ranks *= 2
    return kinds


def _dimensions(mesh: Mapping[str, int], hosts: Sequence[str]) -> list[Groups]:
    world, shape = dist.get_world_size(), tuple(mesh.values())
    device = "cuda" if "nccl" in dist.get_backend() else "cpu"
    made = init_device_mesh(device, shape, mesh_dim_names=tuple(mesh))
    grid = torch.arange(world).reshape(shape)
    dimensions = []
    for place, (name, size) in enumerate(mesh.items()):
        if size > 1:
            rows = grid.movedim(place, -1).reshape(-1, size).tolist()
            dimensions.append(_kind(name, made.get_group(name), [tuple(row) for row in rows], hosts))
    return dimensions


def _kind(
    name: str, group: dist.ProcessGroup | None, members: Sequence[tuple[int, ...]], hosts: Sequence[str]
) -> Groups:
    if group is None or dist.get_rank(group) < 0:
        raise RuntimeError(f"rank {dist.get_rank()} is in no group of {name}")
    spans = [{hosts[rank] for rank in ranks} for ranks in members]
    nodes = max(len(span) for span in spans)
    on_host = Counter(host for span in spans for host in span)
    return Groups(name, group, tuple(members), nodes, max(on_host.values()) if nodes > 1 else 1)


def choose_device(local_rank: int | None = None) -> torch.device:
    """Return the device that this rank measures on, and make it the current one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    rank = int(os.environ.get("LOCAL_RANK", "0")) if local_rank is None else local_rank
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
