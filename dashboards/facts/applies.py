"""Figures that a kind of finding does not have, unlike figures that are unknown."""

from __future__ import annotations

from typing import Final

from shardtoll.ledger import Finding
from shardtoll.ledger.words import human

NONE: Final = "–"
"""How a figure is shown that a kind does not have."""

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
    if name == "saving" and finding.only_measures:
        return False
    return name not in _OF_KIND.get(finding.kind, _OF_FAMILY.get(finding.family, ()))


def duration(finding: Finding, name: str) -> str:
    """Return the `toll`, `floor` or `saving` of the finding as text."""
    values = {"toll": finding.toll_ns, "floor": finding.floor_ns, "saving": finding.remedy_saves_ns}
    value = values[name]
    return NONE if value is None and not applies(finding, name) else human.duration(value)
