"""How many ranks share a node, as the launcher of the job says."""

from __future__ import annotations

import os
from collections.abc import Mapping

GROUP = ("GROUP_RANK", "NODE_RANK")
"""The node's number, by torchrun and by Lightning's and Ray's launchers; the first that is set counts."""


def ranks_per_node(rank: int, world_size: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return LOCAL_WORLD_SIZE where it is true of every rank that consecutive ones share a node; else None.

    What rank, local rank and node say of this rank has to fit, so a variable that was left over from
    another job is not believed. One machine that runs several agents of torchrun has several nodes by this:
    their host name is one, and the layout that was asked for is what counts.
    """
    size = _whole(environment.get("LOCAL_WORLD_SIZE"))
    node = next((_whole(environment[name]) for name in GROUP if name in environment), None)
    if not size or node is None or world_size % size:
        return None
    local = _whole(environment.get("LOCAL_RANK", str(rank % size)))
    return size if (node, local) == divmod(rank, size) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
