"""An event's facts about a collective, in the ledger's words: op, dtype, message bytes, group.

Sizes follow nccl-tests (see `ledger.records.volume`). Element counts are used if a trace gives them,
otherwise `Input Dims`. For every collective of torch's process groups these are the shapes of the *inputs*.
An all_gather's annotation shows the shard (`_allgather_base` hands its input tensor to the profiler), a
reduce_scatter's the whole.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final

from shardtoll.profiler.traces.file.trace_columns import CommArgs

BACKENDS: Final = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "rccl:", "hccl:", "c10d::")
UNKNOWN: Final = "unknown"

_OPS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "recvanysource": "recv",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
}
_TAILS: Final = re.compile(r"(_into)?(_tensor)?(_base|_single|_oop|_sparse|_coalesced|_)*$")
_LONGEST: Final = 200
"""Longer names are no collective's; patterns are not tried on the rest of them."""

MOST_BYTES: Final = 2**50
"""A message of more bytes is a damaged number."""

_SHARED: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Operations of which NCCL counts what one rank has."""

_PEER: Final = re.compile(r"(?:send|recv)\D*(\d+)\s*(?:->|<-)\s*(\d+)")

_DTYPES: Final = {
    "float": ("float32", 4),
    "float32": ("float32", 4),
    "double": ("float64", 8),
    "float64": ("float64", 8),
    "half": ("float16", 2),
    "float16": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "int8": ("int8", 1),
    "byte": ("uint8", 1),
    "unsigned char": ("uint8", 1),
    "uint8": ("uint8", 1),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "int16": ("int16", 2),
    "int": ("int32", 4),
    "int32": ("int32", 4),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "int64": ("int64", 8),
    "uint16": ("uint16", 2),
    "unsigned short": ("uint16", 2),
    "uint32": ("uint32", 4),
    "unsigned int": ("uint32", 4),
    "uint64": ("uint64", 8),
    "unsigned long": ("uint64", 8),
    "bool": ("bool", 1),
    "complexhalf": ("complex32", 4),
    "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "float8_e8m0fnu": ("float8_e8m0fnu", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}


@lru_cache(maxsize=4096)
def op_of(name: str | None) -> str | None:
    """Return the ledger's op for `allreduce`, `nccl:_all_gather_base`, ...; None for what we do not know.

    `wait` and `coalesced` name no collective.
    """
    if not name:
        return None
    name = name[:_LONGEST]
    for prefix in BACKENDS:
        name = name.removeprefix(prefix)
    word = re.split(r"[ #(]", name.strip().lower(), maxsplit=1)[0].lstrip("_")
    word = _TAILS.sub("", word) or word
    return _OPS.get(word.replace("_", ""))


@lru_cache(maxsize=1024)
def dtype_of(word: str | None) -> tuple[str | None, int | None]:
    """Return torch's name of the type and its bytes; a type we do not know keeps its name and has no size."""
    if not word:
        return None, None
    plain = word.removeprefix("torch.")
    dtype = _DTYPES.get(plain.lower()) or _DTYPES.get(plain.removeprefix("c10::").lower())
    return dtype or (plain.removeprefix("c10::"), None)


def dtype_in(args: CommArgs) -> tuple[str | None, int | None]:
    """Return type and element size as the args say, else as the one type of all its tensors."""
    if args.dtype:
        return dtype_of(args.dtype)
    kinds = {kind for kind, dims in zip(args.types or (), args.dims or (), strict=False) if dims}
    kinds = kinds or {kind for kind in args.types or () if dtype_of(kind)[1] is not None}
    return dtype_of(kinds.pop()) if len(kinds) == 1 else (None, None)


def message_bytes(op: str, args: CommArgs, group_size: int | None) -> int | None:
    """Return the size nccl-tests would print; None if the args do not have it. A barrier has 0."""
    if op == "barrier":
        return 0
    width = dtype_in(args)[1]
    elements = _elements(op, args, group_size)
    size = _stated(op, args, group_size) if width is None or elements is None else elements * width
    return size if size is not None and size <= MOST_BYTES else None


def _stated(op: str, args: CommArgs, group_size: int | None) -> int | None:
    """Return the size that the args give in bytes."""
    if args.whole_bytes is not None or args.share_bytes is None:
        return args.whole_bytes
    if op not in _SHARED:
        return args.share_bytes
    return None if group_size is None else args.share_bytes * group_size


def _elements(op: str, args: CommArgs, group_size: int | None) -> int | None:
    counts = (args.in_elements, args.out_elements)
    if any(count is not None and count > 0 for count in counts):
        into, out = (count if count else None for count in counts)
        if op == "all_to_all":
            # A rank that sends nothing says 0, and means it: the received part does not count in its message.
            return args.in_elements if args.in_elements is not None else out
        if op in ("reduce_scatter", "scatter"):
            return into
        if op in ("all_gather", "gather"):
            return out if out is not None else None
        return into if into is not None else out
    if args.in_elements == args.out_elements == 0 and args.name is not None and not args.dims:
        return 0
    shapes = [dims for dims in args.dims or () if dims]
    if not shapes:
        return None
    total = sum(math.prod(dims) for dims in shapes)
    if op in ("all_gather", "gather"):
        return None if group_size is None else total * group_size
    return total


def peer_of(
    op: str | None, args: CommArgs, rank: int, name: str | None = None, ranks: tuple[int, ...] = ()
) -> int | None:
    """Return the other side of a send or recv, or the root of a rooted op: a global rank, None if unknown.

    `name` is the annotation, as `nccl:send 0->1`, which counts ranks within the group; `ranks` is the group.
    """
    if args.peer_place is not None:
        return ranks[args.peer_place] if args.peer_place < len(ranks) else None
    if op == "send" and args.target_rank is not None:
        return args.target_rank
    if op == "recv" and args.source_rank is not None:
        return args.source_rank
    if op not in ("send", "recv"):
        return args.root
    match = _PEER.search((name or "")[:_LONGEST])
    sides = [int(side) for side in match.groups()] if match else []
    if ranks and all(side < len(ranks) for side in sides):
        sides = [ranks[side] for side in sides]
    others = [side for side in sides if side != rank]
    return others[0] if len(others) == 1 else None


def ranks_in(args: CommArgs) -> tuple[int, ...]:
    """Return the global ranks of the group: as listed, else by start and stride; empty if unknown."""
    if args.ranks:
        return args.ranks
    size, start, stride = args.group_size, args.rank_start, args.rank_stride
    if not size or start is None or start < 0 or size > 1_000_000:
        return ()
    if size == 1:
        return (start,)
    return tuple(start + nth * stride for nth in range(size)) if stride is not None and stride > 0 else ()
