"""How fast collectives were at least, if only some of their ranks are on record.

A transfer takes no longer than the whole span on any rank. So bytes over span are a lower bound of the
bandwidth. The span over the expected time is an upper bound of how slow the network was.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.peers import SYNCHRONISING
from shardtoll.analyzers.headline.moving import SLOW_FACTOR
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.records.volume import busbw_factor
from shardtoll.ledger.words.human import rate


class Bound(Struct, frozen=True):
    """Bounds that some ranks' records give for the transfers."""

    words: str
    """`, at 180 GB/s or more, at most 1.2 times the expected time`."""
    excludes: bool
    """Whether that excludes a slow network and long waiting."""


def of(frame: pd.DataFrame) -> Bound | None:
    """Return the least bandwidth, and the most that transfers took; None if sizes are unknown.

    `frame` has the exposed collectives. Only ops that all ranks leave together count: a rank may leave others
    before the data has moved.
    """
    rows = keep(
        frame, frame["op"].isin(SYNCHRONISING) & (frame["duration_ns"] > 0) & frame["message_bytes"].notna()
    )
    factors = [busbw_factor(op, int(size)) for op, size in zip(rows["op"], rows["group_size"], strict=True)]
    known = np.array([factor is not None and factor > 0 for factor in factors], dtype=bool)
    rows = rows[known]
    if rows.empty:
        return None
    factor = np.array([each for each in factors if each], dtype=np.float64)
    span = rows["duration_ns"].to_numpy(dtype=np.float64)
    at_least = float((rows["message_bytes"].to_numpy(dtype=np.float64) * factor).sum() / span.sum())
    words = f"at {rate(at_least)} or more"
    expected = rows["expected_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isnan(expected).any() or expected.sum() <= 0:
        return Bound(f", {words}", False)
    words += f", at most {span.sum() / expected.sum():.2g} times the expected time"
    return Bound(f", {words}", span.sum() < SLOW_FACTOR * expected.sum())
