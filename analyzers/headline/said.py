"""Parts of the headline before they are joined, with the words and limits that its modules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LEAST_SHARE: Final = 0.05
"""Share of all ranks' steps below which communication is not the matter."""

LEAST_SAID: Final = 0.005
"""Share from which exposed communication is named though something else costs more."""

LACKING: Final = 0.1
"""Share of the issued collectives above which those not on record, or not timed, forbid a verdict."""

LATE: Final = ("straggler",)
"""Kinds of the findings whose remedy ends the sentence."""

CANNOT: Final = "Cannot tell whether the network or a late rank is at fault"

NO_STEP: Final = f"{CANNOT}, as no step records exposed communication"


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence in the parts that are joined as far as two lines reach."""

    base: str
    more: tuple[str, ...] = ()
    advice: int | None = None
    """Place of the finding whose remedy ends the sentence: one of what the sentence blames, or none."""
    purpose: str = ""
    """Purpose of its remedy, as `to send less, `, if the finding is of another kind."""
    because: int | None = None
    """Place of a finding that says why the rank is late that the sentence blames."""
    needed: bool = True
    """Whether the first of `more` goes before advice in words of its own."""
    also: int | None = None
    """Place of a second finding, if the sentence blames two things."""


def joined(base: str, more: Sequence[str], width: int) -> str:
    """Return the sentence with the parts that two lines hold: details, after commas, go first, the last one
    before others."""
    parts = [part for part in more if part]
    while parts and len(base) + sum(map(len, parts)) > width:
        details = [place for place, part in enumerate(parts) if not part.startswith(";")]
        parts.pop(details[-1] if details else -1)
    return base + "".join(parts)
