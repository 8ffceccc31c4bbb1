"""Inputs of a gradient check, agreed on by all ranks before it begins, or one error for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.cause.module_names import clean_name
from shardtoll.profiler.live.gradients.diagnosis import Measured
from shardtoll.profiler.live.gradients.gradient_held import Held, PlaceOf, root_modules
from shardtoll.profiler.live.gradients.pairs import (
    Buffer,
    Holding,
    Pair,
    hold,
    hold_buffers,
    join,
    modes,
    reference_parameters,
    ties_of,
)
from shardtoll.profiler.live.gradients.ranks import Ranks
from shardtoll.profiler.live.gradients.tolerance import checked_rtol

_AFTER_BACKWARD = (
    "call check_gradients after loss.backward() and before optimizer.zero_grad(), with gradient sync on"
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Parameters and buffers that a check compares, agreed on by all ranks."""

    roots: list[nn.Module]
    """This rank's modules: the model, or its stages of a pipeline."""
    reference: nn.Module
    pairs: list[Pair]
    buffers: list[Buffer]
    modes: dict[str, bool]
    """Train or eval of the model's modules, of all ranks, by their names in the reference."""
    rtol: float | None
    """The user's tolerance."""


def prepared(
    ranks: Ranks, model: object, reference: object, loss: object, rtol: float | None, names: PlaceOf | None
) -> Inputs:
    """Return what to compare, the same parameters in the same order on every rank.

    Raises UsageError on all ranks when one of them cannot begin.
    """
    problem: UsageError | None = None
    relative: float | None = None
    roots: list[nn.Module] = []
    other: dict[str, torch.Tensor] = {}
    mine: dict[str, Held] = {}
    said: list[Holding] = []
    buffers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    try:
        relative = checked_rtol(rtol)
        roots = _require_usable(ranks, model, reference, loss)
        assert isinstance(reference, nn.Module)
        other = reference_parameters(reference)
        mine, said = hold(roots, other, names)
        buffers = hold_buffers(roots, reference, names)
        _require_memory(ranks, other)
    except UsageError as error:
        problem = error
    ranks.agree(problem)
    assert isinstance(reference, nn.Module)
    gathered = ranks.gather((_facts(reference, other), relative, said, list(buffers), ties_of(other)))
    _require_alike(ranks, [row[:2] for row in gathered])
    # Every rank joins the same rows: it raises on all of them or on none.
    pairs = join([row[2] for row in gathered], other, gathered[0][4], mine)
    if not any(ranks.gather(any(held.gradient is not None for held in mine.values()))):
        ranks.agree(UsageError("no parameter of the model has a gradient", _AFTER_BACKWARD))
    everywhere = ranks.gather(modes(roots, pairs, names))
    return Inputs(
        roots=roots,
        reference=reference,
        pairs=pairs,
        buffers=_buffers(reference, buffers, [row[3] for row in gathered]),
        modes={name: mode for row in reversed(everywhere) for name, mode in row.items()},
        rtol=relative,
    )


def _buffers(
    reference: nn.Module,
    mine: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    by_rank: Sequence[Sequence[str]],
) -> list[Buffer]:
    buffers: list[Buffer] = []
    for long, tensor in reference.named_buffers(remove_duplicate=False):
        name = clean_name(reference, long)
        holders = tuple(rank for rank, row in enumerate(by_rank) if name in row)
        if holders:
            buffers.append(Buffer(name, tensor, mine[name][0] if name in mine else None, holders))
    return buffers


def _require_usable(ranks: Ranks, model: object, reference: object, loss: object) -> list[nn.Module]:
    roots = root_modules(model)
    if not isinstance(reference, nn.Module):
        raise UsageError(
            f"reference is {type(reference).__name__}, not a module",
            "call check_gradients(model, reference, loss)",
        )
    if not callable(loss):
        raise UsageError(
            f"loss is {type(loss).__name__}, not a function",
            "give a function of the module, as lambda module: criterion(module(x), y)",
        )
    if ranks.backend == "fake":
        raise UsageError(
            "the fake process group moves no data", "check gradients on real ranks, gloo will do"
        )
    for root in roots:
        named = root.named_modules()
        random = next((name for name, module in named if _drops_at_random(module)), None)
        if random is not None:
            raise UsageError(
                f"module {clean_name(root, random) or 'model'} drops activations at random",
                "compute loss and gradients with it in eval(), or with p = 0: no other device draws the same "
                "masks",
            )
    return roots


def _drops_at_random(module: nn.Module) -> bool:
    """Whether the module is dropout that is on; what functions draw inside a forward is not seen."""
    if not module.training:
        return False
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    return isinstance(module, _DropoutNd) and module.p > 0


def _require_memory(ranks: Ranks, other: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in other.items():
        if ranks.rank == 0 and tensor.is_meta:
            raise UsageError(
                f"parameter {name} of the reference is on the meta device",
                "rank 0 computes with it: give it memory there with reference.to_empty(device=...)",
            )


Facts: TypeAlias = list[tuple[str, tuple[int, ...]]]


def _facts(reference: nn.Module, other: Mapping[str, torch.Tensor]) -> Facts:
    buffers = reference.named_buffers(remove_duplicate=False)
    return [(name, tuple(tensor.shape)) for name, tensor in (*other.items(), *buffers)]


def _require_alike(ranks: Ranks, gathered: Sequence[tuple[Facts, float | None]]) -> None:
    other = next((rank for rank, row in enumerate(gathered) if row != gathered[0]), None)
    if other is None:
        return
    if gathered[other][0] == gathered[0][0]:
        what, hint = "rtol", "give it as a constant"
    else:
        what = "parameters and buffers"
        hint = "the reference must be the whole model on every rank; the model may be a part of it"
    ranks.agree(UsageError(f"rank 0 and rank {other} were not given the same {what}", hint))


def require_nonzero(ranks: Ranks, by_rank: Sequence[Sequence[Measured]], true_sq: float) -> None:
    """Raise UsageError on all ranks when every gradient was set to zero before the check."""
    if true_sq > 0 and all(seen.overlap.own_sq == 0 for row in by_rank for seen in row):
        ranks.agree(UsageError("every gradient of the model is zero on every rank", _AFTER_BACKWARD))
