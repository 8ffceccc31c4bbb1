"""Memory that replaying leaves out, fitted on published rows: one line per framework in `memory_fit.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from shardtoll.ledger.foreign.toml_text import toml_tables


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """reserved = scale x replayed + extra; low and high times that hold eight of ten rows."""

    scale: float = 1.05
    extra_bytes: int = 0
    low: float = 0.85
    high: float = 1.2
    rows: int = 0
    """Measured rows behind it; 0: no row, the band is a guess."""


@cache
def _fits() -> dict[str, MemoryFit]:
    text = resources.files(__package__).joinpath("memory_fit.toml").read_text(encoding="utf-8")
    return {name: MemoryFit(**table) for name, table in toml_tables(text).items()}


def fit_of(recipe: str) -> MemoryFit:
    """The fit of a recipe; a wide band without a fit."""
    return _fits().get(recipe, MemoryFit())
