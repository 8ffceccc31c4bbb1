"""Records of a dry step: its operators, its storages and its waits, in the one order in which they came.

Operators, collectives, waits, births and deaths of storages share one counter, `order`, on each rank and in
each step. No time in these records was measured: `start_ns` and `duration_ns` are the forecast's, and None
before a forecast priced the step. Streams have the names that `stream` of a dry collective has. Work runs on
`compute` unless the program says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from shardtoll.ledger.records.record import PHASES

OpKind = Literal["gemm", "grouped_gemm", "attention", "elementwise", "copy", "other"]
OP_KINDS: Final[tuple[str, ...]] = get_args(OpKind)

StorageCategory = Literal[
    "parameter", "gradient", "optimizer", "activation", "temporary", "communication", "input"
]
STORAGE_CATEGORIES: Final[tuple[str, ...]] = get_args(StorageCategory)

ONLY_FIRST: Final = "dry-only-first"
"""Kind of the notice of a run that has its program's first step alone, which builds the optimizer's state."""

COMPUTE_STREAM: Final = "compute"
"""The stream that work runs on unless the program says otherwise."""


def _check(record: object, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and value < 0:
            raise ValueError(f"{type(record).__name__}: {name} {value} < 0")


@dataclass(frozen=True, slots=True)
class DryOp:
    """One operator that the device of one rank would run in a dry step, as one kernel or a few."""

    step: int
    rank: int
    order: int
    """Place among all that the step asked of this rank, from 0."""
    op: str
    """As `aten.mm.default`."""
    kind: str
    """One of `OP_KINDS`. `elementwise` covers all that memory bandwidth bounds, reductions and norms
    included. `copy` moves a tensor and computes nothing; `other` has no price of its own."""
    phase: str
    flops: int
    """Multiply and add counted as two; causal attention counts the half that its mask leaves."""
    read_bytes: int
    """Each operand once."""
    written_bytes: int
    dtype: str | None
    """Type of the multiplied operands, else of the result: `bfloat16`. Products of float32 that run as
    TensorFloat-32 are of `tf32`."""
    stream: str = COMPUTE_STREAM
    module: str | None = None
    """Fully qualified module name; the empty string is the root module."""
    parameter: str | None = None
    source: str | None = None
    """`file.py:line (function)` of the user's own code."""
    shapes: str | None = None
    """Input shapes as `bf16[64,32] bf16[32,16]`."""
    batch: int | None = None
    """GEMM: independent products. Attention: sequences. None of all else."""
    m: int | None = None
    """GEMM: rows of the result; of a grouped one those of all groups together."""
    n: int | None = None
    """GEMM: columns of the result."""
    k: int | None = None
    """GEMM: the dimension summed over."""
    groups: int | None = None
    """Grouped GEMM: products, as experts."""
    seq_q: int | None = None
    """Attention: queries of one sequence."""
    seq_kv: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    causal: bool | None = None
    backward: bool | None = None
    """Attention: whether this is its backward."""
    fused: int | None = None
    """Number of the region that torch.compile would fuse this operator in; None outside all."""
    elements: int | None = None
    """Elements of the result: what an optimizer updates, of a fused one."""
    start_ns: int | None = None
    """Priced: when it starts, ns since the run's epoch; None before a forecast priced the step."""
    duration_ns: int | None = None
    """Forecast duration."""
    low_ns: int | None = None
    """Priced: lower end of the 80 % band of `duration_ns`."""
    high_ns: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in OP_KINDS:
            raise ValueError(f"unknown kind of operator {self.kind!r}")
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        _check(self, "order", "flops", "read_bytes", "written_bytes", "batch", "m", "n", "k", "groups")
        _check(self, "seq_q", "seq_kv", "heads", "kv_heads", "head_dim", "elements", "duration_ns")


@dataclass(frozen=True, slots=True)
class DryStorage:
    """One storage on the device of one rank; views share it."""

    step: int | None
    """The step in which it was born; None before the first recorded one."""
    rank: int
    born: int
    """Place in the order of its step; 0 if it was there when the recording began."""
    freed: int | None
    """Place in the order of `freed_step`; None if it outlives the recording."""
    freed_step: int | None
    bytes: int
    category: str
    """One of `STORAGE_CATEGORIES`. An activation is saved for backward; a temporary is not."""
    stream: str = COMPUTE_STREAM
    """Whose pool of the caching allocator it comes from."""
    phase: str = "other"
    """Phase in which it was born."""
    op: str | None = None
    """The operator that made it."""
    module: str | None = None
    parameter: str | None = None
    source: str | None = None
    used_on: str | None = None
    """Other streams that used it (`record_stream`), comma separated; they delay its reuse."""

    def __post_init__(self) -> None:
        if self.category not in STORAGE_CATEGORIES:
            raise ValueError(f"unknown category of storage {self.category!r}")
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        _check(self, "born", "freed", "bytes")


@dataclass(frozen=True, slots=True)
class DryWait:
    """A stream, or the host, waits here for earlier work of another stream."""

    step: int
    rank: int
    order: int
    """Place in the step's order: what `stream` is given from here on waits."""
    stream: str | None
    """Who waits; None: the host, and with it all that is launched afterwards."""
    for_stream: str
    for_order: int
    """It waits for all that `for_stream` was given before this place; may be -1: nothing of this step."""
    collective: int | None = None
    """`order` of the collective, if a collective is what it waits for."""
    phase: str = "other"
    source: str | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        _check(self, "order", "collective")
