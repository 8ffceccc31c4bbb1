"""The matmuls and attentions of one recorded step of one rank, with sizes, whatever recorded them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.records.layers import layer_pattern

_TENSOR: Final = re.compile(r"([a-z]+[0-9]+[a-z0-9]*)\[([0-9,]*)\]")
_MATMULS: Final = ("mm", "addmm", "linear", "_scaled_mm")
_BATCHED: Final = ("bmm", "baddbmm")
_WIDTHS: Final = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "f8": "fp8"}


@dataclass(frozen=True, slots=True)
class StepOp:
    """One operator with its input shapes."""

    op: str
    """As `mm`, without library and overload."""
    phase: str
    module: str | None
    count: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: str

    @property
    def is_attention(self) -> bool:
        """Whether it is fused attention."""
        return "attention" in self.op and len(self.shapes) >= 3 and len(self.shapes[0]) == 4

    @property
    def matmul(self) -> tuple[int, int, int] | None:
        """Rows, inner and columns of a matmul with a weight; None of another operator."""
        if self.op not in _MATMULS:
            return None
        matrices = [shape for shape in self.shapes if len(shape) == 2]
        if len(matrices) < 2 or matrices[0][1] != matrices[1][0]:
            return None
        return matrices[0][0], matrices[0][1], matrices[1][1]

    @property
    def layer(self) -> str | None:
        """The repeated part that its module is in, as `layers.3`; None outside repeated parts."""
        if not self.module or layer_pattern(self.module) == self.module:
            return None
        parts = self.module.split(".")
        last = max(
            number
            for number, part in enumerate(parts)
            if part.isdigit() and "expert" not in parts[number - 1]
        )
        return ".".join(parts[: last + 1])


def step_ops(report: Report, rank: int | None = None) -> list[StepOp]:
    """Return the operators of one whole step of a rank, in order.

    UsageError if no step of it has operators with shapes.
    """
    for name, module in (("computes", True), ("device_ops", False)):
        table = report.tables[name]
        if rank is not None:
            table = table.filter(pc.equal(table.column("rank"), rank))
        if not table.num_rows:
            continue
        first = table.slice(0, 1).to_pylist()[0]
        of_rank = table.filter(pc.equal(table.column("rank"), first["rank"]))
        last = pc.max(of_rank.column("step"))
        rows = of_rank.filter(pc.equal(of_rank.column("step"), last)).to_pylist()
        made = [_op(row, module) for row in rows if row["shapes"] and row["op"]]
        if made:
            return made
    raise UsageError(
        "the run has no operators with shapes, so it does not say which model it trained",
        "record it by audit() or `shardtoll dryrun`, trace with record_shapes=True, or give --model",
    )


def _op(row: dict[str, object], with_module: bool) -> StepOp:
    tensors = _TENSOR.findall(str(row["shapes"]))
    name = str(row["op"]).split("::")[-1].removeprefix("aten.").split(".")[0]
    return StepOp(
        name,
        str(row["phase"]),
        str(row["module"]) if with_module and row["module"] is not None else None,
        1 if with_module else int(str(row["count"])),
        tuple(tuple(int(size) for size in sizes.split(",") if size) for _, sizes in tensors),
        tensors[0][0] if tensors else "",
    )


def precision_of(ops: list[StepOp]) -> str:
    """The precision of the matmuls, as a plan names it; bf16 if no matmul says."""
    for op in ops:
        if op.matmul is not None or op.is_attention:
            return next((name for start, name in _WIDTHS.items() if op.dtype.startswith(start)), "bf16")
    return "bf16"
