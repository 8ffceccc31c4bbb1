"""Values become rows: what is known of each, and names of inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.ledger.records.value import SKETCH_COLUMNS, Value
from shardtoll.profiler.live.session.check_hooks import compiled, inputs_of, watch_inputs, watch_norms
from shardtoll.profiler.live.values.fingerprint import Fingerprints
from shardtoll.profiler.live.values.values import Values, unseen


def row_of(tensor: torch.Tensor) -> Value:
    values = Values(rank=3)
    values.take(7, "gradient", "w", 0, tensor, tensor)
    taken = values.collect()
    assert taken.ready()
    (row,) = taken.rows()
    return row


def sketch(row: Value) -> list[float | None]:
    return [getattr(row, name) for name in SKETCH_COLUMNS]


def test_a_row_says_what_the_tensor_held() -> None:
    tensor = torch.randn(6, 5)
    row = row_of(tensor)
    assert (row.step, row.rank, row.kind, row.name, row.nth) == (7, 3, "gradient", "w", 0)
    assert (row.dtype, row.shape, row.numel) == ("float32", "[6, 5]", 30)
    assert (row.placements, row.mesh_dims, row.constant) == (None, None, False)
    prints = Fingerprints()
    prints.take(tensor)
    assert row.hash == prints.read()[0].number
    assert row.square == pytest.approx(float(tensor.double().square().sum()))
    assert None not in sketch(row)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_keeps_its_hash_alone(bad: float) -> None:
    row = row_of(torch.tensor([1.0, bad, 2.0]))
    assert row.hash is not None
    assert row.square is None
    assert sketch(row) == [None] * 8


def test_tokens_and_masks_have_numbers_too() -> None:
    assert row_of(torch.tensor([3, 4])).square == 25
    assert row_of(torch.tensor([True, False, True])).square == 2


def test_what_lies_not_in_memory_is_unknown() -> None:
    row = row_of(torch.eye(3).to_sparse())
    assert (row.hash, row.square, row.constant, row.numel) == (None, None, False, 9)
    empty = row_of(torch.zeros(0, 4))
    assert (empty.hash, empty.square, empty.numel) == (None, 0, 0)


def test_a_value_taken_anew_replaces_the_earlier_one() -> None:
    values = Values(0)
    for number in (1.0, 2.0):
        tensor = torch.tensor([number, 0.0])
        values.take(0, "gradient", "w", 0, tensor, tensor)
    values.take(0, "gradient", "v", 0, tensor, tensor)
    rows = values.collect().rows()
    assert [(row.name, row.square) for row in rows] == [("w", 4.0), ("v", 4.0)]
    assert values.collect().rows() == ()


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_nobody_sees_our_operators_and_autocast_does_not_round_them() -> None:
    tensor = torch.randn(64, 64, requires_grad=True)
    apart = row_of(tensor)
    with Seen() as seen, torch.autocast("cpu", torch.bfloat16):
        with unseen():
            within = row_of(tensor)
        assert seen.count == 0
        tensor + tensor
    assert seen.count > 0
    assert within == apart


@dataclass
class Batch:
    tokens: torch.Tensor
    more: object = None


def test_inputs_are_named_by_the_way_to_them() -> None:
    x, y = torch.ones(2), torch.zeros(3)
    found = inputs_of((x, [y, {"mask": x}]), {"batch": Batch(y, (x,)), "scale": 2.0})
    assert [name for name, _ in found] == [
        "args[0]",
        "args[1][0]",
        "args[1][1].mask",
        "kwargs.batch.tokens",
        "kwargs.batch.more[0]",
    ]
    assert found[1][1] is y
    assert len(inputs_of(tuple(torch.ones(100).unbind()), {"x": x})) == 64
    endless: list[object] = [x]
    endless.append(endless)
    assert len(inputs_of((endless,), {})) < 64


def test_a_model_that_is_compiled_with_its_hooks_is_told() -> None:
    inner = nn.Linear(2, 2)
    assert not compiled(inner)
    inner.compile(backend="eager")
    assert compiled(inner)
    around = nn.Sequential(nn.Linear(2, 2))
    outer: Any = torch.compile(around, backend="eager")
    assert compiled(around)
    assert compiled(around[0])
    assert not compiled(outer)
    undo = watch_inputs(outer, lambda *_: None)
    assert not around._forward_pre_hooks
    undo()


def test_a_norm_that_is_given_is_told_with_what_it_clips() -> None:
    model = nn.Linear(3, 3)
    told: list[tuple[str, float]] = []
    undo = watch_norms(model, len, lambda name, count, norm: told.append((f"{name} {count}", float(norm))))
    try:
        model(torch.ones(2, 3)).sum().backward()
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(4.0))
    finally:
        undo()
    assert told == [("torch.nn.utils.clip_grads_with_norm_ 2", 4.0)]
    assert model.bias.grad is not None
    assert torch.allclose(model.bias.grad, torch.tensor(0.5))


def test_norms_are_told_of_whatever_name_they_are_called_by() -> None:
    from torch.nn.utils import clip_grad_norm_

    model = nn.Linear(3, 3)
    told: list[tuple[str, int, float]] = []
    begun: list[int] = []

    def before(gradients: object) -> int:
        begun.append(len(gradients))  # type: ignore[arg-type]
        return len(begun) - 1

    undo = watch_norms(model, before, lambda *what: told.append((what[0], what[1], float(what[2]))))
    try:
        model(torch.ones(2, 3)).sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(iter(gradients))  # type: ignore[arg-type]
        assert float(clip_grad_norm_(model.parameters(), 1.0)) == float(norm)
        clip_grad_norm_(model.parameters(), 1.0, norm_type=math.inf)
    finally:
        undo()
    clip_grad_norm_(model.parameters(), 1.0)
    assert begun == [2, 2]
    assert [(name.rpartition(".")[2], nth) for name, nth, _ in told] == [
        ("get_total_norm", 0),
        ("clip_grad_norm_", 1),
    ]
    assert told[0][2] == told[1][2] == float(norm)
