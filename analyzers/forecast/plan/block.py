"""The operators of one block and of the loss head on one rank, priced without any fitted factor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.compute.operator import price_operator
from shardtoll.analyzers.forecast.compute.work import Attention, GroupedMatmul, Matmul, Work
from shardtoll.analyzers.forecast.plan.sizes import expert_columns
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.ledger.answers.training_plan import ModelShape


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of a block: sizes that decide its operators."""

    tokens: int
    """Tokens of one micro-batch on this rank's sequence shard."""
    sequence: int
    micro_batch: int
    tp: int
    cp: int
    ep: int
    expert_tp: int
    sequence_parallel: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """Times of one block, or of the head, by kind: forward and backward each in ns, bytes of streamed
    operators."""

    matmul_ns: tuple[float, float]
    least_ns: tuple[float, float]
    """The same matmuls at the best rate that large ones were measured to reach."""
    attention_ns: tuple[float, float]
    bytes: tuple[float, float]
    kernels: int

    def plus(self, other: Terms, times: float = 1.0) -> Terms:
        """Return the sum with `times` the other."""
        return Terms(
            (self.matmul_ns[0] + times * other.matmul_ns[0], self.matmul_ns[1] + times * other.matmul_ns[1]),
            (self.least_ns[0] + times * other.least_ns[0], self.least_ns[1] + times * other.least_ns[1]),
            (
                self.attention_ns[0] + times * other.attention_ns[0],
                self.attention_ns[1] + times * other.attention_ns[1],
            ),
            (self.bytes[0] + times * other.bytes[0], self.bytes[1] + times * other.bytes[1]),
            self.kernels + round(times * other.kernels),
        )


