"""Storages of one block: born in forward, freed in backward, in the order in which eager torch does it."""

from __future__ import annotations

from dataclasses import dataclass

from shardtoll.analyzers.forecast.memory.rank_weights import BlockWeights, block_weights
from shardtoll.analyzers.forecast.memory.recipes import Recipe
from shardtoll.analyzers.forecast.memory.tape import Tape
from shardtoll.ledger.answers.training_plan import Checkpointing, ModelShape, TrainingPlan

Saved = dict[str, list[int]]
"""Numbers of the storages that one block of one micro-batch keeps for its backward, by what they are."""


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Bytes of a block's tensors on one rank, for one micro-batch."""

    full: float
    """Hidden states before they are cut over tensor-parallel ranks."""
    hidden: float
    """Hidden states as norms and residuals keep them: cut under sequence parallel."""
    query: float
    keys: float
    """Keys and values together."""
    ffn: float
    """One projection of the feed-forward part."""
    statistics: float
    """Statistics of the softmax that flash attention keeps."""
    kept_input: float
    """Input of a column-parallel matmul as it is saved."""
    weights: BlockWeights


def block_sizes(plan: TrainingPlan, recipe: Recipe, host_ahead: bool) -> BlockSizes:
    """Sizes by the plan's shape.

    `host_ahead`: the host launches far ahead of the device. Gathered inputs then wait for the communication
    stream before the allocator may use their memory again, so each layer's stays.
    """
    model, layout = plan.model, plan.layout
    element = plan.width_bytes
    tokens = layout.micro_batch * plan.sequence / layout.cp
    full = tokens * model.hidden * element
    head = model.head_width
    hidden = full / layout.tp if layout.sequence_parallel else full
    return BlockSizes(
        full=full,
        hidden=hidden,
        query=tokens * model.heads * head * element / layout.tp,
        keys=tokens * 2 * model.kv_heads * head * element / layout.tp,
        ffn=tokens * _columns(model) * element / layout.tp,
        statistics=tokens * model.heads / layout.tp * 4,
        kept_input=hidden if recipe.gathers_twice and not host_ahead else full,
        weights=block_weights(model, layout.tp, layout.ep, plan.expert_tp),
    )


def _columns(model: ModelShape) -> float:
    """Columns of one projection that a token passes, mean over the blocks."""
    if model.experts <= 1:
        return model.ffn
    dense = min(model.dense_layers, model.layers) / model.layers
    passed = (model.topk + model.shared_experts) * (model.expert_ffn or model.ffn)
    return dense * model.ffn + (1 - dense) * passed


