"""What Kineto writes of a collective, for each generation of traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from synthetic.spec import Spec

BYTES: Final = {"BFloat16": 2, "Float": 4}
_TYPES: Final = {"BFloat16": "c10::BFloat16", "Float": "float"}
_C10D: Final = {
    "all_reduce": ("c10d::allreduce_", "allreduce", "nccl:all_reduce", "AllReduce_Sum_{}_RING_LL"),
    "all_gather": ("c10d::_allgather_base_", "_allgather_base", "nccl:_all_gather_base", "AllGather_RING_LL"),
    "reduce_scatter": (
        "c10d::_reduce_scatter_base_",
        "_reduce_scatter_base",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum_{}_RING_LL",
    ),
    "send": ("c10d::send", "send", "nccl:send {}->{}", "SendRecv"),
    "recv": ("c10d::recv_", "recv", "nccl:recv {}<-{}", "SendRecv"),
}


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as the program asks for it."""

    op: str
    group: str
    ranks: tuple[int, ...]
    message_bytes: int
    dtype: str = "BFloat16"
    description: str = "default_pg"
    peer: int | None = None
    """Other side of a send or recv."""


@dataclass(frozen=True, slots=True)
class Words:
    """Names and args of the events of one collective."""

    c10d: str
    c10d_args: dict[str, Any]
    args: dict[str, Any]
    annotation: str
    annotation_args: dict[str, Any]
    kernel: str
    kernel_args: dict[str, Any]


def elements(call: Call) -> tuple[int, int]:
    """Return (elements in, elements out) as torch counts them."""
    whole = call.message_bytes // BYTES[call.dtype]
    if call.op == "all_gather":
        return whole // len(call.ranks), whole
    if call.op == "reduce_scatter":
        return whole, whole // len(call.ranks)
    return whole, whole


def comm_words(spec: Spec, call: Call, rank: int, seq: int) -> Words:
    """Return what a trace of this generation says of a collective."""
    c10d, name, annotation, kernel = _C10D[call.op]
    into, out = elements(call)
    kind = _TYPES[call.dtype]
    listed = "TensorList" if call.op in ("all_reduce", "send", "recv") else kind
    if call.op in ("send", "recv"):
        annotation = annotation.format(rank, call.peer)
    c10d_args = {
        "Input type": [listed, "", "", "Scalar"],
        "Input Dims": [[[into]] if listed != kind else [into], [], [], []],
    }
    args: dict[str, Any] = {
        "Input type": [kind, "Scalar", "Scalar", "Scalar", "", "", ""],
        "Input Dims": [[into], [], [], [], [], [], []],
    }
    if spec.schema == "old":
        args["Input type"][0], args["Input Dims"][0] = listed, [] if listed != kind else [into]
        short = "float" if call.dtype == "Float" else "__nv_bfloat16"
        old = kernel.replace("AllReduce_Sum_{}_RING_LL", f"AllReduce_RING_LL_Sum_{short}")
        old = old.replace("ReduceScatter_Sum_{}_RING_LL", f"ReduceScatter_RING_LL_Sum_{short}")
        old = "AllGather_RING_LL_Sum_int8_t" if call.op == "all_gather" else old
        old = "SendRecv_RING_SIMPLE_Sum_int8_t" if call.op in ("send", "recv") else old
        full = f"ncclKernel_{old}(ncclDevComm*, unsigned long, ncclWork*)"
        shapes = {"Input type": [kind], "Input Dims": [[into]]}
        return Words(c10d, c10d_args, args, annotation, shapes, full, {})
    known = _known(spec, call, name, into, out)
    args = known | args
    if spec.schema == "seq":
        args |= {"Rank": rank, "Seq": seq, "Is asynchronized op": call.op != "send"}
        if call.peer is not None:
            source, target = (rank, call.peer) if call.op == "send" else (call.peer, rank)
            args |= {"Src Rank": source, "Dst Rank": target}
    kernel = kernel.format("bf16" if call.dtype == "BFloat16" else "f32")
    full = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
    shapes = {"Concrete Inputs": [""], "Input type": [kind], "Input Dims": [[into]]}
    return Words(c10d, c10d_args, args, annotation, shapes, full, known)


def _known(spec: Spec, call: Call, name: str, into: int, out: int) -> dict[str, Any]:
    """Return the args that operator and kernel share."""
    args: dict[str, Any] = {
        "Collective name": name,
        "In msg nelems": into,
        "Out msg nelems": out,
        "Group size": len(call.ranks),
        "dtype": call.dtype,
    }
    args |= {"Process Group Ranks": _ranks(call.ranks), "In split size": "[]", "Out split size": "[]"}
    if spec.schema in ("groups", "seq"):
        args |= {"Process Group Name": call.group, "Process Group Description": call.description}
    return args


def _ranks(ranks: tuple[int, ...]) -> str:
    """Return a list of ranks as Kineto prints it, shortened past thirty."""
    shown = [str(rank) for rank in ranks]
    return f"[{', '.join(shown if len(shown) <= 30 else [*shown[:30], '...'])}]"


def distributed_info(spec: Spec, rank: int, groups: dict[str, Call]) -> dict[str, Any]:
    """Return the `distributedInfo` of a rank's file."""
    if spec.schema in ("old", "sizes"):
        return {"backend": "nccl", "rank": rank, "world_size": spec.ranks}
    config = [
        {
            "pg_name": name,
            "pg_desc": call.description,
            "backend_config": "cuda:nccl",
            "pg_size": len(call.ranks),
            "ranks": list(call.ranks),
        }
        for name, call in groups.items()
        if rank in call.ranks
    ]
    info = {
        "backend": "nccl",
        "rank": rank,
        "world_size": spec.ranks,
        "pg_count": len(config),
        "pg_config": config,
    }
    return info | ({"nccl_version": "2.27.3"} if spec.schema == "seq" else {"nccl_version": "2.17.1"})
