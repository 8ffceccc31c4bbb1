"""What CommDebugMode counts in a step beside what the ledger records of the same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch.distributed.tensor.debug import CommDebugMode

from overheads.cases import Program

Counts = Mapping[str, int]
"""Name of an op as in the ledger -> how many a rank issued in the step."""

FOLDED: Final = {
    "all_reduce": ("all_reduce", "all_reduce_coalesced", "allreduce_", "allreduce_coalesced_"),
    "all_gather": (
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "_allgather_base_",
        "allgather_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
    ),
    "reduce_scatter": (
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "_reduce_scatter_base_",
        "reduce_scatter_",
        "reduce_scatter_tensor_coalesced_",
    ),
    "all_to_all": ("all_to_all_single", "alltoall_", "alltoall_base_", "shard_dim_alltoall"),
    "broadcast": ("broadcast", "broadcast_"),
    "reduce": ("reduce_",),
    "gather": ("gather_",),
    "scatter": ("scatter_",),
}
"""The ledger's name of an op -> what functional collectives and c10d call it."""

_OF: Final = {name: op for op, names in FOLDED.items() for name in names}


def fold(counts: Mapping[Any, int]) -> Counts:
    """Give CommDebugMode's counts the ledger's names; an operator that is not known keeps its own."""
    folded: Counter[str] = Counter()
    for operator, count in counts.items():
        name = str(operator).rpartition(".")[2]
        folded[_OF.get(name, name)] += count
    return folded


def disagreeing(theirs: Counts, ours: Counts) -> dict[str, tuple[int, int]]:
    """Return the ops CommDebugMode sees any of and the ledger has not just as many of: theirs, ours."""
    both = {op: (seen, ours.get(op, 0)) for op, seen in theirs.items() if seen}
    return {op: (seen, recorded) for op, (seen, recorded) in both.items() if seen != recorded}


def missed(theirs: Counts, ours: Counts) -> dict[str, int]:
    """Return the ops the ledger has and CommDebugMode sees none of, with the ledger's counts."""
    return {op: count for op, count in ours.items() if count and not theirs.get(op)}


def count(program: Program, survey: Callable[[], Any]) -> tuple[Counts, Counts | None]:
    """Count one step of each: CommDebugMode's, and this rank's in the ledger; None but on rank 0.

    `survey` opens a session whose only step is surveyed.
    """
    mode = CommDebugMode()  # type: ignore[no-untyped-call]
    with mode:
        program.step()
    theirs = fold(mode.get_comm_counts())
    with survey() as session:
        program.step()
    if session.ledger is None:
        return theirs, None
    rows = session.ledger.tables["collectives"].select(["rank", "step", "op"]).to_pylist()
    return theirs, Counter(row["op"] for row in rows if row["rank"] == 0 and row["step"] == 0)
