"""Time that the host takes for an operator, in launches of a kernel that has nothing to do.

An operator of an eager program costs the host more than its launch: Python, the module's call, views, and
what autograd notes. In a checkpointed block each saved tensor also goes through hooks, and backward runs
the block in Python again. If kernels are short, the device waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardtoll.analyzers.forecast.compute.grid import shares
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.ledger.records.dry import DryOp

_FUSED = 0.4
"""Launches of an operator that is compiled: one kernel stands for several, and nothing but it is called."""


class HostTimes:
    """Host times of the operators of one step."""

    def __init__(self, ops: Iterable[DryOp], constants: Constants, gpu: str) -> None:
        self._floor_ns = 1000 * constants.get("host_us", gpu)
        self._checkpointed = {op.module for op in ops if op.phase == "recompute" and op.module is not None}

    def of(self, op: DryOp) -> float:
        """Return the ns that the host needs until the operator is launched."""
        return self._floor_ns * (_FUSED if op.fused is not None else shares()[self._kind(op)])

    def _kind(self, op: DryOp) -> str:
        if op.phase == "recompute":
            return "host_recompute"
        if op.phase == "backward":
            return "host_backward"
        if op.phase == "forward":
            return "host_checkpointed_forward" if op.module in self._checkpointed else "host_forward"
        # An optimizer's, or the program's own: no autograd and no module.
        return "host_other"
