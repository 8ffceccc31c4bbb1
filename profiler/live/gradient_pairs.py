"""Which tensor of the model belongs to which of the reference, whatever the model is wrapped in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.names import clean_name

_NAMED = 4
"""Names given in a message before the rest is counted."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One tensor of the model and its counterpart."""

    name: str
    """Fully qualified name without the wrappers' parts."""
    own: torch.Tensor
    """Of the model: plain or DTensor."""
    reference: torch.Tensor
    tied_to: str | None = None
    """Names that are one parameter with this one in the reference, but not in the model."""


def _bare(names: Iterable[str]) -> dict[str, str]:
    return {name: ".".join(part for part in name.split(".") if part != "module") for name in names}


Named = Callable[[nn.Module], Iterator[tuple[str, torch.Tensor]]]


def _parameters(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)


def _buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_buffers(remove_duplicate=False)


def _tensors(root: nn.Module, named: Named) -> dict[str, torch.Tensor]:
    return {clean_name(root, name): tensor for name, tensor in named(root)}


def _matched(
    model: nn.Module, reference: nn.Module, named: Named
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    own, other = _tensors(model, named), _tensors(reference, named)
    if set(own) != set(other):
        # A wrapper that is not known here (an engine, a trainer) also calls its content `module`.
        bare_own, bare_other = _bare(own), _bare(other)
        if set(bare_own.values()) == set(bare_other.values()) and len(set(bare_own.values())) == len(own):
            own = {bare_own[name]: tensor for name, tensor in own.items()}
            other = {bare_other[name]: tensor for name, tensor in other.items()}
    return own, other


def listed(names: Iterable[str]) -> str:
    """Return the first names and how many more there are."""
    ordered = list(names)
    text = ", ".join(ordered[:_NAMED])
    return text if len(ordered) <= _NAMED else f"{text} and {len(ordered) - _NAMED} more"


def pair_parameters(model: nn.Module, reference: nn.Module) -> list[Pair]:
    """Return every parameter of the model with its counterpart, in the reference's order.

    Raises UsageError when a name or shape has no counterpart, or the two modules share a tensor.
    """
    own, other = _matched(model, reference, _parameters)
    for names, without in (
        (sorted(set(own) - set(other)), "the reference"),
        (sorted(set(other) - set(own)), "the model"),
    ):
        if names:
            flat = any("_flat_param" in name for name in names)
            raise UsageError(
                f"{without} has no parameter {listed(names)}",
                "FSDP1 flattens parameters: use fully_shard (FSDP2)"
                if flat
                else "build the reference from the model's class, before it is wrapped or parallelised",
            )
    found: dict[tuple[int, int], str] = {}
    for name, reference_tensor in other.items():
        _require_comparable(name, own[name], reference_tensor)
        found.setdefault((id(own[name]), id(reference_tensor)), name)
    pairs: list[Pair] = []
    for (_, reference_id), name in found.items():
        tied = [twin for (_, twin_id), twin in found.items() if twin_id == reference_id and twin != name]
        pairs.append(Pair(name, own[name], other[name], listed(tied) or None))
    return pairs


def _require_comparable(name: str, own: torch.Tensor, reference: torch.Tensor) -> None:
    if isinstance(reference, DTensor):
        raise UsageError(
            f"parameter {name} of the reference is a DTensor",
            "build the reference before parallelising, as copy.deepcopy(model) before fully_shard",
        )
    if own is reference or (not isinstance(own, DTensor) and _same_memory(own, reference)):
        raise UsageError(
            f"model and reference share parameter {name}",
            "give the reference weights of its own, as copy.deepcopy(model)",
        )
    if own.shape != reference.shape:
        raise UsageError(
            f"parameter {name} has shape {tuple(own.shape)} in the model and "
            f"{tuple(reference.shape)} in the reference",
            "the reference must be unsharded; a parameter sharded by hand cannot be compared, a DTensor can",
        )


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta or other.is_meta or one.numel() == 0:
        return False
    return one.device == other.device and one.data_ptr() == other.data_ptr()


def pair_buffers(model: nn.Module, reference: nn.Module) -> list[Pair]:
    """Return every buffer that both modules have; one that only one has is a cache, and left alone.

    Raises UsageError when a buffer of both has two shapes.
    """
    own, other = _matched(model, reference, _buffers)
    pairs = [Pair(name, own[name], other[name]) for name in other if name in own]
    for pair in pairs:
        if pair.own.shape != pair.reference.shape:
            raise UsageError(
                f"buffer {pair.name} has shape {tuple(pair.own.shape)} in the model and "
                f"{tuple(pair.reference.shape)} in the reference",
                "build the reference with the same sizes as the model",
            )
    return pairs


def modes(root: nn.Module) -> dict[str, bool]:
    """Return train (True) or eval (False) of every submodule by clean name."""
    return {clean_name(root, name) if name else "": module.training for name, module in root.named_modules()}
