"""The least bytes of operators with FLOPs, in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shardtoll.profiler import audit
from shardtoll.profiler.live.values.operators import bytes_of, moved_bytes

aten = torch.ops.aten


def test_every_operand_counts_once():
    a, b = torch.ones(64, 32, dtype=torch.bfloat16), torch.ones(32, 16, dtype=torch.bfloat16)
    c = a @ b
    assert moved_bytes(aten.mm.default, (a, b), (a, b), (c,)) == 2 * (64 * 32 + 32 * 16 + 64 * 16)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(6, 4), 96),
        (torch.ones(6, 4).t(), 96),
        (torch.ones(6, 4)[::2], 48),
        (torch.ones(1, 4).expand(6, 4), 16),
        (torch.ones(0, 4), 0),
        (torch.ones(10).unfold(0, 4, 1), 40),
        (torch.ones(10).unfold(0, 2, 4), 24),
        (torch.ones(()), 4),
        (torch.ones(3, 4).to_sparse(), 0),
    ],
)
def test_what_a_stride_of_zero_repeats_lies_in_memory_once(tensor, expected):
    assert bytes_of(tensor) == expected


def test_a_stride_beyond_the_kernel_skips_a_part_of_the_input():
    x, narrow, wide = torch.ones(1, 1, 8, 8), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 2, 2)
    out = torch.ones(1, 1, 4, 4)
    for weight, read in ((narrow, 0), (wide, 256)):
        args = (x, weight, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
        moved = moved_bytes(aten.convolution.default, args, (x, weight), (out,))
        assert moved == read + weight.nbytes + 64


def test_capture_records_them():
    model = nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with audit(model) as session:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    moved = session.report().computes.set_index("op")["moved_bytes"]
    assert moved["aten.mm.default"].iloc[0] == 4 * (2 * 8 + 8 * 4 + 2 * 4)
    # Gradient read, weight and two moments read and written.
    assert moved["optimizer.step"] == 4 * 32 * (1 + 2 + 2 * 2)


def test_infinity_in_a_mask_is_meant_and_met_by_no_operator():
    mask = torch.full((8, 8), float("-inf")).triu(1)
    q = torch.randn(2, 4, 8, 16, requires_grad=True)
    with audit() as session:
        out = torch.nn.functional.scaled_dot_product_attention(q, q * 2, q * 3, attn_mask=mask)
        scores = torch.baddbmm(mask.expand(8, 8, 8), out.flatten(0, 1), q.flatten(0, 1).mT)
        scores.softmax(-1).sum().backward()
    rows = session.report().computes
    assert rows["op"].str.contains("scaled_dot_product").any()
    met = rows[rows["non_finite"].notna()]
    # The scores themselves are infinite where they are masked.
    assert met["non_finite"].unique().tolist() == ["output"]
    assert met["op"].unique().tolist() == ["aten.baddbmm.default"]
    with audit() as session:
        torch.nn.functional.scaled_dot_product_attention(q, q, q * torch.nan, attn_mask=mask)
    assert session.report().computes["non_finite"].tolist() == ["input"]


class TestOptimizers:
    def moved(self, model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> int:
        with audit(model) as session:
            model(ids).sum().backward()
            optimizer.step()
        moved = session.report().computes.set_index("op")["moved_bytes"]
        return int(moved["optimizer.step"])

    def test_a_sparse_gradient_touches_but_a_few_rows(self):
        model = nn.Embedding(1000, 8, sparse=True)
        assert self.moved(model, torch.optim.SGD(model.parameters()), torch.tensor([1, 2])) == 0

    def test_states_of_a_class_of_their_own_do_not_lie_in_memory_as_they_say(self):
        class Packed(torch.Tensor):
            """As a state of 8 bits: says four bytes an element."""

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                raise AssertionError("nobody computes with it here")

        class Optimizer(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                for parameter in self.param_groups[0]["params"]:
                    shape = parameter.shape
                    self.state[parameter]["packed"] = torch.Tensor._make_wrapper_subclass(Packed, shape)

        model = nn.Embedding(10, 8)
        moved = self.moved(model, Optimizer(model.parameters()), torch.tensor([1, 2]))
        assert moved == 4 * 80 * (1 + 2)
