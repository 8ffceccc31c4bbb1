"""Bytes that a collective moves, by the definitions of nccl-tests (doc/PERFORMANCE.md).

`message bytes` is the size nccl-tests prints. `wire bytes` is the number of bytes one rank must send for the
algorithm assumed. Reductions and gathers use a ring, broadcast and reduce a chain, all_to_all is pairwise,
the rest direct.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Op = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
]
OPS: Final[tuple[str, ...]] = get_args(Op)


def busbw_factor(op: str, group_size: int) -> float | None:
    """Return what algbw is multiplied with to get busbw; None for a barrier or an unknown op.

    Source: nccl-tests doc/PERFORMANCE.md; gather and scatter as in awsome-distributed-ai's table.
    """
    n = group_size
    if n < 1 or op not in OPS or op == "barrier":
        return None
    if op == "all_reduce":
        return 2 * (n - 1) / n
    if op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (n - 1) / n
    return 1.0


def wire_bytes(op: str, message_bytes: int | None, group_size: int, *, is_root: bool = False) -> int | None:
    """Return the bytes one rank sends, rounded up; None if the message size is unknown.

    `message_bytes` is in nccl-tests' sense: all_gather and gather count the whole output,
    reduce_scatter and scatter the whole input, all_to_all this rank's input. `is_root` matters
    for gather, scatter, reduce and broadcast only: a gather's or reduce's root sends nothing, a
    scatter's other ranks send nothing. In a broadcast chain every rank but the last sends the message. The
    last rank is unknown here, so each is counted as sending it.
    """
    n = group_size
    if op == "barrier":
        return 0
    if message_bytes is None or op not in OPS or n < 1:
        return None
    if n == 1 or op == "recv":
        return 0
    s = message_bytes
    if op == "all_reduce":
        return -(-2 * (n - 1) * s // n)
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return -(-(n - 1) * s // n)
    if op == "gather":
        return 0 if is_root else -(-s // n)
    if op == "scatter":
        return -(-(n - 1) * s // n) if is_root else 0
    if op == "reduce":
        return 0 if is_root else s
    return s
