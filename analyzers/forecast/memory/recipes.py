"""Memory that frameworks keep: bytes per parameter, and tensors that block and loss keep until backward.

Read in each framework's public source; nothing here is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardtoll.ledger.answers.training_plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class Recipe:
    """One framework's way to keep a plan's state. Bytes are per parameter."""

    name: str
    parameter_bytes: int
    """Parameters as forward uses them, or as FSDP keeps them in shards."""
    master_bytes: int = 0
    """A copy in fp32 for the optimizer; 0 if the parameters are fp32 already."""
    accumulated_bytes: int = 0
    """Gradient buffers that live through all micro-batches; 0: gradients are born in backward."""
    gradient_bytes: int = 2
    """Gradients as backward makes them."""
    bucket_bytes: int = 0
    """DDP's buckets: copies of the gradients."""
    logits_copies: int = 2
    """fp32 tensors of the logits' size that live at once in forward, or in backward of the loss."""
    balanced_stages: bool = False
    """Stages get layers by cost, with the output projection counted, instead of equal numbers."""
    fused: bool = False
    """Rotary embedding and the gate's activation save their inputs only."""
    gathers_twice: bool = False
    """Sequence parallel gathers again in backward; otherwise the gathered input is saved."""


NANOTRON: Final = Recipe(
    "nanotron",
    parameter_bytes=2,
    master_bytes=4,
    accumulated_bytes=4,
    bucket_bytes=2,
    balanced_stages=True,
    gathers_twice=True,
)
MEGATRON: Final = Recipe(
    "megatron", parameter_bytes=2, master_bytes=4, accumulated_bytes=4, fused=True, gathers_twice=True
)
FSDP: Final = Recipe("fsdp", parameter_bytes=4, logits_copies=3)
DDP: Final = Recipe("ddp", parameter_bytes=4, gradient_bytes=4, bucket_bytes=4, logits_copies=3)


def recipe_of(plan: TrainingPlan) -> Recipe:
    """The recipe of the plan's framework; torch's own FSDP or DDP for one without."""
    name = plan.framework.lower()
    if "nanotron" in name:
        return NANOTRON
    if any(word in name for word in ("megatron", "nemo", "vtrain")):
        return MEGATRON
    return FSDP if plan.layout.sharding == "fsdp" else DDP
