"""A question from a recorded step: shapes of any model and cut come back, and so do layouts of meshes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.advise.from_run.step_layout import checkpointing_of
from shardtoll.analyzers.advise.from_run.step_ops import StepOp
from shardtoll.analyzers.advise.from_run.step_shape import shape_of
from shardtoll.ledger import UsageError

TOKENS = 4 * 128


def block(
    name: str | None, hidden: int, heads: int, keys: int, ffn: int, gated: bool, fused: bool
) -> list[StepOp]:
    """One block's forward with a micro-batch of 4 x 128 tokens and heads of 32."""
    width = 32

    def matmul(part: str, k: int, n: int) -> StepOp:
        module = None if name is None else f"{name}.{part}"
        return StepOp("mm", "forward", module, 1, ((TOKENS, k), (k, n)), "bf16")

    inner, outer = heads * width, keys * width
    projections = (
        [matmul("qkv", hidden, inner + 2 * outer)]
        if fused
        else [matmul("q", hidden, inner), matmul("k", hidden, outer), matmul("v", hidden, outer)]
    )
    sizes = ((4, heads, 128, width), (4, keys, 128, width), (4, keys, 128, width))
    module = None if name is None else f"{name}.attention"
    attention = StepOp("_scaled_dot_product_flash_attention", "forward", module, 1, sizes, "bf16")
    ups = [matmul("up", hidden, ffn)] + ([matmul("gate", hidden, ffn)] if gated else [])
    return [*projections, attention, matmul("o", inner, hidden), *ups, matmul("down", ffn, hidden)]


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 5),
    heads=st.sampled_from([2, 4, 8]),
    ratio=st.sampled_from([1, 2]),
    ffn=st.integers(3, 40).map(lambda units: 64 * units),
    tp=st.sampled_from([1, 2, 4]),
    gated=st.booleans(),
    fused=st.booleans(),
    passes=st.integers(1, 3),
)
def test_a_blocks_sizes_come_back_from_its_matmuls(layers, heads, ratio, ffn, tp, gated, fused, passes):
    hidden = 32 * heads * tp
    if ffn == hidden or 2 * ffn == hidden:
        return
    ops = [
        op
        for _ in range(passes)
        for layer in range(layers)
        for op in block(f"layers.{layer}", hidden, heads, max(1, heads // ratio), ffn, gated, fused)
    ]
    ops += [StepOp("mm", "forward", "output", 1, ((TOKENS, hidden), (hidden, 50_000 // tp)), "bf16")] * passes
    shape = shape_of(ops, tp, 1, 1, "ours")
    model = shape.model
    assert (model.layers, model.hidden, model.heads) == (layers, hidden, heads * tp)
    assert (model.kv_heads, model.ffn, model.gated) == (max(1, heads // ratio) * tp, ffn * tp, gated)
    assert model.vocab == 50_000 // tp * tp
    assert (shape.sequence, shape.micro_batch, shape.passes) == (128, 4, passes)


def test_operators_of_a_trace_have_no_modules_and_counts():
    ops = [
        StepOp(op.op, op.phase, None, 3, op.shapes, op.dtype)
        for op in block(None, 256, 8, 4, 704, True, False)
    ]
    ops.append(StepOp("mm", "forward", None, 1, ((TOKENS, 256), (256, 32_000)), "bf16"))
    model = shape_of(ops, 1, 2, 1, "ours").model
    assert (model.layers, model.hidden, model.heads, model.kv_heads) == (6, 256, 8, 4)
    assert (model.ffn, model.gated, model.vocab) == (704, True, 32_000)


def test_a_step_without_attention_has_no_shape():
    with pytest.raises(UsageError, match="no operator of the step is attention"):
        shape_of([StepOp("mm", "forward", "a", 1, ((4, 8), (8, 8)), "f32")], 1, 1, 1, "ours")


def test_recomputed_operators_tell_how_much_is_checkpointed():
    forward = block("layers.0", 256, 8, 8, 1024, False, False)
    again = [StepOp(op.op, "recompute", op.module, 1, op.shapes, op.dtype) for op in forward]
    assert checkpointing_of(forward) == "none"
    assert checkpointing_of([*forward, *again]) == "full"
    assert checkpointing_of([*forward, *again[:2]]) == "selective"


def relaid(op: StepOp, name: str) -> StepOp:
    """The same attention as a kernel that takes [batch, sequence, heads, dim]."""
    shapes = tuple((shape[0], shape[2], shape[1], shape[3]) for shape in op.shapes)
    return StepOp(name, op.phase, op.module, op.count, shapes, op.dtype)


@pytest.mark.parametrize("kernel", ["_flash_attention_forward", "_efficient_attention_forward"])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("named", [True, False])
def test_an_attention_counts_once_in_the_layout_of_its_kernel(kernel: str, both: bool, named: bool) -> None:
    ops = []
    for op in block("layers.0" if named else None, 256, 8, 4, 704, True, False):
        inner = [relaid(op, kernel)] if op.is_attention else []
        ops += [op, *inner] if both or not inner else inner
    shape = shape_of(ops, 1, 1, 1, "ours")
    assert (shape.model.layers, shape.model.heads, shape.model.kv_heads) == (1, 8, 4)
    assert (shape.sequence, shape.micro_batch, shape.passes) == (128, 4, 1)
    assert not StepOp("my_attention", "forward", None, 1, ops[0].shapes, "bf16").is_attention


@pytest.mark.parametrize("part", ["moe.experts.0", "block_sparse_moe.experts", "mlp.shared_expert"])
def test_experts_are_refused(part: str) -> None:
    extra = StepOp("mm", "forward", f"layers.0.{part}.w1", 1, ((TOKENS, 256), (256, 704)), "bf16")
    with pytest.raises(
        UsageError, match=rf"experts, in layers.0.{part}.w1.*leave the run out and give --model"
    ):
        shape_of([*block("layers.0", 256, 8, 8, 704, True, False), extra], 1, 1, 1, "ours")
