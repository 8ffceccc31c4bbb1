"""The number that a message of four bytes carried, read back from its fingerprint.

The fingerprint of one float32 is an affine function of its bits, so it can be undone. That shows which number
a program added up over its ranks, as the square of a gradient norm.
"""

from __future__ import annotations

import struct
from typing import Final

WORD: Final = 1 << 64
WEIGHT: Final = 0x9E3779B97F4A7C15 ^ (1 << 17)
"""Of a fingerprint's first position; odd, so that it has an inverse."""
SPREAD: Final = 31
UNDO: Final = pow(WEIGHT * SPREAD, -1, WORD)


def float_of(fingerprint: int) -> float | None:
    """Return the one float32 that has this fingerprint; None where no such number has."""
    bits = (int(fingerprint) - 1) * UNDO % WORD
    signed = bits - WORD if bits >= WORD // 2 else bits
    if not -(1 << 31) <= signed < 1 << 31:
        return None
    (number,) = struct.unpack("<f", struct.pack("<i", signed))
    return float(number)
