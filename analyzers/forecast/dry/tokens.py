"""Tokens of a recorded step, by what its embeddings looked up."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from shardtoll.ledger import Ledger
from shardtoll.ledger.answers.dry_step import NoTokens
from shardtoll.ledger.records.dry import DryOp
from shardtoll.ledger.records.mesh_names import parts_of
from shardtoll.ledger.records.record import Collective

_SHARED: Final = ("tensor", "stages")

_SMALL_BYTES: Final = 1 << 16
"""Below this a reduction in forward is of a loss or a count, not of activations."""


def tokens_of(
    ledger: Ledger, ops: Sequence[DryOp], collectives: Sequence[Collective]
) -> tuple[int, None] | tuple[None, NoTokens]:
    """Return the tokens of a step over all ranks, or why they are unknown.

    Ranks may share tokens without a mesh that says so: then nobody knows how many of them do.
    """
    lookups = [op for op in ops if op.op.startswith("aten.embedding.") and op.phase == "forward"]
    if not lookups:
        return None, "no embedding"
    if any(len(_shapes(op)) < 2 for op in lookups):
        return None, "embedding without shapes"
    own = _looked_up(lookups)
    if own is None:
        return None, "embeddings disagree"
    together = _ranks_per_token(ledger, collectives)
    if together is None:
        return None, "shared by unknown ranks"
    return own * ledger.run.world_size // together, None


def _looked_up(lookups: Sequence[DryOp]) -> int | None:
    """Return the tokens that this rank's embeddings looked up; None if two disagree about them.

    Vectors that are added up are as wide as the first one's. The table of the most indices is the one of the
    tokens. Those of other tables are as many, or the positions of one sequence, or one for each sequence.
    """
    width = _shapes(lookups[0])[0][1:]
    tables: dict[tuple[str | None, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for op in lookups:
        table, indices = _shapes(op)[:2]
        if table[1:] == width:
            # A module may look up several tables.
            tables.setdefault((op.module, table), []).append(indices)
    chosen = max(tables, key=lambda table: max(map(prod, tables[table])))
    tokens = tables.pop(chosen)
    for others in tables.values():
        if not all(any(_agree(indices, each) for each in tokens) for indices in others):
            return None
    most = max(tokens, key=prod)
    # Tables of one shape in one module look like one table, which has no positions of its own tokens.
    if any(prod(each) != prod(most) and _agree(each, most) for each in tokens):
        return None
    return sum(map(prod, tokens))


def _agree(indices: tuple[int, ...], tokens: tuple[int, ...]) -> bool:
    """Whether the indices may be of the same tokens: as many, one sequence's positions, one a sequence."""
    if prod(indices) == prod(tokens):
        return True
    alone = indices[1:] if indices[:1] == (1,) else indices
    if len(alone) == len(tokens) == 1:
        # Sequences laid end to end.
        return alone[0] > 0 and tokens[0] % alone[0] == 0
    return len(alone) < len(tokens) and alone in (tokens[-len(alone) :], tokens[: len(alone)])


def _shapes(op: DryOp) -> list[tuple[int, ...]]:
    """Return the shapes of an operator's tensors: the table's, then that of the indices."""
    texts = (text.partition("[")[2].rstrip("]") for text in (op.shapes or "").split())
    return [tuple(int(each) for each in text.split(",") if each) for text in texts]


def _ranks_per_token(ledger: Ledger, collectives: Sequence[Collective]) -> int | None:
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
