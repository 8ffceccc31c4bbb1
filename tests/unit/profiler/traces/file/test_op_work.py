"""FLOPs and bytes of operators from what a trace writes of them, against torch's own counter."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from shardtoll.profiler.traces.file.op_shapes import inputs_of
from shardtoll.profiler.traces.file.op_work import OpWork, needs_numbers, work_of

_KINDS = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.int64: "long int"}


def written(*values: Any) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the four lists of args that the profiler writes for these arguments."""
    dims, kinds, strides, plain = [], [], [], []
    for value in values:
        tensor = isinstance(value, torch.Tensor)
        dims.append(list(value.shape) if tensor else [])
        strides.append(list(value.stride()) if tensor else [])
        kinds.append(_KINDS[value.dtype] if tensor else "ScalarList" if isinstance(value, list) else "Scalar")
        plain.append("" if tensor or value is None else str(value))
    return tuple(json.dumps(each).encode() for each in (dims, kinds, strides, plain))  # type: ignore[return-value]


def work(op: str, *values: Any) -> OpWork:
    inputs = inputs_of(*written(*values))
    assert inputs is not None
    return work_of(op, inputs)


def counted(run: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_matmuls_are_counted_as_torch_does():
    a, b, c = meta(64, 32), meta(32, 16), meta(64, 16)
    batch = meta(4, 64, 32), meta(4, 32, 16), meta(4, 64, 16)
    for op, values, run in (
        ("aten::mm", (a, b), lambda: a @ b),
        ("aten::addmm", (meta(16), a, b, 1, 1), lambda: torch.addmm(meta(16), a, b)),
        ("aten::bmm", batch[:2], lambda: torch.bmm(*batch[:2])),
        ("aten::baddbmm", (batch[2], *batch[:2]), lambda: torch.baddbmm(batch[2], *batch[:2])),
    ):
        assert work(op, *values).flops == counted(run), op
    assert work("aten::mm", a, b).moved_bytes == sum(2 * each.numel() for each in (a, b, c))


@pytest.mark.parametrize(
    ("shape", "weight", "padding", "stride", "dilation", "groups"),
    [
        ((2, 3, 32, 32), (8, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
        ((2, 8, 33, 31), (16, 4, 5, 3), [2, 0], [2, 3], [1, 2], 2),
        ((2, 8, 33), (16, 8, 5), [2], [2], [1], 1),
        ((1, 4, 9, 9, 9), (4, 1, 3, 3, 3), [0, 0, 0], [1, 1, 1], [1, 1, 1], 4),
    ],
)
def test_convolutions_are_counted_as_torch_does(shape, weight, padding, stride, dilation, groups):
    x, w = meta(*shape), meta(*weight)

    def run() -> torch.Tensor:
        return torch.convolution(x, w, None, stride, padding, dilation, False, [0] * len(stride), groups)

    made = run()
    expected = counted(run)
    for op, values in (
        ("aten::cudnn_convolution", (x, w, padding, stride, dilation, groups, False, False, True)),
        ("aten::miopen_convolution", (x, w, None, padding, stride, dilation, groups, False, False)),
    ):
        found = work(op, *values)
        assert found == OpWork(expected, 2 * (x.numel() + w.numel() + made.numel())), op
        assert needs_numbers(op)
    zeros = [0] * len(stride)
    for mask in ([True, True, False], [False, True, False], [True, False, False]):
        values = (made, x, w, [0], stride, padding, dilation, False, zeros, groups, mask)
        back = counted(lambda given=values: torch.ops.aten.convolution_backward(*given))
        if groups > 1:
            # torch multiplies the weight's gradient out over the groups, which no kernel does.
            back = sum(mask[:2]) * expected
        assert work("aten::convolution_backward", *values).flops == back, mask


def test_a_stride_beyond_the_kernel_skips_a_part_of_the_input():
    x, w = meta(2, 3, 32, 32), meta(8, 3, 1, 1)
    found = work("aten::cudnn_convolution", x, w, [0, 0], [2, 2], [1, 1], 1)
    assert found.moved_bytes == 2 * (w.numel() + 2 * 8 * 16 * 16)


def test_attention_is_counted_as_torch_does():
    q, k, v = meta(2, 4, 64, 16), meta(2, 4, 48, 16), meta(2, 4, 48, 16)
    expected = 2 * counted(lambda: q @ k.transpose(-1, -2))
    assert work("aten::_scaled_dot_product_flash_attention", q, k, v, 0.0, False).flops == expected
    turned = [each.transpose(1, 2).contiguous() for each in (q, k, v)]
    assert work("aten::_flash_attention_forward", *turned).flops == expected
    back = work("aten::_flash_attention_backward", turned[0], *turned)
    assert back.flops == 5 * expected // 2


def test_operators_of_elements_move_their_operands():
    a, b = meta(64, 32), meta(64, 32)
    size = a.numel() * 2
    for op, values, moved in (
        ("aten::add", (a, b, 1), 2 * size),
        ("aten::add_", (a, b, 1), 3 * size),
        ("aten::copy_", (a, b, False), 2 * size),
        ("aten::fill_", (a, 0), size),
        ("aten::mul", (a, meta(1, 32).expand(64, 32)), size + 64),
        ("aten::embedding", (a, meta(7, dtype=torch.int64)), None),
        ("aten::index", (a, meta(7, dtype=torch.int64)), None),
        ("aten::arange", (7,), None),
    ):
        assert work(op, *values) == OpWork(None, moved), op


@pytest.mark.parametrize(
    "lists",
    [
        (b"", b"", b"", b""),
        (b"[[2,3],[3,4]]", b"[]", b"[]", b"[]"),
        (b"[[2,3],[3,4]]", b'["NoSuchType","c10::BFloat16"]', b"[]", b"[]"),
        (b"[[2,-3],[3,4]]", b'["float","float"]', b"[]", b"[]"),
        (b"[[2,1e9],[3,4]]", b'["float","float"]', b"[]", b"[]"),
        (b"[[9007199254740993,9007199254740993],[3,4]]", b'["float","float"]', b"[]", b"[]"),
        (b"[[2,3],[4,5]]", b'["float","float"]', b"[]", b"[]"),
        (b"[[[2,3]],[3,4]]", b'["TensorList","float"]', b"[]", b"[]"),
        (b"{", b"[", b"x", b"\xff"),
        (b"[null, 3]", b'[null, "float"]', b"[[1],[2]]", b'["x"]'),
    ],
)
def test_what_is_damaged_or_unknown_stays_unknown(lists):
    inputs = inputs_of(*lists)
    for op in (
        "aten::mm",
        "aten::cudnn_convolution",
        "aten::convolution_backward",
        "aten::_flash_attention_forward",
    ):
        assert inputs is None or work_of(op, inputs).flops is None


def test_attention_kernels_differ_in_where_the_heads_are():
    q, k = meta(2, 4, 64, 16), meta(2, 4, 48, 16)
    swapped = [each.transpose(1, 2) for each in (q, k, k)]
    flops = 2 * 2 * 4 * 64 * 48 * 32
    for op in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"):
        assert work(f"aten::{op}", q, k, k).flops == flops, op
    assert work("aten::_flash_attention_forward", *swapped).flops == flops
    assert work("aten::_efficient_attention_forward", *swapped).flops == flops
    assert work("aten::_cudnn_attention_forward", q, k, k).flops == flops, "[b, h, s, d] as it was given"
    assert work("aten::_cudnn_attention_backward", q, q, k, k).flops == flops * 5 // 2


def test_windows_that_overlap_lie_in_memory_once():
    windows = meta(1024).unfold(0, 512, 1)
    assert work("aten::mm", windows, meta(512, 2)).moved_bytes == 2 * (1024 + 512 * 2 + 513 * 2)


@pytest.mark.parametrize(
    "op", ["aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"]
)
def test_a_batch_norm_reads_its_input_and_weights_and_writes_a_result_as_large(op):
    given, weight = meta(8, 16, 32, 32), meta(16, dtype=torch.float32)
    moved = work(op, given, weight, weight, weight, weight, True, 0.1, 1e-5).moved_bytes
    assert moved == 2 * 2 * given.numel() + 4 * 4 * 16


def test_other_norms_and_softmax_write_their_result_too_and_pools_stay_unknown():
    given, weight = meta(64, 128), meta(128)
    read = 2 * 64 * 128
    assert work("aten::native_layer_norm", given, [128], weight, weight).moved_bytes == 2 * read + 2 * 2 * 128
    assert work("aten::_fused_rms_norm", given, [128], weight).moved_bytes == 2 * read + 2 * 128
    assert work("aten::_softmax", given, -1, False).moved_bytes == 2 * read
    assert work("aten::max_pool2d_with_indices", meta(8, 16, 32, 32), [3, 3]).moved_bytes is None
