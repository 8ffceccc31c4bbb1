"""The dimensions of a device mesh in words, also of several meshes over the same ranks."""

from __future__ import annotations

import math
from typing import Final

from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Run

_NAME: Final = 30


def mesh_words(run: Run) -> str | None:
    """Return `mesh dp=2 x tp=4`; None without a mesh.

    Dimensions whose product is not the number of ranks are no grid of them. Those of several meshes share
    ranks, as expert parallelism does with data parallelism. Others reach a part of the ranks only.
    """
    if not run.mesh:
        return None
    dims = [f"{clip(name, _NAME)}={size}" for name, size in run.mesh.items()]
    ranks = math.prod(run.mesh.values())
    if ranks == run.world_size:
        return f"mesh {' x '.join(dims)}"
    if ranks > run.world_size:
        return f"mesh dims {', '.join(dims)} (overlapping)"
    return f"mesh {'dim' if len(dims) == 1 else 'dims'} {', '.join(dims)}"
