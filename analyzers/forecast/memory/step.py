"""Allocations of one rank: state that stays, then micro-batches by the pipeline's schedule, then the optimizer."""

from __future__ import annotations

from collections import deque

from shardtoll.analyzers.forecast.memory.allocator import Event
from shardtoll.analyzers.forecast.memory.block import Block, Saved
from shardtoll.analyzers.forecast.memory.recipes import Recipe
from shardtoll.analyzers.forecast.memory.tape import Tape
from shardtoll.analyzers.forecast.memory.weights import embedding_weights, stage_layers
from shardtoll.ledger.answers.training_plan import TrainingPlan


class RankStep:
    """Two steps of a rank of `stage`: the second is steady, since the optimizer's state is born in the first."""

    def __init__(self, plan: TrainingPlan, recipe: Recipe, stage: int) -> None:
        self.plan, self.recipe, self.stage = plan, recipe, stage
        layout = plan.layout
        self.layers = stage_layers(plan.model, layout.pp, recipe.balanced_stages)[stage]
        self.last = stage == layout.pp - 1
        self.block = Block(plan, recipe)
        self.tape = Tape()
        self.weights = self.block.sizes.weights
        self.tables = embedding_weights(plan, stage)
        self.parameters = self.layers * self.weights.total + self.tables
        self.shards = (layout.shard_size or layout.dp) * layout.cp if layout.sharding == "fsdp" else 1
        self.optimizer_shards = 1 if layout.sharding == "ddp" else (layout.shard_size or layout.dp) * layout.cp
        element = 4 if plan.precision == "fp32" else 2
        self.logits = (
            layout.micro_batch * plan.sequence / layout.cp * plan.model.vocab / layout.tp if self.last else 0.0
        )
        self.element = element

    def events(self) -> list[Event]:
        """The allocations in order."""
        self._state()
        self._micro_batches()
        self._optimizer()
        self._micro_batches()
        self.tape.passing(self.parameters / self.optimizer_shards * 0)
        return self.tape.events

    def _state(self) -> None:
        r, tape, w = self.recipe, self.tape, self.weights
        tensors = [self.tables / 2] * 2 if self.tables else []
        for _ in range(self.layers):
            tensors += [w.qkv, w.output, w.up, w.down, w.norms]
        for elements in tensors:
            tape.new(elements * r.parameter_bytes / self.shards, "parameters")
        if r.accumulated_gradient_bytes:
            tape.new(self.parameters * r.accumulated_gradient_bytes / self.shards, "gradients")
        if r.master_bytes:
            tape.new(self.parameters * r.master_bytes / self.optimizer_shards, "optimizer")
        if r.bucket_bytes and self.plan.layout.dp * self.plan.layout.cp > 1 and self.plan.layout.sharding != "fsdp":
            for elements in tensors:
                tape.new(elements * r.bucket_bytes, "communication")
        if r.gathered_buffer and self.plan.layout.tp > 1:
            tape.new(self.block.sizes.full, "communication")
        self.tensors = tensors

    def _optimizer(self) -> None:
        half = self.recipe.moment_bytes // 2
        for elements in self.tensors:
            for _ in range(2):
                self.tape.new(elements * half / self.optimizer_shards, "optimizer")
        if self.plan.layout.sharding == "zero1" and self.optimizer_shards>1:
            self.tape.passing(self.parameters*2, category="communication")

    def _micro_batches(self) -> None:
        layout = self.plan.layout
        ahead = min(layout.pp - self.stage - 1, layout.accumulation - 1)
        waiting: deque[tuple[list[Saved], int, int]] = deque(self._forward() for _ in range(ahead))
        for _ in range(min(2, layout.accumulation - ahead)):
            waiting.append(self._forward())
            self._backward(*waiting.popleft())
        while waiting:
            self._backward(*waiting.popleft())

    def _forward(self) -> tuple[list[Saved], int, int]:
        first = self.tape.new(self.block.sizes.hidden, "activations")
        saved = [self.block.forward(self.tape) for _ in range(self.layers)]
        return saved, first, self._loss() if self.last else 0

    def _loss(self) -> int:
        """Forward of the output projection and the loss: what it saves, one fp32 tensor of the logits' size."""
        tape, r = self.tape, self.recipe
        low = tape.new(self.logits * self.element)
        wide = tape.new(self.logits * 4, "activations")
        others = [tape.new(self.logits * 4, "activations") for _ in range(r.logits_fp32_copies - 2)]
        if not r.logits_low_copies:
            tape.drop(low)
        kept = tape.new(self.logits * 4, "activations")
        tape.drop(wide, *others, *([low] if r.logits_low_copies else []))
        return kept

    def _backward(self, saved: list[Saved], first: int, loss: int) -> None:
        tape, s = self.tape, self.block.sizes
        weights: list[int] = []
        if self.last:
            low = tape.new(self.logits * self.element)
            tape.drop(loss)
            gradient = tape.new(s.hidden)
            weights.append(tape.new(self.plan.model.vocab * self.plan.model.hidden / self.plan.layout.tp * 2, "gradients"))
            tape.drop(low)
        else:
            gradient = tape.new(s.hidden)
        for kept in reversed(saved):
            tape.drop(*kept.take("output"))
            gradient, more = self.block.backward(tape, kept, gradient)
            weights += more
        if self.stage == 0:
            weights.append(tape.new(self.plan.model.vocab * self.plan.model.hidden / self.plan.layout.tp * 2, "gradients"))
        tape.drop(gradient, first, *weights)
