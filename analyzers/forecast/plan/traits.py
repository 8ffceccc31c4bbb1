"""Known facts about frameworks: which kernels run and what overlaps. No number here is
fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.forecast.compute.work import Kernel


@dataclass(frozen=True, slots=True)
class Traits:
    """One framework's way to run a plan."""

    name: str
    hidden_passes: float
    """Times that forward reads or writes a tensor of [tokens, hidden] in norms, residuals and dropout."""
    qkv_passes: float
    """The same of [tokens, query + key + value], for rotary embedding and transposes."""
    ffn_passes: float
    """The same of [tokens, feed-forward columns], for the activation."""
    loss_bytes: float
    """Bytes per logit that the loss reads and writes, forward and backward."""
    kernels: int
    """Kernels that one block launches forward."""
    embedding_kernels: int = 0
    """Kernels that take the batch apart, look it up and mask what other ranks hold; 0: not counted."""
    head_kernels: int = 16
    """Kernels that output projection and loss launch forward."""
    accumulate_bytes: float = 0.0
    """Bytes per parameter that adding a micro-batch's gradient moves."""
    gradient_bytes: int = 2
    """Bytes of one gradient as it is reduced over replicas."""
    optimizer_bytes: float = 32.0
    """Bytes per parameter that clip and optimizer step move."""
    overlaps_data: bool = True
    """Whether gradients are reduced during the backward."""
    overlaps_pipeline: bool = False
    """Whether a stage computes while it sends."""
    overlaps_tensor: bool = False
    """Whether tensor-parallel collectives run during their matmuls."""
    gathers_early: bool = False
    """Whether parameters of a sharded optimizer are gathered during the next forward."""
    unfused_attention: bool = False
    """Whether attention writes its scores to memory: matmul, softmax, dropout and matmul as kernels of their
    own."""
    attention: Kernel = "best"
    """Its kernel of fused attention."""
    sequence_parallel: bool = False
    """Whether it shards norms over the tensor-parallel group where the plan does not say."""


_LOOKUP_KERNELS: Final = 12
"""VocabParallelEmbedding of Megatron-LM with batch, positions and dropout: masks, lookups, sums."""
_LOSS_KERNELS: Final = 23
"""Its vocab_parallel_cross_entropy, which nanotron has too, is 18 kernels; then norm, projection, mean."""

TRAITS: Final = {
    each.name: each
    for each in (
        Traits("composer", 12, 1, 3, 28, 18, optimizer_bytes=30, accumulate_bytes=0, attention="flash1"),
        Traits("torchtitan", 20, 5, 5, 28, 30, overlaps_pipeline=True, sequence_parallel=True,
        gradient_bytes=4, attention="flash2"),
        Traits(
            "vtrain", 10, 3, 2, 36, 26, _LOOKUP_KERNELS, _LOSS_KERNELS,
            accumulate_bytes=10, gradient_bytes=2, optimizer_bytes=36, overlaps_data=False,
            unfused_attention=True,
        ),
        Traits(
            "megatron", 10, 3, 3, 36, 20, _LOOKUP_KERNELS, _LOSS_KERNELS,
            accumulate_bytes=8, gradient_bytes=4, optimizer_bytes=40, overlaps_data=False, attention="flash2",
        ),
        Traits(
            "nanotron", 14, 5, 4, 40, 32, _LOOKUP_KERNELS, _LOSS_KERNELS,
            accumulate_bytes=10, gradient_bytes=4, optimizer_bytes=44, overlaps_data=False,
            sequence_parallel=True, attention="flash2",
        ),
        Traits(
            "nemo", 8, 2, 3, 24, 16,
            accumulate_bytes=8, gradient_bytes=4, optimizer_bytes=34, overlaps_pipeline=True,
            overlaps_tensor=True, gathers_early=True, sequence_parallel=True,
        ),
        Traits("jax", 8, 2, 3, 20, 10, gathers_early=True),
        Traits("generic", 14, 4, 4, 28, 26, attention="flash2"),
    )
}  # fmt: skip
"""Counted in each framework's public source: fused norms and activations pass a tensor once in and once
out."""

_NAMES: Final = (
    ("torchtitan", "torchtitan"),
    ("composer", "composer"),
    ("foundry", "composer"),
    ("nanotron", "nanotron"),
    ("megatron-bridge", "nemo"),
    ("nemo", "nemo"),
    ("megatron-core", "nemo"),
    ("megatron-style", "vtrain"),
    ("vtrain", "vtrain"),
    ("megatron", "megatron"),
    ("jax", "jax"),
    ("maxtext", "jax"),
    ("pax", "jax"),
)


def traits_of(framework: str) -> Traits:
    """Return the traits of a framework by what its published name holds; `generic` for an unknown one."""
    text = framework.casefold()
    for word, name in _NAMES:
        if word in text:
            return TRAITS[name]
    return TRAITS["generic"]
