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
    up_experts: int = 0
    """Part of `up` that is of routed experts; expert parallelism divides it."""
    down_experts: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.qkv + self.output + self.up + self.down + self.norms + self.router


def block_weights(model: ModelShape, tp: int = 1, ep: int = 1, expert_tp: int | None = None) -> BlockWeights:
    """Weights of a block, mean over the blocks, on a rank of `tp` tensor- and `ep` expert-parallel ranks.

    `expert_tp`: tensor-parallel ranks that divide one expert; None: all.
    """
    head = model.head_width
    matrix = model.hidden * model.ffn // tp
    routed, shared, router = 0, matrix, 0
    if model.experts > 1:
        dense = min(model.dense_layers, model.layers) / model.layers
        columns = model.expert_ffn or model.ffn
        local = max(1, model.experts // ep) * model.hidden * columns // (expert_tp or tp)
        routed = round((1 - dense) * local)
        shared = round(dense * matrix + (1 - dense) * model.shared_experts * model.hidden * columns / tp)
        router = round((1 - dense) * model.hidden * model.experts)
    inward = 2 if model.gated else 1
    return BlockWeights(
        qkv=model.hidden * head * (model.heads + 2 * model.kv_heads) // tp,
        output=model.hidden * head * model.heads // tp,
        up=inward * (routed + shared),
        down=routed + shared,
        norms=2 * model.hidden,
        router=router,
        up_experts=inward * routed,
        down_experts=routed,
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
