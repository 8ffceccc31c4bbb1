"""Tokens of a recorded step, by what its embeddings looked up."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from shardtoll.ledger import Ledger
from shardtoll.ledger.answers.dry_step import NoTokens
from shardtoll.ledger.records.dry import DryOp
from shardtoll.ledger.records.record import Collective

_TENSOR_AND_STAGES: Final = ("tp", "tensor", "model", "mp", "pp", "pipe", "pipeline", "stage")
"""Names of mesh dimensions whose ranks work on the same tokens."""
_OWN_TOKENS: Final = ("cp", "context", "seq", "sequence", "ep", "expert", "experts")
"""Names of others whose ranks send, or reduce activations: each has tokens of its own."""
_SMALL_BYTES: Final = 1 << 16
"""Below this a reduction in forward is of a loss or a count, not of activations."""


def tokens_of(
    ledger: Ledger, ops: Sequence[DryOp], collectives: Sequence[Collective]
) -> tuple[int, None] | tuple[None, NoTokens]:
    """Return the tokens of a step over all ranks, or why they are unknown.

    The first embedding counts. If its indices are positions, the one of the tokens there counts. Ranks may
    share tokens without a mesh that says so: then nobody knows how many of them do.
    """
    lookups = [op for op in ops if op.op.startswith("aten.embedding.") and op.phase == "forward"]
    if not lookups or _indices(lookups[0]) is None:
        return None, "no embedding"
    if any(_may_share(row) for row in collectives):
        return None, "shared by unknown ranks"
    first = lookups[0]
    chosen = next((op for op in lookups if _positions_of(first, op)), first)
    same = sum(op.module == chosen.module for op in lookups)
    together = prod(size for name, size in ledger.run.mesh.items() if _plain(name) in _TENSOR_AND_STAGES)
    return prod(_indices(chosen) or ()) * same * ledger.run.world_size // together, None


def _may_share(row: Collective) -> bool:
    """Whether its ranks may be stages or tensor parallel, and no name of a mesh dimension settles it."""
    if row.mesh_dim is not None and _plain(row.mesh_dim) in (*_TENSOR_AND_STAGES, *_OWN_TOKENS):
        return False
    if row.op in ("send", "recv"):
        return True
    if row.phase != "forward" or row.op not in ("all_reduce", "reduce_scatter"):
        return False
    return (row.group_size or 2) > 1 and (row.message_bytes is None or row.message_bytes >= _SMALL_BYTES)


def _plain(dimension: str) -> str:
    return dimension.casefold().removeprefix("mesh_")


def _positions_of(first: DryOp, other: DryOp) -> bool:
    """Whether the first looked up the positions of the other's tokens, once for all sequences.

    Then its vectors are as wide, as the two are added up, and its indices are those of one sequence.
    """
    positions, tokens = _indices(first) or (), _indices(other) or ()
    if other.module == first.module or _shapes(first)[0][1:] != _shapes(other)[0][1:]:
        return False
    alone = positions[1:] if positions[:1] == (1,) else positions
    return len(tokens) > len(alone) > 0 and tokens[-len(alone) :] == alone and prod(tokens) > prod(positions)


def _indices(op: DryOp) -> tuple[int, ...] | None:
    """Return the shape of the indices that an embedding looked up; None if it is not on record."""
    shapes = _shapes(op)
    return shapes[1] if len(shapes) > 1 else None


def _shapes(op: DryOp) -> list[tuple[int, ...]]:
    """Return the shapes of an operator's tensors, of which the first one is the table."""
    texts = (text.partition("[")[2].rstrip("]") for text in (op.shapes or "").split())
    return [tuple(int(each) for each in text.split(",") if each) for text in texts]
