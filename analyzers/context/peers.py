"""Which send of one rank and which receive of another are one message.

A group's sequence numbers say nothing here: a message takes part of them on two ranks only. The order between
two ranks within a step does, if both have as many messages and their sizes agree one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.shared.tally import keep

PEER_OPS: Final = ("send", "recv")
SYNCHRONISING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""No rank can leave one of these before the last has arrived."""

ROOTED: Final = ("broadcast", "scatter", "reduce", "gather")
"""The time that one rank spends in these is not that of the whole operation."""

LANE: Final = ["group_id", "step", "source", "target"]
"""Columns that identify a lane: messages on it keep their order."""


def paired(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return a number for each row that both ends of a message share, -1 where there is no such pair.

    `rows` has rank, root (the peer), op, step, group_id, message_bytes; both ends must be in it.
    """
    number = np.full(len(rows), -1, dtype=np.int64)
    is_end = rows["op"].isin(PEER_OPS)
    if not is_end.any():
        return number
    pairable = is_end & rows["root"].notna() & rows["step"].notna() & rows["group_id"].notna()
    ends = keep(rows, pairable)
    if ends.empty:
        return number
    sends = (ends["op"] == "send").to_numpy(dtype=bool)
    rank, peer = ends["rank"].to_numpy(dtype=np.int64), ends["root"].to_numpy(dtype=np.int64)
    lanes = pd.DataFrame(
        {
            "at": np.flatnonzero(pairable.to_numpy(dtype=bool)),
            "group_id": ends["group_id"].to_numpy(dtype=np.int64),
            "step": ends["step"].to_numpy(dtype=np.int64),
            "source": np.where(sends, rank, peer),
            "target": np.where(sends, peer, rank),
            "sends": sends,
            "bytes": ends["message_bytes"].to_numpy(dtype=np.int64, na_value=-1),
        }
    )
    lanes["nth"] = lanes.groupby([*LANE, "sends"]).cumcount()
    both = lanes[lanes["sends"]].merge(
        lanes[~lanes["sends"]], on=[*LANE, "nth"], how="outer", suffixes=("_sent", "_got"), indicator="seen"
    )
    sizes = both[["bytes_sent", "bytes_got"]].fillna(-1).to_numpy(dtype=np.int64)
    fits = (both["seen"] == "both") & ((sizes[:, 0] == sizes[:, 1]) | (sizes < 0).any(axis=1))
    # One that does not fit, and nobody knows how far the order holds: the lane is left alone.
    whole = fits.groupby([both[name] for name in LANE]).transform("all").to_numpy(dtype=bool)
    agreed = both[whole]
    for end in ("at_sent", "at_got"):
        number[agreed[end].to_numpy(dtype=np.int64)] = np.arange(len(agreed))
    return number
