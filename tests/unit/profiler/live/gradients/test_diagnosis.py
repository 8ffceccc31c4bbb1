"""The diagnosis against gradients broken on purpose: every cause, and nothing claimed in excess."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.profiler.live.gradients import compare
from shardtoll.profiler.live.gradients.compare import Overlap, Pooled, overlap
from shardtoll.profiler.live.gradients.diagnosis import (
    Diagnosis,
    Measured,
    first_look,
    known_factors,
    loss_scale,
    name_of,
    second_look,
)
from shardtoll.profiler.live.gradients.tolerance import Tolerance

TOLERANCE = Tolerance(3.5e-4, 1e-9)
worlds = st.integers(2, 8)
seeds = st.integers(0, 2**31)


def vectors(seed: int, count: int, numel: int = 64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator, dtype=torch.float64) for _ in range(count)]


def measured(own: Sequence[torch.Tensor | None], true: torch.Tensor | None) -> list[Measured]:
    shape = next(v for v in (*own, true) if v is not None)
    against = torch.zeros_like(shape) if true is None else true
    return [
        Measured(
            v is not None, true is not None, overlap(torch.zeros_like(shape) if v is None else v, against)
        )
        for v in own
    ]


def pooled(own: Sequence[torch.Tensor], true: torch.Tensor, groups: Sequence[Sequence[int]]) -> list[Pooled]:
    """What `pool` measures on every rank, computed in one process."""
    found = []
    for rank, vector in enumerate(own):
        (group,) = [group for group in groups if rank in group]
        total = torch.stack([own[peer] for peer in group]).sum(0)
        aside = vector - total / len(group)
        found.append(Pooled(overlap(total, true), float(aside.dot(aside)), float(vector.dot(vector))))
    return found


def diagnose(
    own: Sequence[torch.Tensor], true: torch.Tensor, *groups: Sequence[Sequence[int]]
) -> Diagnosis | None:
    """Both looks, with the partitions given; by default the world alone."""
    partitions = groups or ([range(len(own))],)
    known = known_factors(len(own), {})
    seen = measured(own, true)
    first = first_look(seen, TOLERANCE, known)
    if first is None or first.cause != "unknown":
        return first
    pools = {index: pooled(own, true, groups) for index, groups in enumerate(partitions)}
    sizes = {index: len(groups[0]) for index, groups in enumerate(partitions)}
    return second_look(seen, pools, sizes, TOLERANCE, known)


@settings(max_examples=50, deadline=None)
@given(seeds, worlds)
def test_parts_that_add_up_lack_a_sum(seed: int, world: int) -> None:
    parts = vectors(seed, world)
    found = diagnose(parts, torch.stack(parts).sum(0))
    assert found is not None
    assert (found.cause, found.factor, found.factor_name) == ("missing-reduction", 1.0, "sum")
    assert found.ranks == tuple(range(world))


@settings(max_examples=50, deadline=None)
@given(seeds, worlds)
def test_parts_whose_mean_is_right_lack_a_mean(seed: int, world: int) -> None:
    parts = vectors(seed, world)
    found = diagnose(parts, torch.stack(parts).mean(0))
    assert found is not None
    assert (found.cause, found.factor, found.factor_name) == ("missing-reduction", float(world), "mean")


@settings(max_examples=50, deadline=None)
@given(seeds, worlds, st.sampled_from([0.1, 3.0, 7.5]))
def test_a_missing_sum_of_scaled_parts_gives_the_factor(seed: int, world: int, factor: float) -> None:
    parts = vectors(seed, world)
    found = diagnose([factor * part for part in parts], torch.stack(parts).sum(0))
    assert found is not None
    assert found.cause == "missing-reduction"
    assert found.factor == pytest.approx(factor, rel=1e-3)


@settings(max_examples=50, deadline=None)
@given(seeds, worlds, st.floats(-50, 50).filter(lambda k: abs(k - 1) > 0.01 and abs(k) > 0.01))
def test_equal_multiples_are_a_wrong_scale(seed: int, world: int, factor: float) -> None:
    (true,) = vectors(seed, 1)
    found = diagnose([factor * true] * world, true)
    assert found is not None
    assert found.cause == "wrong-scale"
    assert found.factor == pytest.approx(factor, rel=1e-6)
    assert not found.ambiguous


@settings(max_examples=50, deadline=None)
@given(seeds, worlds, st.data())
def test_one_broken_replica_is_the_one_named(seed: int, world: int, data: st.DataObject) -> None:
    true, noise = vectors(seed, 2)
    broken = data.draw(st.integers(0, world - 1))
    found = diagnose([true + noise if rank == broken else true for rank in range(world)], true)
    assert found is not None
    assert (found.cause, found.ranks) == ("replicas-differ", (broken,))


@settings(max_examples=50, deadline=None)
@given(seeds, worlds)
def test_unrelated_gradients_get_no_cause(seed: int, world: int) -> None:
    true, other, *rest = vectors(seed, 2 + world)
    same = diagnose([other] * world, true)
    assert same is not None
    assert same.cause == "unknown", "equal on all ranks, yet wrong"
    differing = diagnose(rest, true)
    assert differing is not None
    assert differing.cause == "replicas-differ"
    assert differing.ranks == tuple(range(world))


@settings(max_examples=50, deadline=None)
@given(seeds, worlds)
def test_right_gradients_have_no_diagnosis(seed: int, world: int) -> None:
    true, noise = vectors(seed, 2)
    assert diagnose([true + 1e-4 * noise * (rank % 2) for rank in range(world)], true) is None


def test_the_smaller_group_wins() -> None:
    """dp=2 x tp=2, equal over tp: the world's mean is right as well, dp's is the one that is missing."""
    one, two = vectors(1, 2)
    dp, world = [(0, 2), (1, 3)], [(0, 1, 2, 3)]
    found = diagnose([one, one, two, two], (one + two) / 2, dp, world)
    assert found is not None
    assert (found.cause, found.partition, found.factor_name) == ("missing-reduction", 0, "mean")


def test_a_sum_is_preferred_to_a_mean_of_another_group() -> None:
    parts = vectors(1, 4)
    pairs, world = [(0, 1), (2, 3)], [(0, 1, 2, 3)]
    found = diagnose(parts, torch.stack(parts).sum(0), pairs, world)
    assert found is not None
    assert (found.partition, found.factor) == (1, 1.0)


def test_none_on_a_rank_is_missing_where_the_others_are_right() -> None:
    (true,) = vectors(1, 1)
    seen = measured([true, None, true], true)
    pools = {0: pooled([true, torch.zeros_like(true), true], true, [range(3)])}
    found = second_look(seen, pools, {0: 3}, TOLERANCE, {})
    assert (found.cause, found.ranks) == ("missing", (1,))


def test_none_on_a_rank_with_no_tokens_is_a_missing_reduction() -> None:
    one, two = vectors(1, 2)
    own = [one, torch.zeros_like(one), two]
    seen = measured([one, None, two], one + two)
    found = second_look(seen, {0: pooled(own, one + two, [range(3)])}, {0: 3}, TOLERANCE, {})
    assert (found.cause, found.factor_name) == ("missing-reduction", "sum")


def test_all_of_it_on_one_rank_is_a_missing_sum() -> None:
    (true,) = vectors(1, 1)
    found = diagnose([true, 0 * true, 0 * true], true)
    assert found is not None
    assert (found.cause, found.factor_name, found.ranks) == ("missing-reduction", "sum", (1, 2))


def test_causes_told_at_first_look() -> None:
    (true,) = vectors(1, 1)
    broken = true.clone()
    broken[3] = float("inf")
    cases: list[tuple[list[torch.Tensor | None], torch.Tensor | None, str, tuple[int, ...]]] = [
        ([None, None], true, "missing", (0, 1)),
        ([0 * true, 0 * true], true, "zero", (0, 1)),
        ([true, broken], true, "not-finite", (1,)),
        ([true, 0 * true], None, "extra", (0,)),
    ]
    for own, against, cause, ranks in cases:
        found = first_look(measured(own, against), TOLERANCE, {})
        assert found is not None
        assert (found.cause, found.ranks) == (cause, ranks)


def test_a_gradient_of_one_number_is_ambiguous() -> None:
    found = diagnose([torch.tensor([2.0]), torch.tensor([2.0])], torch.tensor([4.0]))
    assert found is not None
    assert (found.cause, found.factor, found.ambiguous) == ("wrong-scale", 0.5, True)


def test_factors_are_called_by_name_when_they_are_close() -> None:
    known = known_factors(8, {"mesh dim 'dp'": 4, "mesh dim 'tp'": 2, "mesh dim 'pp'": 1})
    assert name_of(8.0, known) == "the world size"
    assert name_of(4.003, known) == "the size of mesh dim 'dp'"
    assert name_of(0.5, known) == "1 / the size of mesh dim 'tp'"
    assert name_of(1.0, known) is None
    assert name_of(4.2, known) is None
    assert known_factors(2, {"mesh dim 'dp'": 2}) == {2.0: "the world size", 0.5: "1 / the world size"}
    assert [loss_scale(k) for k in (65536.0, 1024.5, 128.0, 1000.0, -512.0)] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
def test_overlap_is_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(compare, "PIECE", piece)
    own, true = vectors(3, 2)
    seen = overlap(own.reshape(8, 8), true.reshape(8, 8))
    assert seen.numel == 64
    assert seen.own_sq == pytest.approx(float(own.square().sum()))
    assert seen.true_sq == pytest.approx(float(true.square().sum()))
    assert seen.product == pytest.approx(float((own * true).sum()))
    assert seen.apart_sq == pytest.approx(float((own - true).square().sum()))
    assert seen.apart_from(3.0) == pytest.approx(float((own - 3 * true).norm()))
    assert seen.error == pytest.approx(float((own - true).norm() / true.norm()))


def test_overlap_of_small_differences_keeps_them() -> None:
    true = vectors(3, 1)[0].float()
    own = true.clone()
    own[0] += 2**-22
    assert overlap(own, true).apart_sq == pytest.approx(float(own[0] - true[0]) ** 2)


def test_overlap_of_nothing_and_of_complex_numbers() -> None:
    assert overlap(torch.empty(0), torch.empty(0)) == Overlap(0, 0.0, 0.0, 0.0, 0.0)
    seen = overlap(torch.tensor([3 + 4j]), torch.tensor([3 + 0j]))
    assert (seen.own_sq, seen.apart_sq) == (25.0, 16.0)


def test_unknown_errors_are_none() -> None:
    assert Overlap(1, 1.0, 0.0, 0.0, 1.0).error is None
    assert Overlap(1, float("nan"), 1.0, 0.0, 1.0).error is None
    assert Overlap(1, 0.0, 0.0, 0.0, 0.0).error == 0.0
    assert Overlap(1, 1.0, 0.0, 0.0, 1.0).ratio is None


def test_a_scale_must_hold_on_every_rank() -> None:
    true, noise = vectors(5, 2)
    found = diagnose([2 * true, 2 * true + noise, 2 * true - noise], true)
    assert found is not None
    assert found.cause != "wrong-scale"


def test_the_distance_to_the_truth_does_not_cancel() -> None:
    (true,) = vectors(3, 1)
    own = true * (1 + 1e-12)
    assert overlap(own, true).apart_from(1.0) == pytest.approx(1e-12 * float(true.norm()), rel=1e-2)
