"""Input of a forecast: a model's shape, its layout on GPUs and its batch. None means not stated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Checkpointing = Literal["none", "selective", "full"]
Sharding = Literal["ddp", "zero1", "zero2", "fsdp"]
"""State that replicas shard: nothing, the optimizer's state, gradients too, parameters too."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of identical blocks. `ffn` counts the columns of one projection."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool = False
    """Whether the feed-forward part has a gate, as SwiGLU: three matrices instead of two."""
    tied: bool = False
    """Whether the output projection is the embedding."""
    experts: int = 1
    topk: int = 1
    params: int | None = None
    """Published number of parameters; counted from the shape if None."""
    name: str = ""
    head_dim: int | None = None
    """Width of one attention head; `hidden / heads` if None."""
    expert_ffn: int | None = None
    """Columns of one expert's projection; `ffn` if None."""
    shared_experts: int = 0
    """Experts that every token passes, in addition to the `topk` routed ones."""
    dense_layers: int = 0
    """Leading blocks with one feed-forward part of `ffn` columns instead of experts."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a model has at least 1")

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.head_dim or max(1, self.hidden // self.heads)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a job divides a model and a batch. The world is dp x tp x pp x cp GPUs; ep divides dp x cp x tp."""

    dp: int = 1
    sharding: Sharding = "ddp"
    shard_size: int | None = None
    """Over how many of the `dp` ranks state is sharded (HSDP); all of them if None."""
    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    chunks: int = 1
    """Virtual stages of a pipeline rank."""
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    """Sequences of one micro-batch on one replica."""
    accumulation: int = 1
    """Micro-batches of one optimizer step."""
    checkpointing: Checkpointing = "none"
    schedule: str = "1F1B"
    async_tp: bool = False
    """Whether tensor-parallel collectives run in pieces that overlap their matmuls (torchtitan's async TP,
    Transformer Engine's communication overlap)."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "chunks", "cp", "ep", "micro_batch", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a layout has at least 1")
        if self.sharding not in get_args(Sharding) or self.checkpointing not in get_args(Checkpointing):
            raise ValueError(f"unknown sharding {self.sharding!r} or checkpointing {self.checkpointing!r}")

    @property
    def sequences(self) -> int:
        """Sequences of an optimizer step, over all replicas."""
        return self.dp * self.micro_batch * self.accumulation

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        return self.dp * self.tp * self.pp * self.cp


PRECISIONS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8")


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """One optimizer step that a forecast prices."""

    model: ModelShape
    layout: Layout
    sequence: int
    """Tokens of one sequence."""
    gpu: str
    """A key of the GPU table, as `h100-sxm`."""
    gpus_per_node: int = 8
    fabric: str | None = None
    precision: str = "bf16"
    framework: str = ""
    """As published: torchtitan, nanotron, composer FSDP1, NeMo/Megatron-Core, ...; empty if unknown."""
    compiled: bool = False
    notes: dict[str, str] = field(default_factory=dict)
    """Statements of a source beyond these fields."""

    @property
    def width_bytes(self) -> int:
        """Bytes of one activation, or of a parameter as it is gathered."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel ranks that divide one expert: none do if experts need these ranks to stand on."""
        layout = self.layout
        if "megatron-bridge" in self.framework.casefold():
            return 1
        return 1 if layout.ep > 1 and layout.ep > layout.dp * layout.cp else layout.tp

    def expert_shards(self, shards: int) -> float:
        """Return over how many ranks an expert is sharded if other parameters are over `shards` replicas.

        Expert parallel ranks are replicas of everything else, so that fewer of them hold the same experts:
        one rank at least.
        """
        if shards == 1:
            return 1.0
        return max(1.0, shards * self.layout.tp / (self.layout.ep * self.expert_tp))

    @property
    def sequences(self) -> int:
        """Sequences of one optimizer step over all replicas: the effective batch."""
        return self.layout.sequences

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step over all replicas."""
        return self.sequences * self.sequence
