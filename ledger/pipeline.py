"""Which messages between ranks are a pipeline's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

PIPELINE_DIMS: Final = ("pp", "pipe", "pipeline", "stage")
"""Mesh dimensions that say so by their name."""


def one_way(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return for each row whether its group's messages go up in forward and down in backward, or reverse.

    `frame` has sends and receives: op, rank, root (the peer), phase and group_id. A ring's go both ways.
    """
    import pandas as pd

    own, peer = frame["rank"].to_numpy(dtype=np.int64), frame["root"].to_numpy(dtype=np.int64)
    up = np.where(frame["op"] == "send", peer > own, own > peer)
    phase = frame["phase"].to_numpy()
    either = np.isin(phase, ["forward", "backward"])
    forward = np.where(phase == "forward", up, ~up)
    facts = pd.DataFrame({"group_id": frame["group_id"].to_numpy(), "forward": forward, "either": either})
    groups = facts.groupby("group_id")
    same = groups["forward"].transform("nunique") == 1
    found: npt.NDArray[np.bool_] = (same & groups["either"].transform("all")).to_numpy(dtype=bool)
    return found
