"""Names of NVTX ranges and CUDA calls in the words that traces of torch.profiler use.

Steps, phases and batches are marked by habit: `step 12`, `iteration`, `forward`. The name of a range stays in
its new name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_CALL_TAIL: Final = re.compile(r"(_ptsz|_ptds)?_v\d+(_ptsz|_ptds)?$")
_OP_TAIL: Final = re.compile(r"(, seq = -?\d+)?(, op_id ?= ?-?\d+)?(, sizes = .*)?(, input_op_ids.*)?$", re.S)
_OPERATOR: Final = re.compile(r"^[a-z_]\w*::|^record_param_comms$|Backward\d*$")

_NCCL: Final = re.compile(
    r"^p?nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AlltoAll|AllToAll|Gather|Scatter"
    r"|Send|Recv)(?:_impl)?$"
)
_NCCL_OPS: Final = {
    "AllReduce": "allreduce",
    "AllGather": "allgather",
    "ReduceScatter": "reducescatter",
    "Broadcast": "broadcast",
    "Bcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "alltoall",
    "AllToAll": "alltoall",
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
}
_KERNEL_TYPE: Final = re.compile(
    r"nccl(?:Sym|Symk)?(?:Dev)?Kernel_(?:AllReduce|ReduceScatter|Reduce)_(?:\w+?_)?"
    r"(?P<type>f64|f32|f16|bf16|f8e4m3|f8e5m2|[iu](?:8|32|64)|float|double|half|__nv_bfloat16|u?int(?:8|32|64)_t)"
    r"(?=_|\b)"
)
"""The type in the name of a kernel that reduces; others are named after none, or after bytes."""
_TYPES: Final = {
    "f64": "double",
    "f32": "float",
    "f16": "half",
    "bf16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "float": "float",
    "double": "double",
    "half": "half",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
    "int8_t": "int8",
    "int32_t": "int32",
    "int64_t": "int64",
    "uint8_t": "uint8",
    "uint32_t": "uint32",
    "uint64_t": "uint64",
}

_WORD: Final = r"(?:(?:global|train(?:ing)?|optimi[sz]ation)[ _:./-]*)?"
_NUMBERED: Final = re.compile(
    rf"^(?:\W*epoch[ _:#=.]*\d+\W+)?(?P<family>\W*{_WORD}(?:step|iter(?:ation)?|batch)s?[ _:#=.,([-]*)"
    r"(?P<number>\d{1,18})"
    r"(?:\s*(?:/|of)\s*\d+)?\W*$",
    re.I,
)
_BARE: Final = re.compile(
    rf"^\W*(?:{_WORD}(?:step|iter(?:ation)?)|train(?:ing)?[ _]?batch|.*\brun_training_batch)\W*$", re.I
)
_FORWARD: Final = re.compile(r"(?:^|[ ._:/-])(?:forward|fwd)(?:[ _-]?(?:pass|step))?$", re.I)
_BACKWARD: Final = re.compile(r"(?:^|[ ._:/-])(?:backward|bwd)(?:[ _-]?(?:pass|step))?$", re.I)
_OPTIMIZER: Final = re.compile(r"(?:^|[ ._:/-])(?:optimi[sz]er|optim)(?:[ ._-]?(?:step|update))?$", re.I)
_DATA: Final = re.compile(
    r"^(?:(?:get|next|fetch|load)[ _]?(?:next[ _]?)?(?:batch|data)"
    r"|data(?:[ _]?(?:fetch|loading|loader|load))?)$",
    re.I,
)
_LONGEST: Final = 300
"""Longer names mark no step and no phase."""


def call(name: str) -> str:
    """Return a CUDA call's name without its version: `cudaLaunchKernel` for `cudaLaunchKernel_v7000`."""
    return _CALL_TAIL.sub("", name)


def operator(name: str) -> tuple[str, bool]:
    """Return the name that emit_nvtx was given, without what it adds, and whether an operator has it."""
    plain = _OP_TAIL.sub("", name, count=1)
    return plain, bool(_OPERATOR.search(plain[:_LONGEST]))


def nccl_op(name: str) -> str | None:
    """Return what an NCCL call does, as torch names it; None for calls that move nothing."""
    match = _NCCL.match(name[:_LONGEST])
    return _NCCL_OPS[match[1]] if match else None


def kernel_type(name: str) -> str | None:
    """Return the element type in an NCCL kernel's name; None if it has none."""
    match = _KERNEL_TYPE.search(name[:_LONGEST])
    return _TYPES.get(match["type"]) if match else None


@lru_cache(maxsize=4096)
def numbered(name: str) -> tuple[str, int] | None:
    """Return (what is counted, number) of a range such as `step 12`; None for other ranges."""
    match = _NUMBERED.match(name) if len(name) <= _LONGEST else None
    return (match["family"].lower(), int(match["number"])) if match else None


@lru_cache(maxsize=4096)
def is_bare_step(name: str) -> bool:
    """Whether a range may be a step that is not numbered, as `iteration`."""
    return len(name) <= _LONGEST and _BARE.match(name) is not None


@lru_cache(maxsize=4096)
def phase(name: str) -> str | None:
    """Return the phase in a range's name: forward, backward, optimizer or data; None for others."""
    if len(name) > _LONGEST:
        return None
    forward, backward = _FORWARD.search(name), _BACKWARD.search(name)
    if forward or backward:
        both = re.search("forward|fwd", name, re.I) and re.search("backward|bwd", name, re.I)
        return None if both else "forward" if forward else "backward"
    if _OPTIMIZER.search(name):
        return "optimizer"
    return "data" if _DATA.match(name) else None
