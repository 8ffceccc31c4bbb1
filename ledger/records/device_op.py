"""Records of what devices computed: the kernels of equal operators, added up by step and rank."""

from __future__ import annotations

from dataclasses import dataclass

from shardtoll.ledger.records.record import PHASES


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """Work of a rank's device for one operator, with one kind of inputs, in one step, as traces show it.

    The record without an operator holds the kernels that no operator on record launched.
    """

    step: int
    rank: int
    op: str | None
    """As the trace names it: `aten::mm`."""
    phase: str
    shapes: str | None
    """Input shapes as `bf16[64,32] bf16[32,16]`; None if not recorded (`record_shapes=True`)."""
    count: int
    """Calls that launched kernels."""
    device_ns: int
    """How long their kernels ran, summed; kernels side by side count each."""
    flops: int | None = None
    """FLOPs of all calls; None if the operator or its shapes are unknown."""
    moved_bytes: int | None = None
    """Least bytes that all calls must read and write, each operand once; None if unknown."""

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        for name in ("count", "device_ns", "flops", "moved_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} {value} < 0")
