"""The parts of parameters in a gradient check: the whole of a weight, the slice of a gradient, who holds it.

A part is what the user cut by hand (`index`), of that what a DTensor's placements leave, or FSDP1's run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler.live.gradients.flat import Flat
from shardtoll.profiler.live.gradients.gradient_held import Held, Index, cut, modules_of
from shardtoll.profiler.live.gradients.ranks import Ranks

WITHOUT_COMMUNICATION: Final = "src_data_rank" in inspect.signature(distribute_tensor).parameters
"""Whether distribute_tensor can cut a tensor that every rank holds already (torch >= 2.7)."""


def _on_mesh(tensor: DTensor) -> DTensor:
    # FSDP2's CPU offload keeps shards where the mesh's backend cannot send them from.
    moved = tensor.detach()
    device = tensor.device_mesh.device_type
    if tensor.to_local().device.type != device:
        moved = moved.to(device)
    assert isinstance(moved, DTensor)
    return moved


def whole(tensor: torch.Tensor, held: Held | None = None) -> torch.Tensor:
    """Return the tensor unsharded; for a DTensor or FSDP1's piece a collective over its ranks."""
    if held is not None and held.flat is not None:
        return held.flat.whole(tensor, held.shape)
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    return _on_mesh(tensor).full_tensor()


