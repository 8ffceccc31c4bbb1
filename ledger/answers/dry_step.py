"""A dry run's answer about a step: time, rates, exposed communication and memory, with bands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.answers.plan_memory import fits_in

NoTokens: TypeAlias = Literal[
    "no embedding", "embedding without shapes", "embeddings disagree", "shared by unknown ranks"
]
"""Why the tokens of a step are unknown. Nothing looked them up, or it is not on record how many. Either of
two tables may be theirs. No name of a mesh dimension says how many ranks share them."""


@dataclass(frozen=True, slots=True)
class DryMachine:
    """The machine that a dry run is made for."""

    gpu: str
    """A key of the GPU table, as `h100-sxm`, or the name that its file gives it."""
    title: str
    device: str
    """As its driver names it: `NVIDIA H100 80GB HBM3`."""
    memory_bytes: int
    multiprocessors: int
    capability: tuple[int, int]
    fabric: str
    """Name of a fabric, also of one from a file."""
    per_host: int
    """GPUs of one host."""
    gpu_toml: str | None = None
    """Figures of a GPU that came from a file, as TOML; None for a shipped one."""
    fabric_toml: str | None = None
    """Figures of a fabric that came from a file, as TOML; None for a shipped one."""
    has_cudnn: bool = True
    """Whether convolutions run in cuDNN, which torch lets use TensorFloat-32; AMD's library does not."""


@dataclass(frozen=True, slots=True)
class DryMemory:
    """Peak memory of one rank, in bytes."""

    allocated_bytes: int
    """Peak of what tensors take, rounded as torch's allocator rounds."""
    reserved_bytes: Band
    """Peak memory of the process: the allocator's segments, NCCL's buffers, workspaces, the context."""
    capacity_bytes: int
    """Memory of the GPU."""
    at_peak: Mapping[str, int]
    """Allocated bytes by category when they were highest."""
    by_module: tuple[tuple[str, int], ...]
    """Modules with the most allocated bytes at that moment."""
    by_source: tuple[tuple[str, int], ...]
    """Lines of the program with the most allocated bytes at that moment."""
    timeline: tuple[tuple[float, int, int], ...] = ()
    """(ns from the step's start, allocated, reserved), a few hundred points of the step."""
    outside_bytes: int = 0
    """Reserved bytes that no allocator of torch holds: the context, NCCL's buffers."""
    retries: int = 0
    """How often torch has to free its cached segments, since the first step, for the step to fit."""

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None if only its upper band does not."""
        return fits_in(self.reserved_bytes.expected, self.reserved_bytes.high, self.capacity_bytes)


@dataclass(frozen=True, slots=True)
class DryStep:
    """The forecast of one dry step on one rank."""

    world_size: int
    rank: int
    gpu: str
    fabric: str
    step_ns: Band | None
    """None if a collective has no price: see `unpriced`."""
    compute_ns: float
    """Device time of operators."""
    exposed_ns: Mapping[str, float]
    """Communication that compute waits for, by mesh dimension (or group) and op."""
    bubble_ns: float | None
    """Time in which a pipeline stage waits for others; None if other stages were not run."""
    idle_ns: float
    """The rest: the device waits for the host."""
    tokens: int | None
    """Tokens of one step over all ranks; None if unknown."""
    tokens_per_s_gpu: Band | None
    flops: int
    """FLOPs of this rank, without recomputation."""
    mfu: Band | None
    hfu: Band | None
    """The same with recomputed operations."""
    memory: DryMemory | None
    price_per_step: Band | None = None
    """In the currency of `--price`."""
    price_per_billion_tokens: Band | None = None
    notes: tuple[str, ...] = field(default=())
    """Assumptions of the dry run."""
    unpriced: Mapping[str, int] = field(default_factory=dict)
    """Collectives without a price, counted by mesh dimension (or group) and op. The given parts of the step
    treat them as taking no time."""
    no_tokens: NoTokens | None = None
    """Why `tokens` is None."""
