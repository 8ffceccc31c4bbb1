"""The columns of a table of steps: which are read, and what an unknown one may mean."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

READ: Final = (
    "model", "gpus", "gpu", "framework", "precision", "seq", "mbs", "ga", "gbs", "dp", "tp", "sp", "pp",
    "vpp", "cp", "ep", "shard", "ac", "compile", "schedule", "net", "layers", "hidden", "heads",
    "kv_heads", "ffn", "vocab", "experts", "topk", "tied", "params", "hardware", "config", "note",
    "group", "metric", "value", "tok_s_gpu", "step_s", "mem_gib",
)  # fmt: skip
"""Columns that a price, a comparison or a calibration reads."""
MEASURED: Final = frozenset(("value", "tok_s_gpu", "step_s", "mem_gib"))
"""Columns that a price is compared with; they hold for the row's own machine only."""
_REMARKS: Final = ("source", "split", "date", "status", "tflops_gpu", "mfu_pct", "mem_kind")
"""Further columns of published tables; nobody expects a price to follow them."""
_OTHER_NAMES: Final = {
    "sequence": "seq",
    "sequence_length": "seq",
    "seq_len": "seq",
    "seqlen": "seq",
    "context": "seq",
    "micro_batch": "mbs",
    "micro_batch_size": "mbs",
    "batch": "gbs",
    "batch_size": "gbs",
    "batch_tokens": "gbs",
    "global_batch": "gbs",
    "global_batch_size": "gbs",
    "gradient_accumulation": "ga",
    "accumulation": "ga",
    "world": "gpus",
    "world_size": "gpus",
    "dtype": "precision",
    "fabric": "net",
    "network": "net",
    "checkpointing": "ac",
    "recompute": "ac",
    "tensor": "tp",
    "pipeline": "pp",
    "step_time": "step_s",
    "tokens_per_s_gpu": "tok_s_gpu",
    "memory": "mem_gib",
}
_NEAR: Final = 0.75
"""Share of equal letters from which on a name may be a slip of the pen."""
_MOST_NAMED: Final = 6
_LONGEST: Final = 30


def unknown_columns(names: Sequence[str]) -> str | None:
    """Return one line that names the columns that are ignored, with the nearest known ones; None without
    any."""
    unknown = [name for name in names if name and name not in READ and name not in _REMARKS]
    if not unknown:
        return None
    named = ", ".join(_proposed(name) for name in unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED:,} more" if len(unknown) > _MOST_NAMED else ""
    return f"unknown columns are ignored: {named}{more}"


def _proposed(name: str) -> str:
    word = name.strip().casefold().replace(" ", "_").replace("-", "_")
    near = _OTHER_NAMES.get(word) or next(iter(get_close_matches(word, READ, 1, _NEAR)), None)
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
    return shown if near is None else f"{shown} (did you mean {near}?)"
