"""How many ranks work on the same tokens: stages of a pipeline and tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from shardtoll.ledger import Ledger
from shardtoll.ledger.records.mesh_names import parts_of
from shardtoll.ledger.records.record import Collective

_SHARED: Final = ("tensor", "stages")
_SMALL_BYTES: Final = 1 << 16
"""Below this a reduction in forward is of a loss or a count, not of activations."""


def ranks_per_token(ledger: Ledger, collectives: Sequence[Collective]) -> int | None:
    """Return how many ranks work on one token; None if ranks may share some and no name says how many.

    The run's mesh may not be complete. A mesh that only a function of the program holds is known by the
    descriptions of its groups, which the rows carry.
    """
    if any(_may_share(row) for row in collectives):
        return None
    sizes: dict[str, int] = {}
    flattened: set[str] = set()
    named: list[tuple[str | None, int]]
    named = [*ledger.run.mesh.items(), *((row.mesh_dim, row.group_size) for row in collectives)]
    for name, size in named:
        parts = parts_of(name)
        shared = [part for part, kind in parts.items() if kind in _SHARED]
        if len(parts) > 1:
            flattened.update(shared)
        elif shared and shared[0] not in sizes:
            sizes[shared[0]] = size
    together = prod(sizes.values())
    # A flattened dimension does not say how large each of its parts is; nor do two names of one dimension.
    if flattened - sizes.keys() or ledger.run.world_size % together:
        return None
    return together


def _may_share(row: Collective) -> bool:
    """Whether its ranks may be stages or tensor parallel, and no name of a mesh dimension settles it."""
    if parts_of(row.mesh_dim):
        return False
    if row.op in ("send", "recv"):
        return True
    if row.phase != "forward" or row.op not in ("all_reduce", "reduce_scatter"):
        return False
    return (row.group_size or 2) > 1 and (row.message_bytes is None or row.message_bytes >= _SMALL_BYTES)
