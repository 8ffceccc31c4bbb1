"""Who made a GPU, by its name as torch or a trace has it."""

from __future__ import annotations

from typing import Final, Literal

Maker = Literal["nvidia", "amd"]

_WORDS: Final[dict[Maker, tuple[str, ...]]] = {
    "nvidia": ("NVIDIA", "TESLA", "GEFORCE"),
    "amd": ("AMD", "INSTINCT", "MI1", "MI2", "MI3"),
}


def gpu_maker(device: str | None) -> Maker | None:
    """Return the maker; None if the name is unknown, or of no GPU that is known."""
    name = (device or "").upper()
    return next((maker for maker, words in _WORDS.items() if any(word in name for word in words)), None)
