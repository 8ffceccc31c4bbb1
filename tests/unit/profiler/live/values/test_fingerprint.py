"""Fingerprints: equal values give equal numbers, anything moved or changed gives others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.profiler.live.values.fingerprint import (
    _WEIGHTS,
    SAMPLE,
    Fingerprint,
    Fingerprints,
    _Side,
    _weights_made_on,
    combine,
    float_of,
)


def take(*tensors: torch.Tensor) -> list[Fingerprint]:
    prints = Fingerprints()
    tickets = [prints.take(tensor) for tensor in tensors]
    found = prints.read()
    return [found[ticket] for ticket in tickets if ticket is not None]


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [3, SAMPLE, SAMPLE + 1, 3 * SAMPLE + 7])
def test_equal_values_are_equal_and_a_permutation_is_not(dtype: torch.dtype, size: int) -> None:
    values = (torch.arange(size) % 251).to(dtype)
    same, moved = take(values, values.flip(0))
    again = take(values.clone())[0]
    assert same == again
    assert same.number != moved.number
    assert not same.constant


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=40), st.data())
def test_one_changed_element_shows(values: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    before = torch.tensor(values)
    after = before.clone()
    after.view(torch.int32)[place] ^= 1
    a, b = take(before, after)
    assert a.number != b.number


def test_constant_tensors_are_told() -> None:
    ones, zeros, two = take(torch.ones(5000), torch.zeros(9), torch.tensor([1.0, 2.0]))
    assert ones.constant
    assert zeros.constant
    assert not two.constant


def test_equal_bytes_of_other_length_differ() -> None:
    short, long = take(torch.zeros(8), torch.zeros(9))
    assert short.number != long.number


def test_a_transposed_tensor_is_read_without_a_copy_of_it() -> None:
    values = torch.randn(200, 300)
    straight, turned = take(values, values.t())
    assert straight.number == turned.number, "same memory, same order"


def test_the_storage_stays_resizable() -> None:
    """FSDP frees gathered parameters by resizing their storage to nothing."""
    values = torch.randn(64)
    take(values)
    values.untyped_storage().resize_(0)


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.eye(3).to_sparse()])
def test_tensors_without_plain_values_have_none(tensor: torch.Tensor) -> None:
    assert Fingerprints().take(tensor) is None


def test_order_matters_in_combine() -> None:
    assert combine([1, 2]) != combine([2, 1])


def test_the_device_path_gives_the_same_numbers() -> None:
    """What runs on an accelerator, run here: the sums as tensors, read back at the end."""
    values = torch.randn(10_000)
    prints = Fingerprints()
    side = prints._side(torch.device("cpu"))
    bits = values.view(torch.int32)[:: -(-values.numel() // SAMPLE)]
    assert prints._take_on(side, bits, values.numel()) == 0
    assert prints.take(values) == 1
    first, second = prints.read()
    assert first == second
    assert prints.read() == []


def test_a_rehearsal_leaves_no_prints() -> None:
    seen: list[tuple[torch.dtype, int, bool]] = []

    class Listening(Fingerprints):
        def take(
            self, tensor: torch.Tensor, *, thorough: bool = False, numel: int | None = None
        ) -> int | None:
            seen.append((tensor.dtype, tensor.numel(), tensor.is_contiguous()))
            return super().take(tensor, thorough=thorough, numel=numel)

    prints = Listening()
    prints._rehearse(torch.device("cpu"))
    types = {torch.uint8, torch.int16, torch.int32, torch.int64}
    assert types | {torch.float16, torch.bfloat16, torch.float32, torch.float64} == {each[0] for each in seen}
    for dtype in types:
        assert {(dtype, 1, True), (dtype, SAMPLE, True), (dtype, 2 * SAMPLE, True)} <= set(seen)
        assert any(each[0] == dtype and not each[2] for each in seen)
    assert prints.take(torch.ones(3)) == 0
    assert prints.read() == take(torch.ones(3))


class Late:
    """Sums that arrive when the test says so; notes what it was told to wait for."""

    def __init__(self) -> None:
        self.now = "default"
        self.graph = False
        self.arrived = False
        self.awaited: list[Any] = []

    def stream(self) -> str:
        return self.now

    def capturing(self) -> bool:
        return self.graph

    def start(self, pairs: Sequence[torch.Tensor], streams: Collection[Any]) -> Late:
        self.awaited += streams
        self.pairs = list(pairs)
        return self

    def ready(self) -> bool:
        return self.arrived

    def read(self) -> list[tuple[int, int]]:
        return [(int(one), int(other)) for one, other in torch.cat([p.view(-1, 2) for p in self.pairs])]


def on_device(prints: Fingerprints) -> tuple[Late, _Side]:
    late = Late()
    side = prints._sides[torch.device("meta")] = _Side(_weights_made_on(torch.device("cpu")), late)
    return late, side


def test_sums_of_every_stream_are_awaited_and_read_when_they_have_arrived() -> None:
    prints = Fingerprints()
    late, side = on_device(prints)
    values = [torch.randn(100) for _ in range(3)]
    for stream, tensor in zip(("default", "copies", "default"), values, strict=True):
        late.now = stream
        prints._take_on(side, tensor.view(torch.int32), tensor.numel())
    taken = prints.collect()
    assert late.awaited == ["default", "copies"]
    assert not taken.ready()
    late.arrived = True
    assert taken.ready()
    assert taken.read() == take(*values)
    assert prints.collect().ready()


def test_no_sum_becomes_part_of_a_graph() -> None:
    prints = Fingerprints()
    late, side = on_device(prints)
    late.graph = True
    assert prints._take_on(side, torch.ones(3, dtype=torch.int32), 3) is None
    assert prints.read() == []


def test_weights_made_on_a_device_are_the_hosts() -> None:
    assert _weights_made_on(torch.device("cpu")).tolist() == _WEIGHTS.tolist()


def test_a_tensor_without_values_has_no_fingerprint() -> None:
    assert Fingerprints().take(torch.empty(3, device="meta")) is None


@pytest.mark.parametrize("number", [0.0, 1.5, -3.25e-7, 12345.678])
def test_one_number_is_read_back_from_its_print(number):
    prints = Fingerprints()
    prints.take(torch.tensor(number))
    assert float_of(prints.collect().read()[0].number) == pytest.approx(number, rel=1e-7)


def test_a_print_of_more_than_a_number_is_none():
    prints = Fingerprints()
    prints.take(torch.randn(5))
    prints.take(torch.tensor(float("nan")))
    assert [float_of(taken.number) for taken in prints.collect().read()] == [None, None]
