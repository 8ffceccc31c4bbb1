"""Which tensor of the model belongs to which of the reference, whatever the model is wrapped or cut in.

Ranks may hold different parameters: stages of a pipeline, experts. Each rank states its parameters and their
places in the reference. All ranks then join these statements into the same list of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.cause.module_names import clean_name
from shardtoll.profiler.live.gradients.gradient_held import (
    Held,
    Index,
    PlaceOf,
    cut,
    held_buffers,
    held_parameters,
    index_of,
    place_of,
)

_NAMED = 4
"""Names given in a message before the rest is counted."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One rank's statement about a parameter that it holds."""

    name: str
    """In the reference."""
    own_name: str
    """In the model."""
    alike: str
    """The first name, in the reference's order, of the same tensor of this rank."""
    index: Index
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """One parameter of the model and its counterpart."""

    name: str
    """In the reference."""
    references: tuple[torch.Tensor, ...]
    """One tensor, or those that are one tensor in the model; their gradients add up."""
    held: Held | None
    """This rank's; None if it holds nothing of it."""
    holdings: tuple[Holding | None, ...]
    """By rank."""
    tied_to: str | None = None
    """Names that are one parameter with this one in the reference, but not in the model."""

    @property
    def first(self) -> Holding:
        """The statement of the first rank that holds it."""
        return next(holding for holding in self.holdings if holding is not None)

    @property
    def holders(self) -> list[int]:
        """Ranks that hold it or a part."""
        return [rank for rank, holding in enumerate(self.holdings) if holding is not None]

    def index(self, rank: int) -> Index:
        """Return which part the rank holds; () for the whole."""
        holding = self.holdings[rank]
        return () if holding is None else holding.index


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of the reference, and the model's on this rank."""

    name: str
    reference: torch.Tensor
    mine: torch.Tensor | None
    holders: tuple[int, ...]


def reference_parameters(reference: nn.Module) -> dict[str, torch.Tensor]:
    """Return the reference's parameters, tied ones under each of their names."""
    named = reference.named_parameters(remove_duplicate=False)
    parameters: dict[str, torch.Tensor] = {clean_name(reference, name): tensor for name, tensor in named}
    for name, tensor in parameters.items():
        if isinstance(tensor, DTensor):
            raise UsageError(
                f"parameter {name} of the reference is a DTensor",
                "build the reference before parallelising, as copy.deepcopy(model) before fully_shard",
            )
    return parameters


def ties_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return each name's first name: equal for two names of one tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "module")


def _seen_through(names: Iterable[str], other: Iterable[str]) -> dict[str, str]:
    """Return the name in the reference of each of the model's, an unknown wrapper's parts left out."""
    given, others = list(names), set(other)
    if not set(given) <= others:
        # A wrapper that is not known here (an engine, a trainer) also calls its content `module`.
        bare = {_bare(name): name for name in others}
        matches = {name: bare[_bare(name)] for name in given if _bare(name) in bare}
        if len(bare) == len(others) and len(set(matches.values())) == len(given):
            return matches
    return {name: name for name in given}


def hold(
    roots: Sequence[nn.Module], other: Mapping[str, torch.Tensor], names: PlaceOf | None
) -> tuple[dict[str, Held], list[Holding]]:
    """Return what this rank holds by the reference's names, and its statements about it.

    Raises UsageError when a name or shape has no counterpart, or the two modules share a tensor.
    """
    mine = held_parameters(roots)
    places = {name: place_of(names, name) for name in mine}
    seen = _seen_through([place for place, _ in places.values()], other)
    unknown = sorted(place for place, _ in places.values() if seen[place] not in other)
    if unknown:
        raise UsageError(
            f"the reference has no parameter {listed(unknown)}",
            "build the reference from the model's class, before it is wrapped or parallelised",
        )
    by_place: dict[str, tuple[Held, tuple[slice, ...]]] = {}
    for name, (place, parts) in places.items():
        if seen[place] in by_place:
            raise UsageError(
                f"{by_place[seen[place]][0].name} and {name} are both {seen[place]} of the reference",
                "names must give each parameter of a rank a place of its own",
            )
        by_place[seen[place]] = mine[name], parts
    ordered = {name: by_place[name] for name in other if name in by_place}
    alike: dict[tuple[int, Index], str] = {}
    holdings: list[Holding] = []
    for name, (held, parts) in ordered.items():
        index = index_of(parts, other[name].shape)
        _require_comparable(name, held, other[name], index)
        holdings.append(
            Holding(
                name=name,
                own_name=held.name,
                alike=alike.setdefault((held.identity, index), name),
                index=index,
                shape=held.shape,
                dtype=held.weight.dtype,
                trained=held.trained,
            )
        )
    return {name: held for name, (held, _) in ordered.items()}, holdings


def _require_comparable(name: str, held: Held, reference: torch.Tensor, index: Index) -> None:
    weight = held.weight
    if weight is reference or (not isinstance(weight, DTensor) and _same_memory(weight, reference)):
        raise UsageError(
            f"model and reference share parameter {name}",
            "give the reference weights of its own, as copy.deepcopy(model)",
        )
    shape = tuple(cut(reference, index).shape)
    if held.shape != shape:
        part = " of names' slice" if index else ""
        raise UsageError(
            f"parameter {name} has shape {held.shape} in the model and {shape} in the reference{part}",
            "the reference must be unsharded; a parameter sharded by hand needs names=, which says what "
            "slice of it a rank holds",
        )


def _same_memory(first: torch.Tensor, other: torch.Tensor) -> bool:
    if first.is_meta or other.is_meta or first.numel() == 0:
        return False
    return first.device == other.device and first.data_ptr() == other.data_ptr()


