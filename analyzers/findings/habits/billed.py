"""Collectives that findings of this room have on their bill already."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.habits import constant_buffers, needless_barrier, unused_search
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep

_OF_COLLECTIVES = (needless_barrier, constant_buffers, unused_search)


@once
def billed_as_habits(context: Context) -> pd.DataFrame:
    """Return those collectives."""
    frame = context.collectives
    spoken = pd.Series(False, index=frame.index)
    for analysis in _OF_COLLECTIVES:
        for finding in analysis.find(context):
            spoken |= finding.rows.mask("collectives", len(frame))
    return keep(frame, spoken)
