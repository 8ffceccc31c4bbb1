"""What a framework keeps in memory: bytes per parameter, and what its block and loss save for backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from shardtoll.ledger.answers.training_plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bytes are per parameter or per element of the tensor named."""

    name: str
    parameter_bytes: int
    """As used by forward and backward, or as kept in shards by FSDP."""
    master_bytes: int
    """A second copy for the optimizer; 0 if the parameters are in fp32 already."""
    accumulated_gradient_bytes: int
    """Buffers that live through all micro-batches; 0: gradients are born in backward."""
    bucket_bytes: int
    """DDP's buckets, copies of the gradients."""
    moment_bytes: int = 8
    """AdamW: two moments in fp32."""
    optimizer_shard: Literal["sharding", "dp"] = "sharding"
    logits_fp32_copies: int = 2
    """fp32 tensors of the logits' size that live at once in the loss."""
    logits_low_copies: int = 0
    """bf16 tensors of that size that live at the same time."""
    balanced_stages: bool = False
    """Stages get layers by their cost, with the output projection counted, instead of equal numbers."""
    fused_block: bool = False
    """Norms, SwiGLU and rotary embedding are fused and save their inputs only."""
    norm_saves: float = 1.0
    """Tensors of the hidden size that a norm saves beside its output, each of `compute` precision."""
    gathered_buffer: bool = False
    """Sequence parallel gathers into one persistent buffer."""


NANOTRON: Final = Recipe(
    "nanotron",
    parameter_bytes=2,
    master_bytes=4,
    accumulated_gradient_bytes=4,
    bucket_bytes=2,
    balanced_stages=True,
    gathered_buffer=True,
)
MEGATRON: Final = Recipe(
    "Megatron",
    parameter_bytes=2,
    master_bytes=4,
    accumulated_gradient_bytes=4,
    bucket_bytes=0,
    optimizer_shard="dp",
    fused_block=True,
)
TORCHTITAN: Final = Recipe(
    "torchtitan",
    parameter_bytes=4,
    master_bytes=0,
    accumulated_gradient_bytes=0,
    bucket_bytes=0,
    logits_fp32_copies=3,
)
PLAIN: Final = Recipe(
    "PyTorch",
    parameter_bytes=4,
    master_bytes=0,
    accumulated_gradient_bytes=0,
    bucket_bytes=4,
    logits_fp32_copies=3,
)


def recipe_of(plan: TrainingPlan) -> Recipe:
    """The recipe of the plan's framework; PyTorch's own for a framework that has none."""
    name = plan.framework.lower()
    if "nanotron" in name:
        return NANOTRON
    if "megatron" in name or "nemo" in name:
        return MEGATRON
    if "titan" in name or plan.layout.sharding == "fsdp":
        return TORCHTITAN
    return PLAIN
