"""Storages of one block: born in forward, freed in backward, in the order in which eager torch does it."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardtoll.analyzers.forecast.memory.recipes import Recipe
from shardtoll.analyzers.forecast.memory.tape import Tape
from shardtoll.analyzers.forecast.memory.weights import BlockWeights, block_weights
from shardtoll.ledger.answers.training_plan import Checkpointing, TrainingPlan


@dataclass(slots=True)
class Saved:
    """Numbers of the storages that one block of one micro-batch keeps for its backward."""

    groups: dict[str, list[int]] = field(default_factory=dict)

    def take(self, name: str) -> list[int]:
        """The group's numbers; it is empty afterwards."""
        return self.groups.pop(name, [])


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
    weights: BlockWeights
    gathered: float = 0.0
    """What a column-parallel matmul saves of its input beside the norm's own output."""


def block_sizes(plan: TrainingPlan) -> BlockSizes:
    """Sizes by the plan's shape: bf16 activations unless the plan computes in fp32."""
    model, layout = plan.model, plan.layout
    element = 4 if plan.precision == "fp32" else 2
    tokens = layout.micro_batch * plan.sequence / layout.cp
    full = tokens * model.hidden * element
    head = model.hidden // model.heads
    return BlockSizes(
        full=full,
        hidden=full / layout.tp if layout.sequence_parallel else full,
        query=full / layout.tp,
        keys=tokens * 2 * model.kv_heads * head * element / layout.tp,
        ffn=tokens * model.ffn * element * model.topk / layout.tp,
        statistics=tokens * model.heads / layout.tp * 4,
        weights=block_weights(model, layout.tp, layout.ep),
        gathered=full - full / layout.tp if layout.sequence_parallel and plan.notes.get("g") else 0.0,
    )


