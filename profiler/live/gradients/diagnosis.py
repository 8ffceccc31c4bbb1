"""Diagnosis of a wrong gradient, from its ranks' measurements. Pure: numbers in, a diagnosis out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.ledger import Cause
from shardtoll.profiler.live.gradients.compare import Overlap, Pooled
from shardtoll.profiler.live.gradients.tolerance import Tolerance

_NAMED_WITHIN: Final = 0.01
"""A factor is called by the name of a known quantity when it is this close to it, relatively."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One parameter on one rank."""

    present: bool
    """Whether the model holds a gradient; an absent one is compared as zeros."""
    in_reference: bool
    overlap: Overlap
    slice_key: tuple[object, ...] | None = ()
    """Equal on ranks that hold the same slice; () for the whole, None for nothing."""
    held: bool = True
    """Whether the rank holds any of the parameter; one that does not is never wrong."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a gradient differs from the true one."""

    cause: Cause
    ranks: tuple[int, ...]
    """Ranks whose gradient is wrong."""
    partition: int | None = None
    """Index of the partition whose reduction is missing."""
    factor: float | None = None
    """k in g = k G; for a missing reduction k in (sum over the group) = k G."""
    factor_name: str | None = None
    """The known quantity that k equals, as `the world size`."""
    ambiguous: bool = False
    """Another cause would look the same."""


def wrong_ranks(ranks: Sequence[Measured], tolerance: Tolerance) -> tuple[int, ...]:
    """Return the ranks whose gradient is not the true one within the tolerance."""
    return tuple(rank for rank, seen in enumerate(ranks) if not tolerance.allows(seen.overlap))


def first_look(
    ranks: Sequence[Measured], tolerance: Tolerance, factors: Mapping[float, str]
) -> Diagnosis | None:
    """Return the diagnosis by the ranks' own numbers; cause `unknown` if only pooling can show more.

    None: the gradient is right. `known` names quantities that a factor may equal.
    """
    wrong = wrong_ranks(ranks, tolerance)
    if not wrong:
        return None
    if not ranks[0].in_reference:
        return Diagnosis("extra", wrong)
    if any(not seen.overlap.finite for seen in ranks):
        return Diagnosis(
            "not-finite", tuple(rank for rank, seen in enumerate(ranks) if not seen.overlap.finite)
        )
    if not any(seen.present for seen in ranks if seen.held):
        return Diagnosis("missing", wrong)
    if all(seen.overlap.own_sq == 0 for seen in ranks):
        return Diagnosis("zero", wrong)
    factor = _factor([seen.overlap for seen in ranks])
    if factor is not None and all(_scaled(seen, factor, tolerance) for seen in ranks):
        # A gradient of one number is a multiple of every other.
        lone = sum(seen.overlap.numel for seen in ranks) == sum(seen.held for seen in ranks)
        return Diagnosis(
            "wrong-scale", wrong, factor=factor, factor_name=name_of(factor, factors), ambiguous=lone
        )
    return Diagnosis("unknown", wrong)


def second_look(
    ranks: Sequence[Measured],
    pools: Mapping[int, Sequence[Pooled]],
    sizes: Mapping[int, int],
    tolerance: Tolerance,
    factors: Mapping[float, str],
) -> Diagnosis:
    """Return the cause, given each candidate group's totals; `pools[i][rank]` for partition i of `sizes[i]`.

    A missing reduction is only claimed when the total is the true gradient, or a multiple of it, on every
    rank. Among several groups the one whose total needs no factor wins, then a mean, then the smaller.
    """
    wrong = wrong_ranks(ranks, tolerance)
    matches: list[tuple[int, int, int, float]] = []
    for index, pooled in pools.items():
        totals = [seen.total for seen in pooled]
        size = sizes[index]
        for preference, factor in enumerate((1.0, float(size), _factor(totals))):
            if factor is not None and all(tolerance.allows(total, factor) for total in totals):
                matches.append((preference, size, index, factor))
                break
    absent = tuple(rank for rank in wrong if not ranks[rank].present)
    someone_right = len(wrong) < sum(seen.held for seen in ranks)
    # If a rank is right, only an exact sum indicates a reduction: the others then hold nothing. A total near
    # zero also "is" a multiple of the true gradient: that is no reduction anybody forgot.
    usable = [
        match
        for match in matches
        if match[3] > tolerance.relative and not (someone_right and (absent or match[3] != 1.0))
    ]
    if usable:
        _, size, index, factor = min(usable)
        name = {1.0: "sum", float(size): "mean"}.get(factor) or name_of(factor, factors)
        return Diagnosis("missing-reduction", wrong, index, factor, name)
    if absent:
        return Diagnosis("missing", absent)
    differ = any(
        math.sqrt(seen.spread_sq) > tolerance.relative * math.sqrt(seen.own_sq) + _noise(seen, tolerance)
        for pooled in pools.values()
        for seen in pooled
    )
    return Diagnosis("replicas-differ" if differ else "unknown", wrong)


def _noise(seen: Pooled, tolerance: Tolerance) -> float:
    return tolerance.noise * math.sqrt(seen.total.numel)


def _factor(overlaps: Sequence[Overlap]) -> float | None:
    true_sq = sum(overlap.true_sq for overlap in overlaps)
    return sum(overlap.product for overlap in overlaps) / true_sq if true_sq > 0 else None


def _scaled(seen: Measured, factor: float, tolerance: Tolerance) -> bool:
    return not seen.held or (seen.present and tolerance.allows(seen.overlap, factor))


def name_of(factor: float, factors: Mapping[float, str]) -> str | None:
    """Return the name of the known quantity that the factor equals within 1 %, the nearest first."""
    near = [(abs(factor / value - 1), name) for value, name in factors.items()]
    off, name = min(near, default=(math.inf, ""))
    return name if off <= _NAMED_WITHIN else None


def known_factors(world_size: int, dims: Mapping[str, int]) -> dict[float, str]:
    """Return what a factor is likely to be: the size of the world or of a mesh dimension, or its inverse."""
    factors: dict[float, str] = {}
    for name, size in (("the world size", world_size), *((f"the size of {d}", n) for d, n in dims.items())):
        if size > 1:
            factors.setdefault(float(size), name)
            factors.setdefault(1 / size, f"1 / {name}")
    return factors


def loss_scale(factor: float) -> bool:
    """Whether the factor looks like a gradient scaler's: a power of two from 256 on."""
    exponent = math.log2(factor) if factor > 0 else 0.0
    return exponent > 7.5 and abs(exponent - round(exponent)) < 0.01
