"""Figures that a kind of finding does not have, unlike figures that are unknown."""

from __future__ import annotations

from typing import Final

from shardtoll.ledger import Finding

_OF_FAMILY: Final = {
    "correctness": ("bytes", "toll", "floor", "saving"),
    "trust": ("bytes", "toll", "floor", "saving"),
    "compute": ("bytes", "floor"),
    "schedule": ("bytes", "floor"),
}
_OF_KIND: Final = {"straggler": ("bytes", "floor"), "needless-barrier": ("bytes",)}


def applies(finding: Finding, name: str) -> bool:
    """Return whether findings of its kind have the figure `bytes`, `toll`, `floor` or `saving`.

    A remedy that only measures has no saving.
    """
    if name == "saving" and finding.remedy is not None and finding.remedy.measures:
        return False
    return name not in _OF_KIND.get(finding.kind, _OF_FAMILY.get(finding.family, ()))
