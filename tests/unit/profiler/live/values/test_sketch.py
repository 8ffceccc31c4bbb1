"""Sketches against sums written out element by element, and against what they promise of shards and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from shardtoll.profiler.live.values import sketch
from shardtoll.profiler.live.values.sketch import FOLD, NUMBERS, Signs, has_values, numbers_of

SIGNS = Signs(torch.device("cpu"))


def numbers(tensor: torch.Tensor, starts: Sequence[int] | None = None) -> list[float]:
    found = numbers_of(tensor, [0] * tensor.dim() if starts is None else starts, SIGNS)
    assert found.dtype == torch.float64
    return found.tolist()


def of(tensor: torch.Tensor, starts: Sequence[int] | None = None) -> torch.Tensor:
    return torch.tensor(numbers(tensor, starts)[1:9], dtype=torch.float64)


def element_by_element(tensor: torch.Tensor, starts: Sequence[int]) -> torch.Tensor:
    """The definition: each element times one sign for each of its indices."""
    total = torch.zeros(8, dtype=torch.float64)
    for index in torch.cartesian_prod(*[torch.arange(size) for size in tensor.shape]).reshape(
        -1, tensor.dim()
    ):
        sign = torch.ones(8, dtype=torch.float64)
        for dim, (at, start) in enumerate(zip(index.tolist(), starts, strict=True)):
            block, within = divmod(at + start, FOLD)
            sign = sign * SIGNS.low(dim)[within] * SIGNS.high(dim, block + 1)[block]
        total += tensor[tuple(index.tolist())].double() * sign
    return total


@pytest.mark.parametrize(
    ("shape", "starts"),
    [
        ((7,), (0,)),
        ((20,), (FOLD - 6,)),
        ((5, 3), (2, 9)),
        ((3, 40), (0, FOLD - 11)),
        ((40, 3, 2), (1, 0, 5)),
        ((2, 3, 2, 3), (0, 0, 0, 0)),
    ],
)
def test_each_number_is_the_sum_that_defines_it(shape: tuple[int, ...], starts: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = numbers(tensor, starts)
    torch.testing.assert_close(
        torch.tensor(found[1:9], dtype=torch.float64), element_by_element(tensor, starts)
    )
    assert found[0] == pytest.approx(float(tensor.double().square().sum()), rel=1e-12)
    assert found[9] == 0


@pytest.mark.parametrize("shape", [(3 * FOLD + 17,), (300, 70), (17, FOLD + 900), (12, 9, 33), (64, 3, 3, 3)])
@pytest.mark.parametrize("dim", [0, -1])
def test_shards_add_up_to_the_whole_wherever_they_are_cut(shape: tuple[int, ...], dim: int) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    parts, at = torch.zeros(8, dtype=torch.float64), 0
    squares = 0.0
    for part in tensor.tensor_split(5, dim):
        starts = [0] * tensor.dim()
        starts[dim] = at
        at += part.shape[dim]
        parts += of(part, starts)
        squares += numbers(part, starts)[0]
    torch.testing.assert_close(parts, of(tensor), rtol=1e-9, atol=1e-9)
    assert squares == pytest.approx(numbers(tensor)[0])


def test_sums_differences_and_multiples_keep_theirs() -> None:
    one, other = torch.randn(33, 50), torch.randn(33, 50)
    torch.testing.assert_close(of(one + other), of(one) + of(other), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of(3 * one), 3 * of(one), rtol=1e-5, atol=1e-5)


def test_strides_types_and_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randint(-8, 8, (90, 2 * FOLD + 5)).to(torch.bfloat16)
    found = numbers(whole)
    assert numbers(whole.float()) == numbers(whole.to(torch.int64)) == found
    assert numbers(whole.t().contiguous().t()) == found
    monkeypatch.setattr(sketch, "_PIECE", 3 * FOLD)
    # Whole numbers: no order of summing them rounds.
    assert numbers(whole) == found


def test_the_mean_of_squares_estimates_the_sum_of_squares() -> None:
    generator = torch.Generator().manual_seed(3)
    ratios = []
    for shape in [(40, 50), (2000,), (10, 10, 20)] * 40:
        tensor = torch.randn(shape, generator=generator)
        ratios.append(float(of(tensor).square().mean() / tensor.double().square().sum()))
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.15)
    assert min(ratios) > 0.05


def test_moved_elements_and_other_places_give_other_sketches() -> None:
    tensor = torch.arange(60.0).reshape(6, 10)
    swapped = tensor[[1, 0, 2, 3, 4, 5]]
    assert not torch.equal(of(tensor), of(swapped))
    assert not torch.equal(of(tensor), of(tensor, (6, 0)))
    assert not torch.equal(of(tensor), of(tensor, (0, FOLD)))


def test_signs_are_as_often_plus_as_minus_and_do_not_follow_each_other() -> None:
    for table in (SIGNS.low(0), SIGNS.low(3), SIGNS.high(1, FOLD)):
        assert set(table.unique().tolist()) == {-1.0, 1.0}
        assert table.mean(0).abs().max() < 5 / math.sqrt(table.shape[0])
        together = (table.t() @ table) / table.shape[0]
        assert (together - torch.eye(8, dtype=torch.float64)).abs().max() < 5 / math.sqrt(table.shape[0])


def test_a_longer_table_begins_like_a_shorter_one() -> None:
    fresh = Signs(torch.device("cpu"))
    short = fresh.high(0, 3)[:3].clone()
    assert torch.equal(fresh.high(0, 999)[:3], short)


def test_constants_empties_scalars_and_what_is_not_finite() -> None:
    assert numbers(torch.full((4, 5), 2.0))[9] == 1
    assert numbers(torch.zeros(0, 5)) == [0.0] * 9 + [1.0]
    scalar = numbers(torch.tensor(3.0))
    assert (scalar[0], {abs(value) for value in scalar[1:9]}) == (9.0, {3.0})
    broken = numbers(torch.tensor([1.0, math.inf, math.nan]))
    assert not math.isfinite(broken[0])
    assert broken[9] == 0
    late = torch.zeros(20_000)
    late[-1] = 1
    assert numbers(late)[9] == 0, "a sample would take it for constant"


def test_without_a_known_place_there_is_no_sketch_but_the_square() -> None:
    found = numbers_of(torch.full((3, 3), 2.0), None, SIGNS).tolist()
    assert found[0] == 36
    assert all(map(math.isnan, found[1:9]))
    assert len(found) == NUMBERS


def test_complex_numbers_count_by_their_parts() -> None:
    tensor = torch.randn(4, 5, dtype=torch.complex64)
    assert numbers(tensor)[0] == pytest.approx(float(tensor.abs().double().square().sum()), rel=1e-5)
    assert numbers(torch.full((3,), 1 + 2j))[9] == 1


def test_no_random_number_is_drawn_and_nothing_is_written() -> None:
    tensor = torch.randn(50, 60)
    kept, state = tensor.clone(), torch.get_rng_state()
    version = tensor._version
    numbers_of(tensor, (0, 0), Signs(torch.device("cpu")))
    assert torch.equal(tensor, kept)
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), state)


def test_what_has_no_values_of_its_own_is_told() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert not has_values(torch.ones(3))
    assert not has_values(torch.ones(3, device="meta"))
    assert not has_values(torch.eye(3).to_sparse())
    assert has_values(torch.nn.Parameter(torch.ones(3)))
