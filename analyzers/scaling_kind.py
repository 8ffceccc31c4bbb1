"""Whether two runs of different world sizes scale strongly or weakly, as far as their batches tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardtoll.analyzers.scaling import Kind
from shardtoll.ledger.comparison import Side

DATA_DIMS: Final = (
    "dp",
    "ddp",
    "fsdp",
    "hsdp",
    "data",
    "batch",
    "dp_replicate",
    "dp_shard",
    "replicate",
    "shard",
)
"""Names of mesh dimensions along which each rank has data of its own."""
_OPTION: Final = "--scaling strong|weak, or --work-before and --work-after, says which"


def scaling_kind(
    sides: tuple[Side, Side], meshes: tuple[Iterable[str], Iterable[str]]
) -> tuple[Kind, tuple[float, float] | None, str]:
    """Return the kind, the work of a step of each run where the kind needs it, and why in words.

    Equal effective batches a step are strong scaling, equal ones a rank are weak; where they are neither,
    the batches are the work. `meshes`: names of the mesh dimensions of each run; where nothing tells which
    ranks have data of their own, all have it unless a dimension may be one along which ranks share it.
    """
    one, other = sides
    was, now = (side.batch.effective(side.world_size) for side in sides)
    if was is None or now is None:
        return "unknown", None, f"the effective batch is not known; {_OPTION}"
    if one.batch.rows_of != other.batch.rows_of:
        return "unknown", None, f"the batches were read from different places; {_OPTION}"
    assumed = any(side.batch.ranks is None for side in sides)
    if assumed and {name for names in meshes for name in names} - set(DATA_DIMS):
        return "unknown", None, f'which ranks share data is not known without checks=("data",); {_OPTION}'
    of = "every rank taken to have data of its own" if assumed else "by the data of the ranks"
    if was == now:
        return "strong", None, f"the effective batch is {was:,} in both, {of}"
    if was * other.world_size == now * one.world_size:
        each = was / one.world_size
        return "weak", None, f"the effective batch is {each:,g} a rank in both, {of}"
    why = f"effective batch {was:,} before, {now:,} after, {of}: equal neither in all nor a rank"
    return "batch", (float(was), float(now)), why
