"""Products of float32 run as TensorFloat-32 if torch's switches say so; a convolution has two backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from shardtoll.analyzers.forecast.compute import Matmul, price_operator
from shardtoll.analyzers.forecast.dry.operators import products_of, work_of
from shardtoll.analyzers.forecast.dry.played_machine import machine_of
from shardtoll.ledger.records.dry import DryOp
from shardtoll.ledger.tables.tables import to_records
from tests.dry_runs import recorded

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    yield
    torch.backends.cudnn.allow_tf32 = before[0]
    torch.set_float32_matmul_precision(before[1])


class Pixels(nn.Module):
    """A convolution, one that enlarges, and a linear layer."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(8, 16, 3, stride=2, padding=1, dtype=dtype)
        self.widen = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, dtype=dtype)
        self.head = nn.Linear(8, 4, dtype=dtype)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.widen(self.narrow(x)).mean((2, 3)))


def products(dtype: torch.dtype = torch.float32, **made: Any) -> list[DryOp]:
    def train() -> None:
        model = Pixels(dtype).cuda()
        sgd = torch.optim.SGD(model.parameters())
        for _ in range(2):
            x = torch.randn(2, 8, 16, 16, device="cuda", dtype=dtype, requires_grad=True)
            model(x).float().square().mean().backward()
            sgd.step()

    ops: list[DryOp] = to_records("dry_ops", recorded(train, **made).tables["dry_ops"])
    return [op for op in ops if op.kind == "gemm"]


def formats(ops: list[DryOp], of: str) -> set[str | None]:
    return {op.dtype for op in ops if ("convolution" in op.op) == (of == "conv")}


def test_formats_follow_torchs_switches() -> None:
    ops = products()
    assert formats(ops, "conv") == {"tf32"}
    assert formats(ops, "matmul") == {"float32"}
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("high")
    ops = products()
    assert formats(ops, "conv") == {"float32"}
    assert formats(ops, "matmul") == {"tf32"}


@pytest.mark.parametrize(("gpu", "format_of_conv"), [("mi300x", "float32"), ("h100-sxm", "tf32")])
def test_only_cudnn_convolves_in_tf32(gpu: str, format_of_conv: str) -> None:
    torch.set_float32_matmul_precision("high")
    ops = products(machine=machine_of(gpu, "h100x8-ib400"))
    assert formats(ops, "conv") == {format_of_conv}
    assert formats(ops, "matmul") == {"tf32"}


def test_other_formats_stay_what_they_are() -> None:
    torch.set_float32_matmul_precision("high")
    assert {op.dtype for op in products(torch.bfloat16)} == {"bfloat16"}


def test_the_backward_of_a_convolution_is_two_products() -> None:
    by_op: dict[str, list[int]] = {}
    for op in products():
        work = work_of(op)
        assert isinstance(work, Matmul)
        assert op.flops == products_of(op, work) * work.flops, op
        by_op.setdefault(op.op.split(".")[1], []).append(products_of(op, work))
    assert by_op["convolution"] == [1, 1]
    assert by_op["convolution_backward"] == [2, 2]


@pytest.mark.parametrize("gpu", ["h100-sxm", "a100-sxm-80gb"])
def test_tf32_takes_twice_as_long_as_16_bits(gpu: str) -> None:
    narrow, exact, half = (
        price_operator(gpu, Matmul(8192, 8192, 8192, dtype)).expected_ns
        for dtype in ("tf32", "float32", "bfloat16")
    )
    assert narrow == pytest.approx(2 * half, rel=0.01)
    assert exact > 3 * narrow


def test_a_gpu_without_tf32_multiplies_float32() -> None:
    narrow, exact = (
        price_operator("v100-sxm-32gb", Matmul(4096, 4096, 4096, dtype)).expected_ns
        for dtype in ("tf32", "float32")
    )
    assert narrow == exact
