"""What names of kernels prove, and what they do not."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.findings.slow.rates import Ran, ran

ARGS = "(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "proved"),
    [
        # One kernel for all: its protocol and its ring say nothing.
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL" + ARGS, Ran(None, None)),
        ("ncclDevKernel_AllGather_RING_LL" + ARGS, Ran(None, None)),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL" + ARGS, Ran("tree", None)),
        # Built with exact names.
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE" + ARGS, Ran("ring", "Simple")),
        ("ncclDevKernel_AllReduce_Sum_f16_TREE_LL128" + ARGS, Ran("tree", "LL128")),
        ("ncclDevKernel_AllReduce_Sum_bf16_NVLS_SIMPLE" + ARGS, Ran("nvls", "Simple")),
        ("ncclDevKernel_AllReduce_Sum_bf16_NVLS_TREE_SIMPLE" + ARGS, Ran("nvlstree", "Simple")),
        # Before 2.19 any kernel ran any collective.
        ("ncclKernel_AllReduce_TREE_LL_Sum_float(ncclWorkElem)", Ran(None, None)),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", Ran(None, None)),
        ("ncclDevKernel_SendRecv" + ARGS, Ran(None, None)),
        ("rcclGenericKernel", Ran(None, None)),
        (None, Ran(None, None)),
    ],
)
def test_names(name: str | None, proved: Ran) -> None:
    assert ran(name) == proved
