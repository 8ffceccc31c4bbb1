"""The model's shape from the matmuls of one step: what a rank multiplied, times what tensor parallel cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.advise.from_run.step_ops import StepOp, outermost
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.training_plan import ModelShape

_HINT = "leave the run out and give --model, as llama3-8b, or a plan file with the shape under [model]"


_USUAL_VOCAB: Final = 32_000


@dataclass(frozen=True, slots=True)
class StepShape:
    """Model and batch as one rank's step shows them."""

    model: ModelShape
    sequence: int
    micro_batch: int
    passes: int
    """Micro-batches that the rank passed through its blocks."""
    stage_layers: int
    """Blocks of this rank."""
    has_head: bool = True
    """Whether the rank showed the model's classes; if not, a usual number stands for them."""


def shape_of(ops: Sequence[StepOp], tp: int, pp: int, cp: int, name: str) -> StepShape:
    """Return it. `tp`, `pp`, `cp`: degrees that cut the model and the sequence.

    Raises UsageError if the step is not a transformer's: no fused attention, or matmuls of no common width.
    Also if it has experts, which one rank's matmuls do not count.
    """
    forward = [op for op in ops if op.phase not in ("backward", "recompute", "optimizer")]
    _refuse_experts(forward)
    attention = outermost([op for op in forward if op.is_attention])
    if not attention:
        raise UsageError("no operator of the step is attention: the model's shape is unknown", _HINT)
    linear = [(op, op.matmul) for op in forward]
    weights = [(op, sizes) for op, sizes in linear if sizes is not None]
    hidden = _hidden([sizes for _, sizes in weights])
    layers, passes = _layers(attention, weights, hidden)
    (micro_batch, heads, sequence, head_dim), (_, keys, *_) = attention[0].attended
    block = _block(weights, attention[0].layer, layers * passes, hidden)
    if not block:
        raise UsageError("the step's blocks multiply no weights: the model's shape is unknown", _HINT)
    inner = heads * head_dim
    parts = [(k, n) for k, n in block]
    down = _down(parts, hidden, inner)
    ups = _ups(parts, hidden, inner, keys * head_dim)
    if down is None:
        raise UsageError("the step's blocks have no feed-forward part: the model's shape is unknown", _HINT)
    vocab = vocab_of(ops, hidden, tp)
    model = ModelShape(
        layers=layers * pp,
        hidden=hidden,
        heads=heads * tp,
        kv_heads=keys * tp,
        ffn=down * tp,
        vocab=vocab or _USUAL_VOCAB,
        gated=sum(ups) >= 1.9 * down,
        head_dim=head_dim if head_dim * heads * tp != hidden else None,
        name=name,
    )
    return StepShape(model, sequence * cp, micro_batch, passes, layers, vocab is not None)


def _refuse_experts(forward: Sequence[StepOp]) -> None:
    for op in forward:
        if "expert" in (op.module or "").casefold() or "grouped_mm" in op.op:
            place = op.module or op.op
            raise UsageError(
                f"the step has experts, in {place:.80}: how many, and how many a token takes, is unknown",
                _HINT,
            )


def _hidden(weights: Sequence[tuple[int, int, int]]) -> int:
    """The width that most matmuls have on one side; of several the smaller, as feed-forward parts widen."""
    seen: Counter[int] = Counter()
    for _, k, n in weights:
        seen.update({k, n})
    if not seen:
        raise UsageError(
            "no operator of the step multiplies by a weight: the model's shape is unknown", _HINT
        )
    most = max(seen.values())
    return min(width for width, count in seen.items() if count == most)


def _layers(
    attention: Sequence[StepOp], weights: Sequence[tuple[StepOp, tuple[int, int, int]]], hidden: int
) -> tuple[int, int]:
    """Blocks of the rank, and how often a micro-batch passed them."""
    count = sum(op.count for op in attention)
    modules = {op.module for op in attention}
    if None not in modules:
        return len(modules), max(1, count // len(modules))
    heads = [(sizes[2], op.count) for op, sizes in weights if sizes[1] == hidden]
    passes = max(heads)[1] if heads else 1
    return max(1, count // passes), passes


def _block(
    weights: Sequence[tuple[StepOp, tuple[int, int, int]]], layer: str | None, uses: int, hidden: int
) -> list[tuple[int, int]]:
    """(inner, columns) of one block's matmuls, once each."""
    if layer is not None:
        seen: dict[str | None, tuple[int, int]] = {}
        for op, (_, k, n) in weights:
            if op.layer == layer:
                seen.setdefault(op.module, (k, n))
        return list(seen.values())
    # Operators without modules: those that ran as often as attention did, or a whole multiple of it.
    block: list[tuple[int, int]] = []
    for op, (_, k, n) in weights:
        if hidden in (k, n):
            block += [(k, n)] * round(op.count / uses)
    return block


def _down(parts: Sequence[tuple[int, int]], hidden: int, inner: int) -> int | None:
    """Inner width of the projection back to the hidden width that is not attention's."""
    back = [k for k, n in parts if n == hidden]
    if inner in back:
        back.remove(inner)
    # Square ones are queries' and keys': the feed-forward part is the last that goes back.
    return back[-1] if back else None


def _ups(parts: Sequence[tuple[int, int]], hidden: int, inner: int, keys: int) -> list[int]:
    """Columns of the projections out of the hidden width, without those of attention."""
    out = [n for k, n in parts if k == hidden]
    if inner == hidden and hidden in out:
        # Attention's output projection is square.
        out.remove(hidden)
    for own in ((inner + 2 * keys,), (inner, keys, keys), (inner, 2 * keys)):
        left = list(out)
        try:
            for width in own:
                left.remove(width)
        except ValueError:
            continue
        if left:
            return left
    return out


def vocab_of(ops: Sequence[StepOp], hidden: int, tp: int) -> int | None:
    """Classes of the loss, else columns of the widest matmul outside the blocks, times what was cut.

    None of a stage without the head.
    """
    linear = [(op, op.matmul) for op in ops if op.phase not in ("backward", "recompute", "optimizer")]
    weights = [(op, sizes) for op, sizes in linear if sizes is not None]
    losses = [op.shapes[0][-1] for op in ops if "log_softmax" in op.op and op.shapes and op.shapes[0]]
    outside = [n for op, (_, k, n) in weights if k == hidden and op.layer is None]
    widest = max(outside, default=0) * tp
    if losses:
        return max(losses) if not widest or max(losses) >= widest // tp else widest
    return widest or None
