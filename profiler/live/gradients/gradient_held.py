"""A rank's part of a model: its parameters and buffers by the names they have in the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.cause.module_names import clean_name
from shardtoll.profiler.live.gradients.flat import Flat, is_flat, pieces_of

Place: TypeAlias = str | tuple[str, slice | tuple[slice, ...]]
"""A parameter of the reference by name, or the slice of it that a rank holds as a tensor of its own."""
PlaceOf: TypeAlias = Mapping[str, Place] | Callable[[str], Place]
Index: TypeAlias = tuple[tuple[int, int], ...]
"""First and last + 1 of each leading dimension; () for the whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """One parameter of the model on this rank, whole or a part."""

    name: str
    """In the model, without the wrappers' parts."""
    weight: torch.Tensor
    """Plain, DTensor, or the one-dimensional piece that `flat` describes."""
    gradient: torch.Tensor | None
    shape: tuple[int, ...]
    """Unsharded, except for parts that the user sharded by hand."""
    trained: bool
    identity: int
    """The same for two names of one tensor."""
    flat: Flat | None = None
    """Which piece of the flattened parameter it is, under FSDP1."""
    gradient_whole: bool = False
    """Under FSDP1: the gradient is not sharded, as after no_sync."""


def root_modules(model: object) -> list[nn.Module]:
    """Return the modules of `model`: one, or the several stages that a rank of a pipeline has."""
    if isinstance(model, nn.Module):
        return [model]
    several = list(model) if isinstance(model, (list, tuple)) else []
    if not several or not all(isinstance(module, nn.Module) for module in several):
        raise UsageError(
            f"model is {type(model).__name__}, not a module",
            "call check_gradients(model, reference, loss); a rank's pipeline stages go in a list",
        )
    return several


def modules_of(roots: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Return every module below the roots."""
    for root in roots:
        yield from root.modules()


def held_parameters(roots: Sequence[nn.Module]) -> dict[str, Held]:
    """Return what this rank holds by the model's own clean names.

    Raises UsageError when two roots have different parameters of one name.
    """
    by_name: dict[str, Held] = {}
    for root in roots:
        for name, held in _of_root(root):
            if by_name.setdefault(name, held).identity != held.identity:
                raise UsageError(
                    f"two modules of the list have a parameter {name}",
                    "stages must keep the names that their layers have in the whole model",
                )
    return by_name


def _of_root(root: nn.Module) -> Iterator[tuple[str, Held]]:
    flat = {clean_name(root, name): piece for name, piece in pieces_of(root)}
    for name, piece in flat.items():
        yield (
            name,
            Held(
                name,
                piece.weight,
                piece.gradient,
                piece.shape,
                piece.trained,
                piece.identity,
                piece.flat,
                piece.gradient_whole,
            ),
        )
    for long, tensor in root.named_parameters(remove_duplicate=False):
        name = clean_name(root, long)
        elsewhere = isinstance(tensor, DTensor) and tensor.device_mesh.get_coordinate() is None
        if name not in flat and not is_flat(tensor) and not elsewhere:
            shape = tuple(tensor.shape)
            yield name, Held(name, tensor, tensor.grad, shape, tensor.requires_grad, id(tensor))


def held_buffers(roots: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """Return this rank's buffers by the model's own clean names; of equal names the first."""
    buffers: dict[str, torch.Tensor] = {}
    for root in roots:
        for name, tensor in root.named_buffers(remove_duplicate=False):
            buffers.setdefault(clean_name(root, name), tensor)
    return buffers


def place_of(names: PlaceOf | None, name: str) -> tuple[str, tuple[slice, ...]]:
    """Return where a name of the model is in the reference, and which slice of it."""
    place: Any = name
    if isinstance(names, Mapping):
        place = names.get(name, name)
    elif names is not None:
        if not callable(names):
            raise UsageError(
                f"names is {type(names).__name__}, neither a mapping nor a function",
                'give names={"experts.0.weight": "experts.4.weight"}, or a function of the name',
            )
        place = names(name)
    if isinstance(place, str):
        return place, ()
    if isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str):
        parts = place[1] if isinstance(place[1], tuple) else (place[1],)
        if all(isinstance(part, slice) and part.step in (None, 1) for part in parts):
            return place[0], parts
    raise UsageError(
        f"names gives {place!r} for {name}",
        "give the parameter's name in the reference, or (name, slice) for a part of its rows",
    )


def index_of(parts: Sequence[slice], shape: Sequence[int]) -> Index:
    """Return the slices as first and last + 1 in a tensor of `shape`."""
    ranges = [part.indices(size)[:2] for part, size in zip(parts, shape, strict=False)]
    return tuple((start, max(start, stop)) for start, stop in ranges)


def cut(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """Return the indexed part, a view."""
    for dim, (start, stop) in enumerate(index):
        tensor = tensor.narrow(dim, start, stop - start)
    return tensor