class Block:
    """Writes forward and backward of one block onto a tape."""

    def __init__(self, plan: TrainingPlan, recipe: Recipe, host_ahead: bool) -> None:
        self.sizes = block_sizes(plan, recipe, host_ahead)
        self.gated = plan.model.gated
        self.checkpointing: Checkpointing = plan.layout.checkpointing
        self.fused = recipe.fused or plan.compiled
        self.gradient_bytes = recipe.gradient_bytes
        self.cut = self.sizes.hidden != self.sizes.full
        self.copies_output = plan.layout.micro_batch > 1 and recipe.name == "nanotron"

    def forward(self, tape: Tape) -> Saved:
        """The block's forward; returns what it saves. `output` is the input of the next block."""
        kept = self._run(tape)
        if self.checkpointing == "none":
            return kept
        output = kept.pop("output")
        for numbers in kept.values():
            tape.drop(*numbers)
        if self.checkpointing == "full":
            return {"output": output}
        # Operator policy of torchtitan: attention's output and every second matmul stay.
        s = self.sizes
        chosen = [
            tape.new(size, "activations")
            for size in (s.query, s.keys / 2, s.query, s.statistics, s.ffn, s.hidden)
        ]
        return {"chosen": chosen, "output": output}

    def backward(self, tape: Tape, saved: Saved, gradient: int) -> tuple[int, list[int]]:
        """The block's backward: the gradient of its input, and the storages of its weights' gradients."""
        if self.checkpointing != "none":
            again = self._run(tape)
            tape.drop(*again.pop("output"), *saved.pop("chosen", []))
            saved = {**again, "output": saved["output"]}
        tape.drop(*saved.pop("output"))
        return self._back(tape, saved, gradient)

    def _reduced(self, tape: Tape) -> int:
        """Output of a row-parallel matmul: whole first, then cut."""
        whole = tape.new(self.sizes.full)
        if not self.cut:
            return whole
        part = tape.new(self.sizes.hidden)
        tape.drop(whole)
        return part

    def _run(self, tape: Tape) -> Saved:
        s, kept, new = self.sizes, {}, tape.new
        kept["norm1"] = [new(s.kept_input, "activations")]
        joined = new(s.query + s.keys)
        if self.fused:
            kept["query"] = [new(s.query, "activations"), new(s.keys, "activations")]
            tape.drop(joined)
        else:
            permuted = new(s.query + s.keys)
            tape.drop(joined)
            joined = new(s.keys)
            keys = new(s.keys, "activations")
            tape.drop(joined)
            kept["query"] = [new(s.query, "activations"), keys]
            tape.drop(permuted)
        kept["attention"] = [new(s.query, "activations"), new(s.statistics, "activations")]
        if self.copies_output:
            kept["attention"].append(new(s.query, "activations"))
        projected = self._reduced(tape)
        kept["residual"] = [new(s.hidden, "activations")]
        tape.drop(projected)
        kept["norm2"] = [new(s.kept_input, "activations")]
        kept["up"] = [new(s.ffn * (2 if self.gated else 1), "activations")]
        kept["product"] = [new(s.ffn, "activations")]
        if self.gated and not self.fused:
            kept["product"].append(new(s.ffn, "activations"))
        projected = self._reduced(tape)
        kept["output"] = [new(s.hidden, "activations")]
        tape.drop(projected)
        return kept

    def _back(self, tape: Tape, saved: Saved, gradient: int) -> tuple[int, list[int]]:
        s, w, new = self.sizes, self.sizes.weights, tape.new
        gathered = [new(s.full)] if self.cut else []
        inner = new(s.ffn)
        weights = [self._weight(tape, w.down)]
        tape.drop(*gathered)
        if self.gated:
            parts = [new(s.ffn), new(s.ffn)]
            joined = new(2 * s.ffn)
            tape.drop(*parts)
        else:
            joined = new(s.ffn)
        tape.drop(inner, *saved["product"], *saved["up"])
        gradient = self._column(tape, joined, w.up, weights, [*saved["norm2"], *saved["residual"]], gradient)
        gathered = [new(s.full)] if self.cut else []
        inner = new(s.query)
        weights.append(self._weight(tape, w.output))
        tape.drop(*gathered)
        parts = [new(s.query), new(s.keys), new(2 * s.query)]
        tape.drop(inner, *saved["attention"], *saved["query"])
        joined = new(s.query + s.keys)
        tape.drop(*parts)
        gradient = self._column(tape, joined, w.qkv, weights, saved["norm1"], gradient)
        weights.append(self._weight(tape, w.norms + w.router))
        return gradient, weights

    def _weight(self, tape: Tape, elements: int) -> int:
        return tape.new(elements * self.gradient_bytes, "gradients")

    def _column(
        self, tape: Tape, joined: int, elements: int, weights: list[int], freed: list[int], gradient: int
    ) -> int:
        """Backward of a column-parallel matmul, of the norm before it and of the residual's sum."""
        s = self.sizes
        inner = tape.new(s.full)
        if self.cut:
            part = tape.new(s.hidden)
            weights.append(self._weight(tape, elements))
            tape.drop(joined, inner)
            inner = part
        else:
            weights.append(self._weight(tape, elements))
            tape.drop(joined)
        normed = tape.new(s.hidden)
        tape.drop(inner)
        total = tape.new(s.hidden)
        tape.drop(normed, gradient, *freed)
        return total
