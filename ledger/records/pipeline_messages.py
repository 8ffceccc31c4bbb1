"""Which messages between ranks are a pipeline's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger.records.mesh_names import is_of

if TYPE_CHECKING:
    import pandas as pd

SET_UP: Final = "set_up"
"""Ending of the cause of a message that a schedule sends once, to agree on shapes or to connect."""

METADATA_BYTES: Final = 1024
"""A message of at most so many bytes is metadata if its group sends larger ones."""

_OF_SCHEDULE: Final = re.compile(rf"\.((send|recv)_(forward|backward)|{SET_UP})$")


def is_pipeline_dim(name: str | None) -> bool:
    """Return whether a mesh dimension of this name spans the stages of a pipeline."""
    return is_of(name, "stages")


def in_pipeline_dim(names: pd.Series[str]) -> npt.NDArray[np.bool_]:
    """Return for each mesh dimension whether it spans the stages of a pipeline; unknown ones do not."""
    spanning = [name for name in names.dropna().unique() if is_pipeline_dim(str(name))]
    mask: npt.NDArray[np.bool_] = names.isin(spanning).to_numpy(dtype=bool, na_value=False)
    return mask


def by_schedule(causes: pd.Series[str]) -> npt.NDArray[np.bool_]:
    """Return for each `caused_by_op` whether a pipeline's schedule says that the message is its own."""
    named = [cause for cause in causes.dropna().unique() if _OF_SCHEDULE.search(str(cause))]
    mask: npt.NDArray[np.bool_] = causes.isin(named).to_numpy(dtype=bool, na_value=False)
    return mask


def in_set_up(causes: pd.Series[str]) -> npt.NDArray[np.bool_]:
    """Return for each `caused_by_op` whether the schedule sent the message only to set itself up."""
    named = [cause for cause in causes.dropna().unique() if str(cause).endswith(f".{SET_UP}")]
    mask: npt.NDArray[np.bool_] = causes.isin(named).to_numpy(dtype=bool, na_value=False)
    return mask


def one_way(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return for each row whether its group's messages go up in forward and down in backward, or reverse.

    `frame` has sends and receives: op, rank, root (the peer), phase, message_bytes and group_id. A ring's
    go both ways. Metadata goes any way: in a group that sends larger messages it does not count.
    """
    import pandas as pd

    rank, peer = frame["rank"].to_numpy(dtype=np.int64), frame["root"].to_numpy(dtype=np.int64)
    up = np.where(frame["op"] == "send", peer > rank, rank > peer)
    phase = frame["phase"].to_numpy()
    either = np.isin(phase, ["forward", "backward"])
    forward = np.where(phase == "forward", up, ~up)
    sizes = frame["message_bytes"].astype("Float64").to_numpy(dtype=np.float64, na_value=np.inf)
    facts = pd.DataFrame({"group_id": frame["group_id"].to_numpy(), "bytes": sizes})
    largest = facts.groupby("group_id")["bytes"].transform("max").to_numpy(dtype=np.float64)
    metadata = (sizes <= METADATA_BYTES) & (largest > METADATA_BYTES)
    # Rows that do not count agree with any direction.
    facts["up"], facts["down"] = forward | metadata, ~forward | metadata
    facts["either"] = either | metadata
    groups = facts.groupby("group_id")
    same = groups["up"].transform("all") | groups["down"].transform("all")
    mask: npt.NDArray[np.bool_] = (same & groups["either"].transform("all")).to_numpy(dtype=bool)
    return mask
