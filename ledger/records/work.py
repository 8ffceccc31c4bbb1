"""Kind of work of a Compute record, by its operator's name."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import column

OPTIMIZER_STEP: Final = "optimizer.step"
"""The operator of the one record that stands for all that optimizers do to parameters in a step."""

NORMS: Final = (
    "aten.native_layer_norm.default",
    "aten.native_layer_norm_backward.default",
    "aten._fused_rms_norm.default",
    "aten._fused_rms_norm_backward.default",
)
LOSSES: Final = ("aten._log_softmax.default", "aten._log_softmax_backward_data.default")
EMBEDDINGS: Final = ("aten.embedding_dense_backward.default",)

_KINDS: Final = {
    OPTIMIZER_STEP: "optimizer",
    **dict.fromkeys(NORMS, "norm"),
    **dict.fromkeys(LOSSES, "loss"),
    **dict.fromkeys(EMBEDDINGS, "embedding"),
}


def kind_of_work(op: str) -> str:
    """Return `norm`, `loss`, `embedding`, `optimizer`, or `matmul` for matmuls, attention and their like."""
    return _KINDS.get(op, "matmul")


def matmuls(computes: pa.Table) -> pa.Table:
    """Return the rows of matmul-like operators."""
    ops = [op for op in computes.column("op").unique().to_pylist() if kind_of_work(op) == "matmul"]
    return computes.filter(pc.is_in(computes.column("op"), column(ops, pa.string())))


def total_flops(computes: pa.Table) -> float:
    """Return the FLOPs of all rows together; as a float, because 64 bits may not hold their sum."""
    flops = pc.cast(computes.column("flops"), pa.float64(), safe=False)
    return float(pc.sum(flops, min_count=0).as_py())
