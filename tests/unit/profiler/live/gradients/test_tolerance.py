"""The tolerance: its derivation holds when roundings are counted, its floor tells noise from wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.gradients.compare import overlap
from shardtoll.profiler.live.gradients.tolerance import (
    Tolerance,
    checked_rtol,
    compute_dtypes,
    eps_of,
    tolerance_of,
)


@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float16, 0.1), (torch.bfloat16, 0.1), (torch.bfloat16, 1.0)]
)
def test_a_random_walk_of_roundings_is_as_long_as_derived(dtype: torch.dtype, share: float) -> None:
    """R roundings in series: eps sqrt(R/12), so sqrt(eps) at R = 12/eps; within a factor 2 of it.

    A value's spacing is between eps/2 and eps of it, which puts the measured walk below the formula.
    """
    eps = float(torch.finfo(dtype).eps)
    rounds = int(share * 12 / eps)
    generator = torch.Generator().manual_seed(1)
    exact = 1 + torch.rand(512, generator=generator, dtype=torch.float64)
    rounded = exact.to(dtype)
    for _ in range(rounds):
        factor = 0.5 + torch.rand(512, generator=generator, dtype=torch.float64)
        # Both are brought back to [1, 2), by powers of two, which round nothing.
        exact = exact * factor
        rounded = (rounded.double() * factor).to(dtype)
        shift = 2.0 ** -torch.floor(torch.log2(exact))
        exact, rounded = exact * shift, (rounded.double() * shift).to(dtype)
    walked = float((rounded.double() - exact).norm() / exact.norm())
    expected = eps * math.sqrt(rounds / 12)
    assert expected / 2 < walked < expected
    if share == 1.0:
        assert expected == pytest.approx(tolerance_of(eps, None, 1.0).relative, rel=1e-3)


def ring(ranks: int, related: bool) -> float:
    """The relative error of a bfloat16 sum of one part a rank, added one after the other."""
    generator = torch.Generator().manual_seed(ranks)
    noise = torch.randn(ranks, 512, generator=generator, dtype=torch.float64)
    common = torch.randn(512, generator=generator, dtype=torch.float64)
    parts = (common * (1 + 0.3 * noise) if related else noise).bfloat16()
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    exact = parts.double().sum(0)
    return float((total.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("ranks", [8, 64, 256, 1024])
def test_a_serial_reduction_of_unrelated_parts_is_as_far_off_as_derived(ranks: int) -> None:
    derived = 2.0**-7 * math.sqrt(ranks / 24)
    assert derived / 2 < ring(ranks, related=False) < derived
    assert derived < tolerance_of(2.0**-7, None, 1.0).relative


@pytest.mark.parametrize("ranks", [8, 64, 128])
def test_so_is_one_of_parts_that_point_one_way(ranks: int) -> None:
    derived = 2.0**-7 * math.sqrt(ranks / 36)
    assert derived / 2 < ring(ranks, related=True) < derived


def test_where_the_derivation_ends_the_sum_is_wrong_and_not_let_pass() -> None:
    allowed = tolerance_of(2.0**-7, None, 1.0).relative
    assert ring(256, related=True) < allowed < 0.1 < ring(512, related=True)


def test_the_lowest_precision_counts() -> None:
    assert eps_of({torch.float32}, "cpu") == 2.0**-23
    assert eps_of({torch.float32, torch.bfloat16}, "cpu") == 2.0**-7
    assert eps_of({torch.float64, torch.int64}, "cpu") == 2.0**-52
    assert eps_of({torch.complex64}, "cpu") == 2.0**-23


def test_float32_counts_as_what_matmuls_round_it_to() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert eps_of({torch.float32}, "cuda") == 2.0**-10
        assert eps_of({torch.float32}, "cpu") == 2.0**-23
    finally:
        torch.set_float32_matmul_precision(before)
    assert eps_of({torch.float32}, "cuda") == 2.0**-23


def test_autocast_around_the_check_is_seen() -> None:
    assert compute_dtypes([nn.Linear(2, 2)]) == set()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compute_dtypes([nn.Linear(2, 2)]) == {torch.bfloat16}


def test_a_gradient_below_the_noise_of_the_others_is_zero() -> None:
    tolerance = tolerance_of(2.0**-23, None, true_rms=1.0)
    noise = torch.full((100,), 0.9 * 2.0**-23)
    assert tolerance.allows(overlap(noise, torch.zeros(100)))
    assert not tolerance.allows(overlap(2 * noise, torch.zeros(100)))


def test_the_limit_is_relative_above_the_noise() -> None:
    tolerance = Tolerance(relative=1e-2, noise=0.0)
    true = torch.ones(10)
    assert tolerance.allows(overlap(1.009 * true, true))
    assert not tolerance.allows(overlap(1.011 * true, true))
    assert tolerance.allows(overlap(3.02 * true, true), factor=3.0)
    assert not tolerance.allows(overlap(3.04 * true, true), factor=3.0)


def test_a_zero_rtol_asks_for_the_same_bits() -> None:
    tolerance = tolerance_of(2.0**-23, 0.0, true_rms=1.0)
    true = torch.ones(10)
    assert tolerance.allows(overlap(true, true))
    assert not tolerance.allows(overlap(true + 2.0**-23, true))


@pytest.mark.parametrize("rtol", [-1.0, float("nan"), float("inf"), "1e-3", True])
def test_an_unusable_rtol_is_refused(rtol: object) -> None:
    with pytest.raises(UsageError, match=f"rtol is {rtol!r}"):
        checked_rtol(rtol)  # type: ignore[arg-type]


def test_a_usable_rtol_is_kept() -> None:
    assert (checked_rtol(None), checked_rtol(0), checked_rtol(1e-3)) == (None, 0.0, 1e-3)
