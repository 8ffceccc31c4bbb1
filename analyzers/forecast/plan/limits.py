"""Sizes that no training has: a plan that states them is refused before anything of that size is built."""

from __future__ import annotations

from typing import Final

from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.training_plan import Layout, ModelShape

_MODEL: Final = {
    "layers": 1_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "ffn": 10_000_000,
    "vocab": 100_000_000,
    "experts": 100_000,
    "topk": 100_000,
}
_LAYOUT: Final = {"pp": 256, "micro_batch": 1_000_000, "accumulation": 100_000}
_MOST_RANKS: Final = 1_000_000
_MOST_SEQUENCE: Final = 100_000_000
_MOST_MICRO_BATCHES: Final = 300_000
"""Micro-batches times stages and chunks: each is an event of the schedule."""


def check_sizes(model: ModelShape, layout: Layout, sequence: int) -> None:
    """Raise UsageError in one line that names the first size above what any training has."""
    sizes = [
        *((name, getattr(model, name), most) for name, most in _MODEL.items()),
        ("GPUs", layout.world_size, _MOST_RANKS),
        *((name, getattr(layout, name), most) for name, most in _LAYOUT.items()),
        ("sequence", sequence, _MOST_SEQUENCE),
    ]
    if layout.pp > 1:
        events = layout.accumulation * layout.pp * layout.chunks
        sizes.append(("micro-batches x stages", events, _MOST_MICRO_BATCHES))
    for name, size, most in sizes:
        if size > most:
            shown = f"{size:,}" if size < 10**15 else f"{float(min(size, 10**300)):.0e}"
            raise UsageError(f"{name} is {shown}: no training has more than {most:,}", "state the real size")
