"""DTensor placements as torch prints them, read back: `(Shard(0), Replicate())`, `(Shard(dim=0),)`."""

from __future__ import annotations

import re
from typing import Final

import pandas as pd

_PART: Final = re.compile(
    r"(?P<shard>(?:_Strided)?Shard|_StridedShard|S)\((?:dim=)?(?P<dim>-?\d+)[^()]*\)"
    r"|(?P<replicate>Replicate\(\)|\bR\b)"
    r"|(?P<partial>Partial\([^()]*\)|_?Partial\b|\bP(?:\([^()]*\))?)"
)

_SUM: Final = re.compile(r"\bPartial\((\w+)\)")


def kinds(placements: str | None) -> tuple[str, ...]:
    """Return each mesh dimension's placement as `shard:0`, `replicate` or `partial`; empty if not known."""
    placed = []
    for part in _PART.finditer(placements or ""):
        if part.group("shard"):
            placed.append(f"shard:{part.group('dim')}")
        else:
            placed.append("replicate" if part.group("replicate") else "partial")
    return tuple(placed)


def as_list(placements: str | None) -> str:
    """Return placements as Python code for `placements=`: `[Shard(0), Replicate()]`."""
    parts = [part.group(0) for part in _PART.finditer(placements or "")]
    return "[" + ", ".join(_SUM.sub(r'Partial("\1")', part) for part in parts) + "]"


def changes(before: str | None, after: str | None) -> tuple[tuple[str, str], ...]:
    """Return the (from, to) pairs of the mesh dimensions on which the placement changed."""
    old, new = kinds(before), kinds(after)
    if len(old) != len(new):
        return ()
    return tuple((a, b) for a, b in zip(old, new, strict=True) if a != b)


def hidden(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return for each collective whether DTensor inserted it because of an input's placement.

    The norm of a sharded tensor is a sum over ranks: it must be reduced, whatever the placement of its input.
    No row of it counts as inserted (`clip_grad_norm_` under FSDP2 has one).
    """
    implicit = frame["implicit"].fillna(False).astype(bool)
    return implicit & ~frame["placements_from"].fillna("").str.contains("NormPartial")
