"""The waiting on record that disappears when ranks are as fast as their peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.as_peers import Own
from shardtoll.analyzers.replay.points.host_messages import NO_ROW
from shardtoll.analyzers.replay.points.point_replay import Replayed


def travelled_ns(
    context: Context,
    steps: Sequence[Own],
    base: Sequence[Replayed],
    before: Sequence[Replayed],
    after: Sequence[Replayed],
) -> pd.Series[int]:
    """Return the waiting on record that goes from one replay to the next, by row of collectives."""
    parts = []
    frame = context.in_alike
    for own, base_step, before_step, after_step in zip(steps, base, before, after, strict=True):
        graph = own.graph
        on_record = graph.index != NO_ROW
        index = graph.index[on_record]
        rows = frame.loc[index]
        waited = rows["waited_ns"].to_numpy(dtype=np.int64, na_value=0)
        known = pd.DataFrame(
            {
                # If a rank waits for several at once, as a message sent and one received, it waits for them
                # together.
                "rank": rows["rank"].to_numpy(dtype=np.int64),
                "end": (rows["start_ns"] + rows["duration_ns"]).to_numpy(dtype=np.int64) // 1_000,
                "base": base_step.waited_ns[on_record],
                "gone": (before_step.waited_ns - after_step.waited_ns)[on_record],
            }
        )
        sums = known.groupby(["rank", "end"])[["base", "gone"]].transform("sum")
        base_ns = sums["base"].to_numpy(dtype=np.float64)
        part = np.divide(
            sums["gone"].to_numpy(dtype=np.float64), base_ns, out=np.zeros(len(rows)), where=base_ns > 0
        )
        parts.append(pd.Series(np.floor(waited * np.clip(part, 0.0, 1.0)).astype(np.int64), index=index))
    caused: pd.Series[int] = pd.concat(parts)
    return caused[caused > 0]
