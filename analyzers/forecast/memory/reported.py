"""Bytes that a driver reports of a GPU: between those it is sold with and those in powers of two."""

from __future__ import annotations

from typing import Final

_REPORTED_GIB_PER_GB: Final = 0.988
"""An H100 sold with 80 GB reports 79.1 GiB, a B200 with 180 GB 178.4, an H200 with 141 GB 139.8."""


def reported_bytes(sold_bytes: float) -> int:
    """Bytes that a driver reports of a GPU sold with `sold_bytes` (1e9 a GB)."""
    return round(sold_bytes / 1e9 * _REPORTED_GIB_PER_GB * 2**30)