class Block:
    """Writes forward and backward of one block onto a tape."""

    def __init__(self, plan: TrainingPlan, recipe: Recipe) -> None:
        self.sizes = block_sizes(plan)
        self.recipe = recipe
        self.gated = plan.model.gated
        self.tp = plan.layout.tp
        self.checkpointing: Checkpointing = plan.layout.checkpointing
        self.fused = recipe.fused_block or plan.compiled
        self.copies_output = plan.layout.micro_batch > 1 and recipe.name == "nanotron"

    def forward(self, tape: Tape) -> Saved:
        """The block's forward; what it saves. The last storage is the block's output, input of the next."""
        if self.checkpointing == "full":
            output = tape.new(self.sizes.hidden, "activations")
            kept = self._run(tape)
            for name in list(kept.groups):
                tape.drop(*kept.take(name))
            return Saved({"output": [output]})
        kept = self._run(tape)
        if self.checkpointing == "selective":
            self._forget(tape, kept)
        return kept

    def backward(self, tape: Tape, saved: Saved, gradient: int) -> tuple[int, list[int]]:
        """The block's backward: the gradient of its input, and the storages of its weights' gradients."""
        if self.checkpointing != "none":
            again = self._run(tape)
            for name in list(saved.groups):
                if name != "output":
                    tape.drop(*saved.take(name))
            tape.drop(*again.take("output"))
            again.groups["output"] = saved.take("output")
            saved = again
        return self._back(tape, saved, gradient)

    def _forget(self, tape: Tape, kept: Saved) -> None:
        # torchtitan's operator policy: attention and every second matmul stay.
        s = self.sizes
        for name in ("norm1", "norm2", "product", "activation", "residual", "qkv", "up", "attention"):
            tape.drop(*kept.take(name))
        kept.groups["kept"] = [
            tape.new(size, "activations") for size in (s.query, s.keys / 2, s.query, s.ffn, s.hidden)
        ]

    def _norm(self, tape: Tape) -> list[int]:
        return [tape.new(self.sizes.hidden+self.sizes.gathered, "activations")]

    def _reduced(self, tape: Tape) -> int:
        """Output of a row-parallel matmul: whole first, then cut."""
        whole = tape.new(self.sizes.full)
        if self.tp == 1 or self.sizes.hidden == self.sizes.full:
            return whole
        part = tape.new(self.sizes.hidden)
        tape.drop(whole)
        return part

    def _run(self, tape: Tape) -> Saved:
        s, kept = self.sizes, Saved()
        kept.groups["norm1"] = self._norm(tape)
        qkv = tape.new(s.query + s.keys)
        if not self.fused:
            permuted = tape.new(s.query + s.keys)
            tape.drop(qkv)
            joined = tape.new(s.keys)
            keys = tape.new(s.keys, "activations")
            tape.drop(joined)
            query = tape.new(s.query, "activations")
            tape.drop(permuted)
            kept.groups["qkv"] = [query, keys]
        else:
            kept.groups["qkv"] = [tape.new(s.query, "activations"), tape.new(s.keys, "activations")]
            tape.drop(qkv)
        attention = [tape.new(s.query, "activations"), tape.new(s.statistics, "activations")]
        if self.copies_output:
            attention.append(tape.new(s.query, "activations"))
        kept.groups["attention"] = attention
        projected = self._reduced(tape)
        kept.groups["residual"] = [tape.new(s.hidden, "activations")]
        tape.drop(projected)
        kept.groups["norm2"] = self._norm(tape)
        kept.groups["up"] = [tape.new(s.ffn * (2 if self.gated else 1), "activations")]
        if self.gated and not self.fused:
            kept.groups["activation"] = [tape.new(s.ffn, "activations")]
        kept.groups["product"] = [tape.new(s.ffn, "activations")]
        projected = self._reduced(tape)
        kept.groups["output"] = [tape.new(s.hidden, "activations")]
        tape.drop(projected)
        return kept

    def _weight(self, tape: Tape, elements: int) -> int:
        return tape.new(elements * 2, "gradients")

    def _back(self, tape: Tape, saved: Saved, gradient: int) -> tuple[int, list[int]]:
        s, w = self.sizes, self.sizes.weights
        weights: list[int] = []
        whole = tape.new(s.full) if s.hidden != s.full else None
        product = tape.new(s.ffn)
        weights.append(self._weight(tape, w.down))
        tape.drop(*saved.take("product"), *([] if whole is None else [whole]))
        if self.gated:
            up, activation = tape.new(s.ffn), tape.new(s.ffn)
            tape.drop(product, *saved.take("activation"))
            gate = tape.new(s.ffn)
            tape.drop(activation)
            joined = tape.new(2 * s.ffn)
            tape.drop(gate, up)
        else:
            joined = tape.new(s.ffn)
            tape.drop(product)
        tape.drop(*saved.take("up"))
        gradient = self._column(tape, joined, w.up, weights, saved.take("norm2"), saved.take("residual"), gradient)
        whole = tape.new(s.full) if s.hidden != s.full else None
        attention = tape.new(s.query)
        weights.append(self._weight(tape, w.output))
        if whole is not None:
            tape.drop(whole)
        parts = [tape.new(s.query), tape.new(s.keys)]
        accumulated = tape.new(2 * s.query)
        tape.drop(attention, accumulated, *saved.take("attention"), *saved.take("qkv"))
        joined = tape.new(s.query + s.keys)
        tape.drop(*parts)
        gradient = self._column(tape, joined, w.qkv, weights, saved.take("norm1"), [], gradient)
        weights.append(self._weight(tape, w.norms))
        if w.router:
            weights.append(self._weight(tape, w.router))
        return gradient, weights

    def _column(
        self,
        tape: Tape,
        joined: int,
        elements: int,
        weights: list[int],
        norm: list[int],
        residual: list[int],
        gradient: int,
    ) -> int:
        """Backward of a column-parallel matmul, of the norm before it and of the residual's sum."""
        s = self.sizes
        inner = tape.new(s.full)
        if s.hidden != s.full:
            part = tape.new(s.hidden)
        weights.append(self._weight(tape, elements))
        tape.drop(joined)
        if s.hidden != s.full:
            tape.drop(inner)
            inner = part
        tape.drop(*norm)
        normed = tape.new(s.hidden)
        tape.drop(inner)
        total = tape.new(s.hidden)
        tape.drop(normed, gradient, *residual)
        return total