def join(
    by_rank: Sequence[Sequence[Holding]],
    other: Mapping[str, torch.Tensor],
    ties: Mapping[str, str],
    mine: Mapping[str, Held],
) -> list[Pair]:
    """Return every parameter of the reference with who holds it, the same on all ranks, in its order.

    `ties` are of the reference, by `ties_of`; `mine` is what this rank holds. Names that the reference ties
    are one pair unless a rank holds them as two tensors. Names that a rank ties are one pair in any case.
    Raises UsageError if no rank holds a parameter, or some part of it.
    """
    said = [{holding.name: holding for holding in row} for row in by_rank]
    missing = sorted(name for name in other if not any(name in row for row in said))
    missing = [name for name in missing if not any(ties[name] == ties[tied] for row in said for tied in row)]
    if missing:
        raise UsageError(
            f"the model has no parameter {listed(missing)}",
            "build the reference from the model's class, before it is wrapped or parallelised",
        )
    pairs: list[Pair] = []
    groups = _groups(said, other, ties)
    homes: dict[str, list[str]] = {}
    for names in groups:
        for tie in {ties[name] for name in names}:
            homes.setdefault(tie, []).append(names[0])
    for names in groups:
        holdings = tuple(next((row[name] for name in names if name in row), None) for row in said)
        if not any(holdings):
            continue
        held = next((mine[name] for name in names if name in mine), None)
        references = {ties[name]: other[ties[name]] for name in names}
        twins = [twin for tie in references for twin in homes[tie] if twin != names[0]]
        pair = Pair(names[0], tuple(references.values()), held, holdings, listed(twins) if twins else None)
        _require_whole(pair)
        pairs.append(pair)
    return pairs


def _groups(
    said: Sequence[Mapping[str, Holding]], other: Mapping[str, torch.Tensor], ties: Mapping[str, str]
) -> list[list[str]]:
    groups: list[list[str]] = []
    by_tie: dict[object, list[list[str]]] = {}
    for name in other:
        keys: list[object] = [
            ties[name],
            *((rank, row[name].alike) for rank, row in enumerate(said) if name in row),
        ]
        near = [group for key in keys for group in by_tie.get(key, ())]
        home = next((group for group in near if _one_tensor(name, group, said, ties)), None)
        if home is None:
            home = []
            groups.append(home)
        home.append(name)
        for key in keys:
            by_tie.setdefault(key, []).append(home)
    return groups


def _one_tensor(
    name: str, group: Sequence[str], said: Sequence[Mapping[str, Holding]], ties: Mapping[str, str]
) -> bool:
    tied_here = False
    for row in said:
        if name not in row:
            continue
        for twin in group:
            if twin in row:
                if row[name].alike != row[twin].alike:
                    return False
                tied_here = True
    return tied_here or ties[name] in {ties[twin] for twin in group}


def _require_whole(pair: Pair) -> None:
    """Raise UsageError if ranks say different things of a parameter, or hold only a part of it."""
    facts = {
        (holding.shape, holding.dtype, holding.trained)
        for holding in pair.holdings
        if holding and not holding.index
    }
    kinds = {(holding.dtype, holding.trained, bool(holding.index)) for holding in pair.holdings if holding}
    if len(facts) > 1 or len(kinds) > 1:
        ranks = [f"rank {rank}" for rank in pair.holders[:_NAMED]]
        raise UsageError(
            f"parameter {pair.name} is not of one dtype, requires_grad and shape on {listed(ranks)}",
            "every rank that holds it must hold equal values",
        )
    parts = {holding.index: holding.shape for holding in pair.holdings if holding}
    held = sum(torch.Size(shape).numel() for shape in parts.values())
    if pair.first.index and held != pair.references[0].numel():
        raise UsageError(
            f"names gives {held} elements of parameter {pair.name} to the ranks, it has "
            f"{pair.references[0].numel()}",
            "the slices must make up the whole, without overlap",
        )


def listed(names: Iterable[str]) -> str:
    """Return the first names and how many more there are."""
    ordered = list(names)
    text = ", ".join(ordered[:_NAMED])
    return text if len(ordered) <= _NAMED else f"{text} and {len(ordered) - _NAMED} more"


def hold_buffers(
    roots: Sequence[nn.Module], reference: nn.Module, names: PlaceOf | None
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return this rank's buffers that the reference has too, as (own, reference); others are caches.

    Raises UsageError when a buffer of both has two shapes.
    """
    mine = held_buffers(roots)
    named = reference.named_buffers(remove_duplicate=False)
    other = {clean_name(reference, name): tensor for name, tensor in named}
    places = {name: place_of(names, name) for name in mine}
    seen = _seen_through([place for place, parts in places.values() if not parts], other)
    buffers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, (place, parts) in places.items():
        place = seen.get(place, place)
        if parts or place not in other:
            continue
        buffers[place] = mine[name], other[place]
        if mine[name].shape != other[place].shape:
            raise UsageError(
                f"buffer {place} has shape {tuple(mine[name].shape)} in the model and "
                f"{tuple(other[place].shape)} in the reference",
                "build the reference with the same sizes as the model",
            )
    return buffers


def modes(
    roots: Sequence[nn.Module], pairs: Sequence[Pair] = (), names: PlaceOf | None = None
) -> dict[str, bool]:
    """Return train (True) or eval (False) of this rank's submodules, by their names in the reference."""
    moved = {}
    for pair in pairs:
        if names is not None and pair.held is not None:
            module, _, leaf = pair.held.name.rpartition(".")
            place, _, its_leaf = place_of(names, pair.held.name)[0].rpartition(".")
            if leaf == its_leaf:
                moved[module] = place
    training: dict[str, bool] = {}
    for root in roots:
        for long, module_here in root.named_modules():
            name = clean_name(root, long) if long else ""
            training.setdefault(moved.get(name, name), module_here.training)
    return training