def dim_label(mesh: DeviceMesh, dim: int) -> str:
    """Return what to call a mesh dimension, as `mesh dim 'dp'`."""
    return f"mesh dim {mesh.mesh_dim_names[dim]!r}" if mesh.mesh_dim_names else f"mesh dim {dim}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which part of a parameter a rank's gradient is; a plain tensor is the whole (`mesh` None)."""

    mesh: DeviceMesh | None = None
    placements: tuple[Any, ...] = ()
    """No Partial: a gradient that still is one is reduced before it is compared."""
    was_partial: str | None = None
    """Placements as they were, if a dimension was Partial."""
    index: Index = ()
    """The part of the reference's parameter that the user cut out for this rank; () for all of it."""
    flat: Flat | None = None
    """FSDP1's run of the elements."""

    @property
    def slice_key(self) -> tuple[object, ...]:
        """Equal on two ranks exactly when they hold the same slice of the parameter; () for the whole."""
        key: tuple[object, ...] = self.index
        if self.flat is not None:
            return (*key, self.flat.start, self.flat.stop)
        coordinate = None if self.mesh is None else self.mesh.get_coordinate()
        if coordinate is None:
            return key
        return key + tuple(
            None if placement.is_replicate() else place
            for place, placement in zip(coordinate, self.placements, strict=True)
        )

    @property
    def kind(self) -> str | None:
        """Name of a sharded gradient's kind; None for a plain one."""
        if self.flat is not None:
            return "FSDP1"
        return None if self.mesh is None else f"DTensor {self.placements}"

    @property
    def replicated_over(self) -> tuple[str, ...]:
        """Labels of the mesh dimensions whose ranks hold equal values, as the placements say."""
        return tuple(
            dim_label(self.mesh, dim)
            for dim, placement in enumerate(self.placements)
            if self.mesh is not None and placement.is_replicate()
        )

    def cut(self, full: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice of an unsharded tensor that every rank holds; no communication."""
        full = cut(full, self.index)
        if self.flat is not None:
            return full.reshape(-1)[self.flat.start : self.flat.stop]
        if self.mesh is None:
            return full
        if WITHOUT_COMMUNICATION:
            return distribute_tensor(full.detach(), self.mesh, self.placements, src_data_rank=None).to_local()
        return cut_by_offset(full, self.mesh, self.placements)


def cut_by_offset(full: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> torch.Tensor:
    """Return this rank's slice from the offsets that checkpoints use, for torch before 2.7."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(full.shape, mesh, placements)
    part = full.to(mesh.device_type)
    for dim, (length, start) in enumerate(zip(shape, offset, strict=True)):
        part = part.narrow(dim, min(start, part.shape[dim] - length), length)
    return part


def layout_of(tensor: torch.Tensor, index: Index = (), flat: Flat | None = None) -> Layout:
    """Return the layout in which a gradient (or a parameter in its place) is compared."""
    if not isinstance(tensor, DTensor):
        return Layout(index=index, flat=flat)
    settled = tuple(Replicate() if placement.is_partial() else placement for placement in tensor.placements)
    partial = str(tensor.placements) if settled != tensor.placements else None
    return Layout(tensor.device_mesh, settled, partial, index)


def local_gradient(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return what this rank holds of a gradient; a collective over its mesh if it was Partial."""
    if isinstance(gradient, DTensor):
        settled = _on_mesh(gradient)
        if layout.was_partial is not None:
            settled = settled.redistribute(placements=layout.placements)
        gradient = settled.to_local()
    gradient = gradient.detach()
    return gradient.to_dense() if gradient.is_sparse else gradient


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A way to divide the ranks into groups, over which a reduction may have been forgotten."""

    label: str
    """As `mesh dim 'dp'` or `all ranks`."""
    mesh_dim: str | None
    group: Any
    """This rank's torch ProcessGroup."""
    ranks: tuple[tuple[int, ...], ...]
    """By rank: the ranks of its group."""

    @property
    def size(self) -> int:
        """Ranks in a group."""
        return len(self.ranks[0])

    def holders(self, slice_keys: Sequence[tuple[object, ...] | None]) -> int:
        """Return how many ranks of each group hold the same slice, so that adding them up means something.

        0 if that differs or nothing is to be added. `slice_keys` are by rank, None if a rank holds nothing of
        the parameter. Such a rank can only stand aside in a group whose others have all of it.
        """
        counts: set[int] = set()
        for peers in self.ranks:
            keys = [key for key in (slice_keys[peer] for peer in peers) if key is not None]
            if len(set(keys)) > 1 or (keys and keys[0] != () and len(keys) < len(peers)):
                return 0
            counts.add(len(keys))
        counts.discard(0)
        return counts.pop() if len(counts) == 1 and counts != {1} else 0


def partitions(roots: Sequence[torch.nn.Module], ranks: Ranks) -> list[Partition]:
    """Return the groups that the model's meshes and wrappers know, smallest first, the world last."""
    if ranks.size == 1:
        return []
    candidates = list(_candidates(roots))
    gathered = ranks.gather([(label, peers) for label, _, _, peers in candidates])
    if any([label for label, _ in row] != [label for label, _ in gathered[0]] for row in gathered):
        candidates, gathered = candidates[-1:], [row[-1:] for row in gathered]
    kept: dict[tuple[tuple[int, ...], ...], Partition] = {}
    for index, (label, mesh_dim, group, _) in enumerate(candidates):
        by_rank = tuple(row[index][1] for row in gathered)
        sizes = {len(peers) for peers in by_rank}
        if sizes != {1} and len(sizes) == 1 and by_rank not in kept:
            kept[by_rank] = Partition(label, mesh_dim, group, by_rank)
    return sorted(kept.values(), key=lambda partition: partition.size)


def _candidates(
    roots: Sequence[torch.nn.Module],
) -> Iterable[tuple[str, str | None, Any, tuple[int, ...]]]:
    meshes: list[DeviceMesh] = []
    for tensor in (parameter for root in roots for parameter in root.parameters()):
        for mesh in (_root(tensor.device_mesh), tensor.device_mesh) if isinstance(tensor, DTensor) else ():
            if mesh not in meshes and mesh.get_coordinate() is not None:
                meshes.append(mesh)
    for mesh in meshes:
        for dim in range(mesh.ndim):
            name = mesh.mesh_dim_names[dim] if mesh.mesh_dim_names else None
            group = mesh.get_group(dim)
            yield dim_label(mesh, dim), name, group, tuple(dist.get_process_group_ranks(group))
    for module in modules_of(roots):
        for label, group in _wrapper_groups(module):
            if group is not None and dist.get_world_size(group) < dist.get_world_size():
                yield label, None, group, tuple(dist.get_process_group_ranks(group))
    world = dist.group.WORLD
    yield "all ranks", None, world, tuple(range(dist.get_world_size()))


def _wrapper_groups(module: torch.nn.Module) -> Iterable[tuple[str, Any]]:
    if isinstance(module, DistributedDataParallel):
        yield "the DDP group", module.process_group
    elif isinstance(module, FullyShardedDataParallel):
        yield "the FSDP group", module.process_group
        yield "the FSDP replicas", getattr(module, "_inter_node_pg", None)


def _root(mesh: DeviceMesh) -> DeviceMesh:
    root = getattr(mesh, "_get_root_mesh", None)
    if root is not None:
        outermost: DeviceMesh = root()
        return outermost
    from torch.distributed import device_mesh  # torch 2.6 keeps the mesh's parents in a table

    resources = getattr(device_mesh, "_mesh_resources", None)
    older: DeviceMesh = resources.get_root_mesh(mesh) if resources is not None else mesh
    return older
