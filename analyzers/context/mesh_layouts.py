"""The device mesh behind a job's groups: its dimensions from the outermost in, and what another order does.

Ranks along a dimension of a mesh are a constant stride apart. Groups of the same size and stride are
therefore one dimension, whether it has a name or was made by hand. If dimensions fill the job, each with the
stride of all inside it, they are its mesh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.roofline import Fabric, Placement, collective_cost
from shardtoll.ledger.records.volume import wire_bytes

Ops = Mapping[tuple[str, int], float]
"""(op, message bytes) -> how many a step."""

Groups = tuple[tuple[int, ...], ...]


class Dim(Struct, frozen=True):
    """One dimension of the mesh as it is."""

    size: int
    stride: int
    """Distance of neighbours along it, in ranks."""


def dim_of(ranks: Sequence[int]) -> Dim | None:
    """Return the dimension that a group of these ranks, in group order, would be of; None if none."""
    steps = {after - before for before, after in pairwise(ranks)}
    if len(steps) != 1:
        return None
    (stride,) = steps
    dim = Dim(len(ranks), stride)
    return dim if stride > 0 and ranks[0] % (stride * len(ranks)) < stride else None


def mesh_of(dims: Mapping[Dim, int], world_size: int) -> tuple[Dim, ...]:
    """Return the dimensions of the mesh, outermost first; empty if these do not form a mesh.

    Several sets of dimensions may fill the job: the set with the largest sum of `dims`' values (bytes moved)
    is taken. A part that no dimension fills becomes a dimension of its own.
    """
    best: tuple[int, int, tuple[Dim, ...]] = (-1, 0, ())

    def fill(stride: int, inner: tuple[Dim, ...], moved: int) -> None:
        nonlocal best
        if stride == world_size:
            # Among equals the finest: a flattened dimension is not the mesh's own.
            if len(inner) > 1 and (moved, len(inner)) > best[:2]:
                best = (moved, len(inner), inner)
            return
        for dim in dims:
            if dim.stride == stride and dim.size < world_size and world_size % (stride * dim.size) == 0:
                fill(stride * dim.size, (dim, *inner), moved + dims[dim])
        for further in sorted({dim.stride for dim in dims} | {world_size}):
            if further > stride and further % stride == 0 and world_size % further == 0:
                filler = Dim(further // stride, stride)
                if filler not in dims and not (inner and inner[0] not in dims):
                    fill(further, (filler, *inner), moved)

    fill(1, (), 0)
    return best[2]


def groups_of(dim: Dim, mesh: Sequence[Dim], order: Sequence[int]) -> Groups | None:
    """Return the groups that a dimension, or several flattened into one, has once the mesh is in `order`.

    `order` holds places in `mesh`, the new outermost first. None if the dimension is not of the mesh.
    """
    along = [
        place for place, mesh_dim in enumerate(mesh) if dim.stride <= mesh_dim.stride < dim.stride * dim.size
    ]
    size = int(np.prod([mesh[place].size for place in along])) if along else 0
    if size != dim.size or mesh[along[-1]].stride != dim.stride:
        return None
    ranks = np.arange(int(np.prod([mesh_dim.size for mesh_dim in mesh]))).reshape(
        [mesh[place].size for place in order]
    )
    back = ranks.transpose([list(order).index(place) for place in range(len(mesh))])
    across = [place for place in range(len(mesh)) if place not in along]
    rows = back.transpose([*across, *along]).reshape(-1, size)
    return tuple(tuple(int(rank) for rank in row) for row in rows)


def spans(groups: Groups, node: Sequence[int]) -> bool:
    """Whether a group has ranks on more than one node; `node` by rank."""
    return any(len({node[rank] for rank in group}) > 1 for group in groups)


class Projected(Struct, frozen=True):
    """Time that collectives are expected to take, with the band of sound runs."""

    time_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    floor_ns: float = 0.0

    def plus(self, other: Projected, times: float = 1.0) -> Projected:
        """Return both one after the other, the other so many times."""
        return Projected(
            self.time_ns + times * other.time_ns,
            self.low_ns + times * other.low_ns,
            self.high_ns + times * other.high_ns,
            self.floor_ns + times * other.floor_ns,
        )


def projected(fabric: Fabric, ops: Ops, groups: Groups, node: Sequence[int]) -> Projected | None:
    """Return what these collectives take on the worst placed group; None if the fabric has no rates.

    `groups` are all of the dimension: they run at once and share the network cards of a node.
    """
    worst = Projected()
    on_node = Counter(host for group in groups for host in {node[rank] for rank in group})
    largest = max(Counter(node).values())
    placed = {
        (_place(group, node, max(on_node[node[rank]] for rank in group)), _place(group[:2], node, largest))
        for group in groups
    }
    for place, peers in placed:
        whole = Projected()
        for (op, moved), count in ops.items():
            cost = collective_cost(fabric, op, moved, peers if op in ("send", "recv") else place)
            if cost is None:
                return None
            whole = whole.plus(Projected(cost.time_ns, cost.low_ns, cost.high_ns, cost.floor_ns), count)
        worst = max(worst, whole, key=lambda each: each.time_ns)
    return worst


def crossing_bytes(ops: Ops, groups: Groups, node: Sequence[int]) -> float:
    """Return the bytes that all these groups together send from node to node, by the ledger's algorithms.

    Rings and chains are taken to visit each node once, as libraries lay them out.
    """
    return sum(
        count * _crossing(op, moved, Counter(node[rank] for rank in group))
        for group in groups
        for (op, moved), count in ops.items()
    )


def _crossing(op: str, moved: int, nodes: Counter[int]) -> float:
    ranks, hosts = sum(nodes.values()), len(nodes)
    if hosts == 1 or op == "barrier":
        return 0
    if op == "all_to_all":
        return sum(count * (ranks - count) for count in nodes.values()) * moved / ranks
    if op in ("gather", "scatter"):
        return (ranks - max(nodes.values())) * moved / ranks
    if op in ("broadcast", "reduce"):
        return (hosts - 1) * moved
    # A message has two ends on record: the sender's.
    each = 0 if op == "recv" else wire_bytes(op, moved, ranks)
    return hosts * (each or 0)


def _place(ranks: Iterable[int], node: Sequence[int], sharing: int) -> Placement:
    hosts = Counter(node[rank] for rank in ranks)
    shared = sharing if len(hosts) > 1 else 1
    most, least = max(hosts.values()), min(hosts.values())
    fewest = None if least == most else least
    return Placement(sum(hosts.values()), len(hosts), most, shared, fewest)
