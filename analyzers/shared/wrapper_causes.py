"""Whose collectives a wrapper issues by itself, as their `caused_by_op` begins."""

from __future__ import annotations

from typing import Final

WRAPPER_CAUSES: Final = ("FSDP", "FullyShardedDataParallel", "DistributedDataParallel", "DeepSpeed")

GATHERERS: Final = ("FSDP", "DeepSpeed.ZeRO-3")
"""Those that gather parameters once a pass by design, to keep less memory."""
