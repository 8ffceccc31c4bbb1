"""The code that a rank's host was in while its device was idle for no other reason."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.records.stall import GRAPH_CAPTURE

TELLING: Final = 0.25
"""Share of idle time from which one piece of code is worth naming."""


class Doing(Struct, frozen=True):
    """One piece of code, or a graph's capture, and the idle time it stands for."""

    name: str
    """An annotation or `stall.GRAPH_CAPTURE`; empty if nothing names it."""
    source: str | None
    library: str | None
    mean_ns: float
    """Per step."""

    @property
    def captures(self) -> bool:
        """Return whether launches were recorded into a graph then."""
        return self.name == GRAPH_CAPTURE


def most(stalls: pd.DataFrame, steps: int) -> Doing | None:
    """Return what one rank's host did for the longest idle time; None if no frame or capture tells."""
    host = keep(stalls, stalls["kind"] == "host")
    known = keep(host, host["source"].notna() | host["library"].notna() | (host["name"] == GRAPH_CAPTURE))
    if known.empty or not steps:
        return None
    keys = [known[name].fillna("") for name in ("name", "source", "library")]
    lost = known["lost_ns"].groupby(keys).sum()
    place = int(np.argmax(lost.to_numpy(dtype=np.int64)))
    name, source, library = (str(key) for key in lost.index[place])
    return Doing(name, source or None, library or None, float(lost.iloc[place]) / steps)
