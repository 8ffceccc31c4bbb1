"""The price of one row of a dry run: an operator or a collective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from shardtoll.analyzers.forecast.compute import (
    Attention,
    GroupedMatmul,
    Matmul,
    Streamed,
    Work,
    price_operator,
)
from shardtoll.analyzers.forecast.compute.grid import shares
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.network import FabricNetwork, Timed
from shardtoll.analyzers.roofline import Placement, place
from shardtoll.ledger.records.dry import DryOp
from shardtoll.ledger.records.record import Collective, Group

_FUSED: Final = 0.5
"""Share of the bytes of fused elementwise operators that still move: the rest stays in registers."""
_RATES: Final = {
    **dict.fromkeys(("aten.gelu", "aten.gelu_backward"), "memory_gelu"),
    **dict.fromkeys(("aten.native_layer_norm", "aten.native_layer_norm_backward"), "memory_layer_norm"),
    **dict.fromkeys(("aten._softmax", "aten._log_softmax"), "memory_softmax"),
    **dict.fromkeys(("aten._softmax_backward_data", "aten._log_softmax_backward_data"), "memory_softmax"),
}
"""Operator that reaches less of the memory bandwidth than a copy -> which of `shares` it reaches."""
_CONVOLUTIONS: Final = ("aten.convolution", "aten.convolution_backward")
_MOST_PRODUCTS: Final = 2
_PCIE_GBPS: Final = 25.0
"""Between host and device: a 16-lane link of the fourth generation moves so many GB/s in practice."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices the rows of one rank."""

    gpu: str
    network: FabricNetwork
    constants: Constants
    groups: Mapping[str, Group]
    per_host: int

    def operator(self, op: DryOp) -> Timed:
        """Return the operator's time on the device."""
        if op.op.startswith("memcpy."):
            moved_ns = (op.read_bytes + op.written_bytes) / _PCIE_GBPS
            return Timed(moved_ns, moved_ns / 2, moved_ns * 2)
        work = work_of(op)
        price = price_operator(self.gpu, work)
        kept = 1.0 / products_of(op, work)
        if op.kind in ("gemm", "grouped_gemm", "attention"):
            # The kernel of attention is known here. Factors fitted to frameworks include their kernel choice.
            kept *= self.constants.get("sustained", f"{self.gpu}.bfloat16", self.gpu)
        return Timed(price.expected_ns / kept, price.low_ns / kept, price.high_ns / kept)

    def collective(self, row: Collective) -> Timed | None:
        """Return the collective's time once all ranks have arrived; None if size, group or op is unknown."""
        placement = self._placement(row)
        # A barrier is an all_reduce of one element.
        op, size = ("all_reduce", 4) if row.op == "barrier" else (row.op, row.message_bytes)
        if placement is None or size is None:
            return None
        timed = self.network.time(op, size, placement)
        if timed is None:
            return None
        factor = self.constants.get("net" if placement.spans_nodes else "near", self.gpu)
        call_ns = 1000 * self.constants.get("call_us", self.gpu) if placement.ranks > 1 else 0.0
        return Timed(
            timed.expected_ns * factor + call_ns, timed.low_ns * factor, timed.high_ns * factor + 2 * call_ns
        )

    def _placement(self, row: Collective) -> Placement | None:
        group = self.groups.get(row.group)
        if group is None:
            return None
        if row.op in ("send", "recv") and row.root is not None and row.root != row.rank:
            near = row.root // self.per_host == row.rank // self.per_host
            return Placement(2, 1, 2) if near else Placement(2, 2, 1, self.per_host)
        made = place(group.ranks, self.per_host)
        if made is None or not made.spans_nodes:
            return made
        sharing = max(1, self.per_host // made.ranks_per_node)
        return Placement(made.ranks, made.nodes, made.ranks_per_node, sharing, made.fewest_ranks)


def products_of(op: DryOp, work: Work) -> int:
    """Return how many products of the operator's size it runs: a convolution's backward has two, its own
    gradient's and its weight's."""
    if not isinstance(work, Matmul) or not work.flops:
        return 1
    # Kept dry runs may hold torch's count of a grouped backward, which is larger by the number of groups.
    return min(_MOST_PRODUCTS, max(1, round(op.flops / work.flops)))


def work_of(op: DryOp) -> Work:
    """Return the operator as the price list knows it."""
    dtype = op.dtype or "float32"
    if op.kind == "gemm" and op.m and op.n and op.k:
        work = Matmul(op.m, op.n, op.k, dtype, op.batch or 1)
        if op.op.rpartition(".")[0] in _CONVOLUTIONS:
            return replace(work, moved_bytes=(op.read_bytes + op.written_bytes) / products_of(op, work))
        return work
    if op.kind == "grouped_gemm" and op.groups and op.m and op.n and op.k:
        return GroupedMatmul(op.groups, max(1, op.m // op.groups), op.n, op.k, dtype)
    if op.kind == "attention" and op.seq_q and op.seq_kv and op.heads:
        return Attention(
            op.batch or 1,
            op.seq_q,
            op.seq_kv,
            op.heads,
            op.kv_heads or op.heads,
            op.head_dim or 128,
            dtype,
            bool(op.causal),
            "backward" if op.backward else "forward",
        )
    moved = op.read_bytes + op.written_bytes
    if op.fused is not None:
        return Streamed(moved * _FUSED)
    rate = shares()[_RATES.get(op.op.rpartition(".")[0], "memory")]
    return Streamed(moved * shares()["memory"] / rate)
