"""The matmuls and attentions of one recorded step of one rank, with sizes, whatever recorded them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.records.layers import layer_pattern

_TENSOR: Final = re.compile(r"([a-z]+[0-9]+[a-z0-9]*)\[([0-9,]*)\]")
_MATMULS: Final = ("mm", "addmm", "linear", "_scaled_mm")
_OUTER: Final = ("scaled_dot_product_attention", "flex_attention")
_MIDDLE: Final = (
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    *("_scaled_dot_product_attention_math", "_scaled_dot_product_fused_attention_overrideable"),
)
_INNER: Final = {
    "_cudnn_attention_forward": (0, 1, 2, 3),
    "_flash_attention_forward": (0, 2, 1, 3),
    "_efficient_attention_forward": (0, 2, 1, 3),
}
_ATTENTIONS: Final = {
    **dict.fromkeys(_OUTER, (0, (0, 1, 2, 3))),
    **dict.fromkeys(_MIDDLE, (1, (0, 1, 2, 3))),
    **{name: (2, order) for name, order in _INNER.items()},
}
"""Operator -> how deep its call lies in an attention, and the positions of batch, heads, sequence and dim in
its shapes. Torch's kernels of depth 2 except cuDNN's take [batch, sequence, heads, dim]
(native_functions.yaml)."""
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
        return self.op in _ATTENTIONS and len(self.shapes) >= 3 and all(len(s) == 4 for s in self.shapes[:2])

    @property
    def attended(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of an attention's queries and keys as [batch, heads, sequence, dim], whatever its layout."""
        order = _ATTENTIONS[self.op][1]
        queries, keys = (tuple(shape[place] for place in order) for shape in self.shapes[:2])
        return queries, keys

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
        "record it by audit() or shardtoll dryrun, trace with record_shapes=True, or give --model alone",
    )


def attention_modules(report: Report) -> set[frozenset[str]]:
    """Return the modules with attention that ranks hold, each such set once; none if modules are unknown."""
    stages: set[frozenset[str]] = set()
    if not report.tables["computes"].num_rows:
        return stages
    for rank in report.run.ranks_seen:
        try:
            ops = step_ops(report, rank)
        except UsageError:
            continue
        modules = {op.module for op in ops if op.is_attention and op.phase == "forward"}
        if None in modules:
            return set()
        stages.add(frozenset(module for module in modules if module is not None))
    return stages - {frozenset()}


def outermost(attentions: Sequence[StepOp]) -> list[StepOp]:
    """Return attentions without the operators that they called themselves, which a trace may hold too."""
    least: dict[tuple[object, ...], int] = {}
    keys = [(op.module, op.phase, op.attended) for op in attentions]
    depths = [_ATTENTIONS[op.op][0] for op in attentions]
    for key, depth in zip(keys, depths, strict=True):
        least[key] = min(depth, least.get(key, depth))
    return [op for op, key, depth in zip(attentions, keys, depths, strict=True) if depth == least[key]]


def _op(row: dict[str, object], with_module: bool) -> StepOp:
    tensors = _TENSOR.findall(str(row["shapes"]))
    return StepOp(
        _short(str(row["op"])),
        str(row["phase"]),
        str(row["module"]) if with_module and row["module"] is not None else None,
        1 if with_module else int(str(row["count"])),
        tuple(tuple(int(size) for size in sizes.split(",") if size) for _, sizes in tensors),
        tensors[0][0] if tensors else "",
    )


def _short(name: str) -> str:
    return name.split("::")[-1].removeprefix("aten.").split(".")[0]


def precision_of(report: Report, ops: list[StepOp]) -> str:
    """The precision of the matmuls, as a plan names it; bf16 if no matmul says."""
    for op in ops:
        if op.matmul is not None or op.is_attention:
            name = next((name for start, name in _WIDTHS.items() if op.dtype.startswith(start)), "bf16")
            return "tf32" if name == "fp32" and _in_tf32(report) else name
    return "bf16"


def _in_tf32(report: Report) -> bool:
    """Whether a dry run's matmuls ran as TensorFloat-32, which shapes do not show. Measured runs do not say.

    Convolutions have a switch of their own and say nothing of the matmuls.
    """
    table = report.tables["dry_ops"].select(["op", "dtype", "flops"])
    flops: Counter[str] = Counter()
    for row in table.to_pylist():
        if _short(row["op"]) in _MATMULS:
            flops[str(row["dtype"])] += row["flops"]
    return bool(flops) and flops.most_common(1)[0][0] == "tf32"
