"""Allocations of one rank: its state, micro-batches by the pipeline's schedule, the optimizer."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from shardtoll.analyzers.forecast.memory.allocator import Event
from shardtoll.analyzers.forecast.memory.block_storages import Block, Saved
from shardtoll.analyzers.forecast.memory.rank_weights import stage_layers, table_elements
from shardtoll.analyzers.forecast.memory.recipes import Recipe
from shardtoll.analyzers.forecast.memory.tape import Tape
from shardtoll.ledger.answers.training_plan import TrainingPlan

_GATHER_STREAM: Final = 1
_REDUCE_STREAM: Final = 2


class _Waiting(NamedTuple):
    """A micro-batch between its forward and its backward."""

    blocks: list[Saved]
    embedded: int
    loss: int | None


class _Tensor(NamedTuple):
    """Elements of a parameter on the rank before replicas shard it, those of routed experts among them."""

    elements: float
    experts: float = 0.0


class RankAllocations:
    """Two steps of a rank of `stage`. The optimizer's state is born in the first, so the second is steady."""

    def __init__(self, plan: TrainingPlan, recipe: Recipe, stage: int, host_ahead: bool) -> None:
        layout = plan.layout
        self.plan, self.recipe, self.stage = plan, recipe, stage
        self.layers = stage_layers(plan.model, layout.pp, recipe.balanced_stages)[stage]
        self.last = stage == layout.pp - 1
        self.block = Block(plan, recipe, host_ahead)
        self.tape = Tape()
        self.table = plan.model.vocab * plan.model.hidden / layout.tp
        tables = table_elements(plan, stage)
        w = self.block.sizes.weights
        self.tensors = [_Tensor(self.table)] * round(tables / self.table)
        up, down = _Tensor(w.up, w.up_experts), _Tensor(w.down, w.down_experts)
        self.tensors += [
            _Tensor(w.qkv), _Tensor(w.output), up, down, _Tensor(w.norms + w.router)
        ] * self.layers  # fmt: skip
        self.of_block = _Tensor(w.total, w.up_experts + w.down_experts)
        self.parameters = sum(each.elements for each in self.tensors)
        self.all = _Tensor(self.parameters, sum(each.experts for each in self.tensors))
        shards = (layout.shard_size or layout.dp) * layout.cp
        self.fsdp = layout.sharding == "fsdp" and shards > 1
        self.stays_gathered = self.fsdp and layout.pp > 1
        self.state_shards = shards if self.fsdp else 1
        self.optimizer_shards = 1 if layout.sharding == "ddp" else shards
        self.element = plan.width_bytes
        tokens = layout.micro_batch * plan.sequence / layout.cp
        self.logits = tokens * plan.model.vocab / layout.tp if self.last else 0.0

    def events(self) -> list[Event]:
        """The allocations in order."""
        self._state()
        self._micro_batches(1)
        self._optimizer()
        self._micro_batches(1)
        return self.tape.events

    def state_bytes(self) -> float:
        """Bytes that live through the whole step: parameters, buffers and the optimizer's state."""
        r, layout, count = self.recipe, self.plan.layout, self.parameters
        cut = self.optimizer_shards if layout.sharding in ("zero2", "fsdp") else 1
        total = self._cut(self.all, self.state_shards) * r.parameter_bytes
        total += self._cut(self.all, cut) * r.accumulated_bytes
        total += self._cut(self.all, self.optimizer_shards) * (r.master_bytes + 8)
        if self._has_buckets():
            total += count * r.bucket_bytes
        if self._has_gather_buffer():
            total += self.block.sizes.full
        if self.stays_gathered:
            total += count * (self.element + 4)
        elif self.fsdp:
            total += sum(each.elements for each in self._tables()) * self.element
        return total

    def _cut(self, tensor: _Tensor, shards: int) -> float:
        """Elements that the rank keeps if `shards` replicas share a parameter, fewer of them an expert."""
        others = (tensor.elements - tensor.experts) / shards
        return others + tensor.experts / self.plan.expert_shards(shards)

    def _has_buckets(self) -> bool:
        layout = self.plan.layout
        return self.recipe.bucket_bytes > 0 and layout.dp * layout.cp > 1 and not self.fsdp

    def _has_gather_buffer(self) -> bool:
        layout = self.plan.layout
        return self.recipe.gathers_twice and layout.tp > 1 and layout.sequence_parallel

    def _state(self) -> None:
        r, tape, layout = self.recipe, self.tape, self.plan.layout
        for each in self.tensors:
            tape.new(self._cut(each, self.state_shards) * r.parameter_bytes, "parameters")
        if r.accumulated_bytes:
            shards = self.optimizer_shards if layout.sharding in ("zero2", "fsdp") else 1
            tape.new(self._cut(self.all, shards) * r.accumulated_bytes, "gradients")
        if r.master_bytes:
            tape.new(self._cut(self.all, self.optimizer_shards) * r.master_bytes, "optimizer")
        if self._has_buckets():
            for each in self.tensors:
                tape.new(each.elements * r.bucket_bytes, "communication")
        if self._has_gather_buffer():
            tape.new(self.block.sizes.full, "communication")
        if self.fsdp:  # embedding and output projection stay gathered, in a pipeline all parameters
            for each in self.tensors if self.stays_gathered else self._tables():
                tape.new(each.elements * self.element, "communication")
        if self.stays_gathered:  # and gradients add up in fp32 until the last micro-batch reduces them
            for each in self.tensors:
                tape.new(each.elements * 4, "gradients")

    def _tables(self) -> list[_Tensor]:
        """Elements of embedding and output projection."""
        return self.tensors[: len(self.tensors) - 5 * self.layers]

    def _optimizer(self) -> None:
        for each in self.tensors:
            for _ in range(2):  # both moments of AdamW in fp32
                self.tape.new(self._cut(each, self.optimizer_shards) * 4, "optimizer")
        if self.plan.layout.sharding in ("zero1", "zero2") and self.optimizer_shards > 1:
            self.tape.passing(self.parameters * self.recipe.parameter_bytes, category="communication")

    def _micro_batches(self, pairs: int) -> None:
        layout = self.plan.layout
        ahead = min(layout.pp - self.stage - 1, layout.accumulation - 1)
        if layout.chunks > 1:  # interleaved: a rank holds more micro-batches of fewer layers
            ahead = min(ahead + (layout.pp - 1) // layout.chunks, layout.accumulation - 1)
        waiting: deque[_Waiting] = deque(self._forward() for _ in range(ahead))
        sharded: list[int] = []
        for _ in range(min(pairs, layout.accumulation - ahead)):
            waiting.append(self._forward())
            sharded = self._backward(waiting.popleft(), sharded)
        while waiting:
            sharded = self._backward(waiting.popleft(), sharded)
        self.tape.drop(*sharded)

    def _gather(self) -> int:
        """FSDP gathers a block's parameters: a buffer of its own stream, then whole parameters."""
        if self.stays_gathered:
            return 0
        elements = self.block.sizes.weights.total
        buffer = self.tape.new(elements * self.element, "communication", _GATHER_STREAM)
        whole = self.tape.new(elements * self.element, "communication")
        self.tape.drop(buffer)
        return whole

    def _forward(self) -> _Waiting:
        tape = self.tape
        embedded = tape.new(self.block.sizes.hidden, "activations")
        blocks: list[Saved] = []
        gathered = self._gather() if self.fsdp else 0
        for index in range(self.layers):
            following = self._gather() if self.fsdp and index + 1 < self.layers else 0
            blocks.append(self.block.forward(tape))
            if gathered:
                tape.drop(gathered)
            gathered = following
        return _Waiting(blocks, embedded, self._loss() if self.last else None)

    def _loss(self) -> int:
        """Output projection and loss, forward: saves one fp32 tensor of the logits' size."""
        tape = self.tape
        low = tape.new(self.logits * self.element)
        wide = tape.new(self.logits * 4, "activations")
        tape.drop(low)
        kept = tape.new(self.logits * 4, "activations")
        tape.drop(wide)
        return kept

    def _loss_backward(self, loss: int) -> int:
        tape = self.tape
        copies = [tape.new(self.logits * 4) for _ in range(self.recipe.logits_copies - 1)]
        low = tape.new(self.logits * self.element)
        tape.drop(loss, *copies)
        gradient = tape.new(self.block.sizes.hidden)
        tape.drop(low)
        return gradient

    def _backward(self, micro_batch: _Waiting, sharded: list[int]) -> list[int]:
        """Backward of a micro-batch; returns FSDP's sharded gradients, which stay until the step's end."""
        tape = self.tape
        weights: list[int] = []
        if micro_batch.loss is not None:
            gradient = self._loss_backward(micro_batch.loss)
            weights.append(tape.new(self.table * self.recipe.gradient_bytes, "gradients"))
        else:
            gradient = tape.new(self.block.sizes.hidden)
        first = not sharded
        for index, kept in enumerate(reversed(micro_batch.blocks)):
            gathered = self._gather() if self.fsdp else 0
            following = self._gather() if self.fsdp and index + 1 < self.layers else 0
            gradient, more = self.block.backward(tape, kept, gradient)
            if self.fsdp:
                sharded += self._reduce(more, first)
                tape.drop(*[each for each in (following, gathered) if each])
            else:
                weights += more
        if self.stage == 0:
            weights.append(tape.new(self.table * self.recipe.gradient_bytes, "gradients"))
        tape.drop(gradient, micro_batch.embedded, *weights)
        if self.fsdp and first:
            for each in self._tables():
                sharded.append(tape.new(self._cut(each, self.state_shards) * 4, "gradients", _REDUCE_STREAM))
        return sharded

    def _reduce(self, weights: list[int], first: bool) -> list[int]:
        """FSDP reduces a block's gradients in fp32; its shard is born in the stream that reduces."""
        tape, elements = self.tape, self.block.sizes.weights.total
        whole = tape.new(elements * 4, "communication")
        tape.drop(*weights)
        kept = tape.new(self._cut(self.of_block, self.state_shards) * 4, "gradients", _REDUCE_STREAM)
        tape.drop(whole)
        if first:
            return [kept]
        tape.drop(kept)
        return []
