"""Blocks that FSDP shards each for itself, too small for the network: their messages are latency."""

from __future__ import annotations

from typing import Final

LATENCY_BELOW_BYTES: Final = 64 << 10
"""Messages below are latency on any fabric that is known: half as many bytes would take as long."""

LEAST_SHARDS: Final = 8
"""Small messages of FSDP per step from which blocks are too small: fewer have little to gain."""


def too_small_shards(cause: str, message_bytes: int | None, count: int) -> bool:
    """Return whether FSDP sends that many messages, each so small that its time is latency.

    `message_bytes` is the size of one, None if it is unknown; `count` how many a step has.
    """
    small = message_bytes is not None and message_bytes < LATENCY_BELOW_BYTES
    return cause.startswith("FSDP") and small and count >= LEAST_SHARDS


def left_by_larger(message_bytes: int, count: int) -> float:
    """Return the part of their time that is left if larger blocks send the same bytes in few messages.

    One message's latency stays. The bytes' time stays too. A message of `LATENCY_BELOW_BYTES` still takes
    about a latency, so a smaller one spends at most its share of those bytes on transfer. At most 1.
    """
    return min(1.0, 1 / count + message_bytes / LATENCY_BELOW_BYTES)
