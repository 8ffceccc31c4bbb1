"""A number with where it comes from and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Certainty = Literal["verified", "derived", "measured", "GUESS"]
"""verified: read in the source named. derived: computed from such numbers. measured: timed on the machine
that is judged. GUESS: none of these; output that uses the number says so."""

CERTAINTIES: Final[tuple[str, ...]] = get_args(Certainty)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with where it comes from. The name of the field that holds it tells its unit."""

    value: float
    source: str
    confidence: Certainty
