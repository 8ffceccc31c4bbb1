"""A number with its source and how sure it is, and the units that names of numbers end in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Certainty = Literal["verified", "derived", "measured", "GUESS"]
"""verified: read in the source named. derived: computed from such numbers. measured: timed on the machine
that is judged. GUESS: none of these; output that uses the number says so."""

CERTAINTIES: Final[tuple[str, ...]] = get_args(Certainty)

UNITS: Final = {"_gbps": "GB/s", "_ns": "ns", "_bytes": "bytes", "_tflops": "TFLOP/s"}
_IN_WORDS: Final = {
    "GB/s": "GB/s, 1e9 bytes a second in one direction (a card of 400 Gb/s has 50)",
    "ns": "nanoseconds",
    "bytes": "bytes",
    "TFLOP/s": "1e12 operations a second, dense",
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its source. The name of the field that holds it tells its unit."""

    value: float
    source: str
    confidence: Certainty


def unit_of(name: str) -> str:
    """Return the unit of a number by its dotted name, as `GB/s` of `inter.rank_gbps`; empty for a count."""
    if name.startswith("peak_tflops."):
        return "TFLOP/s"
    if name.startswith("reached.") or ".reached." in name:
        return "of the rate"
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def unit_in_words(key: str) -> str:
    """Return the unit of a key in words that tell what to write; empty for a count or a share."""
    return _IN_WORDS.get(unit_of(key), "")
