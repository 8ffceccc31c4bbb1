"""Mistakes that people made in public, each as a small program and its mended twin."""

from __future__ import annotations

from typing import Final

NAMES: Final[tuple[str, ...]] = ()
"""Modules of this folder that are incidents, in the order of the scoreboard."""
