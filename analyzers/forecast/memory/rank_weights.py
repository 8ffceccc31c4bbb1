"""Parameters of a rank: weights of a block, of embedding and output projection, and layers of a stage."""

from __future__ import annotations

from dataclasses import dataclass

from shardtoll.analyzers.shared.stage_dealing import dealt_by_weight
from shardtoll.ledger.answers.training_plan import ModelShape, TrainingPlan


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Elements of one block's weights on one rank, tensor and expert parallel counted."""

    qkv: int
    output: int
    up: int
    """First matrix of the feed-forward part, gate and up together, all local experts."""
    down: int
    norms: int
    router: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.qkv + self.output + self.up + self.down + self.norms + self.router


def block_weights(model: ModelShape, tp: int = 1, ep: int = 1) -> BlockWeights:
    """Weights of a block on a rank of `tp` tensor-parallel and `ep` expert-parallel ranks."""
    head = model.hidden // model.heads
    local_experts = max(1, model.experts // ep)
    columns = model.ffn * (2 if model.gated else 1)
    return BlockWeights(
        qkv=model.hidden * head * (model.heads + 2 * model.kv_heads) // tp,
        output=model.hidden * head * model.heads // tp,
        up=local_experts * model.hidden * columns // tp,
        down=local_experts * model.hidden * model.ffn // tp,
        norms=2 * model.hidden,
        router=model.hidden * model.experts if model.experts > 1 else 0,
    )


def parameter_count(model: ModelShape) -> int:
    """Parameters of the whole model: the published number, else counted from the shape."""
    if model.params is not None:
        return model.params
    embeddings = model.vocab * model.hidden * (1 if model.tied else 2)
    return embeddings + model.layers * block_weights(model).total + model.hidden


def stage_layers(model: ModelShape, pp: int, balanced: bool) -> list[int]:
    """Layers of each pipeline stage. `balanced`: a stage takes layers until it has its share of the cost."""
    if not balanced or pp == 1:
        return [model.layers // pp + (stage < model.layers % pp) for stage in range(pp)]
    return list(dealt_by_weight(model, pp))


def table_elements(plan: TrainingPlan, stage: int) -> int:
    """Elements of embedding and output projection on a rank of the stage."""
    model, layout = plan.model, plan.layout
    table = model.vocab * model.hidden // layout.tp
    if layout.pp == 1:
        return table * (1 if model.tied else 2)
    return table if stage in (0, layout.pp - 1) else 0
