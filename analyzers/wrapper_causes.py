"""Whose collectives a wrapper issues by itself, as their `caused_by_op` begins."""

from __future__ import annotations

from typing import Final

WRAPPER_CAUSES: Final = ("FSDP", "FullyShardedDataParallel", "DistributedDataParallel", "DeepSpeed")