def linears(model: ModelShape, share: Share) -> tuple[tuple[int, int, int], ...]:
    """Return (rows, columns, inner) of one block's dense matmuls."""
    heads = model.head_width * max(1, model.heads // share.tp)
    keys = model.head_width * max(1, model.kv_heads // share.tp)
    wide = 2 if model.gated else 1
    attention = (
        (share.tokens, heads + 2 * keys, model.hidden),
        (share.tokens, model.hidden, heads),
    )
    if model.experts > 1:
        shared = model.shared_experts * expert_columns(model) // share.tp
        if not shared:
            return attention
        return (
            *attention,
            (share.tokens, wide * shared, model.hidden),
            (share.tokens, model.hidden, shared),
        )
    columns = max(1, model.ffn // share.tp)
    return (
        *attention,
        (share.tokens, wide * columns, model.hidden),
        (share.tokens, model.hidden, columns),
    )


def grouped(model: ModelShape, share: Share) -> tuple[GroupedMatmul, ...]:
    """Return the forward matmuls of one block's experts; rows are balanced."""
    if model.experts <= 1:
        return ()
    wide = 2 if model.gated else 1
    columns = max(1, expert_columns(model) // share.expert_tp)
    local = max(1, model.experts // share.ep)
    tokens = share.tokens * share.expert_tp / share.tp
    rows = max(1, round(tokens * model.topk / local))
    return (
        GroupedMatmul(local, rows, wide * columns, model.hidden),
        GroupedMatmul(local, rows, model.hidden, columns),
    )


@lru_cache(maxsize=16384)
def block_terms(model: ModelShape, share: Share, gpu: str, dtype: str, traits: Traits) -> Terms:
    """Return the times of one block."""
    shapes = linears(model, share)
    experts = grouped(model, share)
    wide_dtype = (
        "bfloat16" if dtype.startswith("float") and dtype != "float16" and dtype != "float32" else dtype
    )
    forward: list[Work] = [Matmul(m, n, k, dtype) for m, n, k in shapes]
    backward: list[Work] = [
        each for m, n, k in shapes for each in (Matmul(m, k, n, dtype), Matmul(n, k, m, dtype))
    ]
    for matmul in experts:
        forward.append(GroupedMatmul(matmul.groups, matmul.m, matmul.n, matmul.k, dtype))
        backward.append(GroupedMatmul(matmul.groups, matmul.m, matmul.k, matmul.n, dtype))
        backward.append(GroupedMatmul(matmul.groups, matmul.n, matmul.k, matmul.m, dtype))
    attention, scores = _attention(model, share, gpu, wide_dtype, traits)
    streamed = _streamed(model, share, dtype, traits)
    return Terms(
        (_sum(gpu, forward), _sum(gpu, backward)),
        (_least(gpu, dtype, forward), _least(gpu, dtype, backward)),
        attention,
        (streamed[0] + scores[0], streamed[1] + scores[1]),
        traits.kernels + (20 if model.experts > 1 else 0),
    )


_SCORE_BYTES = (8.0, 12.0)
"""Bytes per score that unfused attention moves forward and backward: written, masked and softmaxed, dropped
out."""


def _attention(
    model: ModelShape, share: Share, gpu: str, dtype: str, traits: Traits
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return ns of one block's attention, and bytes of its scores, forward and backward."""
    heads = max(1, model.heads // share.tp)
    queries, keys, width = share.sequence // share.cp, share.sequence, model.head_width
    if traits.unfused_attention:
        batch = share.micro_batch * heads
        scores = Matmul(queries, keys, width, dtype, batch)
        weighted = Matmul(queries, width, keys, dtype, batch)
        forward, backward = _sum(gpu, (scores, weighted)), _sum(gpu, (scores, weighted, weighted, weighted))
        count = float(batch * queries * keys)
        return (forward, backward), (_SCORE_BYTES[0] * count, _SCORE_BYTES[1] * count)
    kept = max(1, model.kv_heads // share.tp)
    # TensorFloat-32 is for torch's own products: fused attention of float32 stays float32.
    dtype = "float32" if dtype == "tf32" else dtype
    times = [
        price_operator(
            gpu,
            Attention(
                share.micro_batch, queries, keys, heads, kept, width, dtype, True, direction, traits.attention
            ),
        ).expected_ns
        for direction in ("forward", "backward")
    ]
    return (times[0], times[1]), (0.0, 0.0)


def _streamed(model: ModelShape, share: Share, dtype: str, traits: Traits) -> tuple[float, float]:
    """Return bytes that norms, residuals, rotary embedding and activations move, forward and backward."""
    width = 4 if dtype in ("float32", "tf32") else 2
    tokens = share.tokens
    normed = tokens / share.tp if share.sequence_parallel else tokens
    hidden = width * normed * model.hidden * traits.hidden_passes
    qkv = (
        width * tokens * model.head_width * (model.heads + 2 * model.kv_heads) / share.tp * traits.qkv_passes
    )
    if model.experts > 1:
        rows = tokens / share.tp * share.expert_tp * model.topk
        columns = expert_columns(model) / share.expert_tp
        # Permuting tokens to experts and back reads and writes each copy twice.
        dispatch = width * rows * model.hidden * 8
        activation = width * rows * columns * traits.ffn_passes + dispatch
    else:
        activation = width * tokens * model.ffn / share.tp * traits.ffn_passes
    activation *= 1.25 if model.gated else 1.0
    cast = 0.0
    if dtype.startswith(("float8", "float4")):
        # Each input of an 8-bit matmul is read once in 16 bits and written twice (rows and columns).
        shapes = linears(model, share)
        cast = sum(4.0 * m * k for m, _, k in shapes) + sum(2.0 * n * k for _, n, k in shapes)
        cast += sum(4.0 * matmul.groups * matmul.m * matmul.k for matmul in grouped(model, share))
    forward = hidden + qkv + activation + cast
    return forward, 1.6 * (hidden + qkv + activation) + cast


@lru_cache(maxsize=16384)
def head_terms(model: ModelShape, share: Share, gpu: str, traits: Traits, dtype: str = "bfloat16") -> Terms:
    """Return the times of the output projection and the loss; logits are 16 bits wide before the loss."""
    columns = max(1, model.vocab // share.tp)
    m, n, k = share.tokens, columns, model.hidden
    # Rows that are no multiple of 16 bytes leave tensor cores half idle; a vocabulary that is cut is padded.
    odd = 2.0 if share.tp == 1 and columns % 8 else 1.0
    forward = odd * price_operator(gpu, Matmul(m, n, k, dtype)).expected_ns
    backward = odd * _sum(gpu, (Matmul(m, k, n, dtype), Matmul(n, k, m, dtype)))
    moved = traits.loss_bytes * share.tokens * columns
    return Terms((forward, backward), (0.0, 0.0), (0.0, 0.0), (0.5 * moved, 0.5 * moved), traits.head_kernels)


def _least(gpu: str, dtype: str, works: Iterable[Work]) -> float:
    card = card_of(gpu)
    rate = card.peak_tflops(dtype) * 1e3 * card.matmul_share
    return sum(work.flops for work in works if isinstance(work, Matmul)) / rate


def _sum(gpu: str, works: Iterable[Work]) -> float:
    return sum(price_operator(gpu, work).expected_ns for work in works)
