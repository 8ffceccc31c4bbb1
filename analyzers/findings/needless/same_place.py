"""Collectives of watched steps that stand where surveyed steps have collectives of which more is known."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.context.as_watched import PLACE
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep, numbered

MOSTLY: Final = 0.5
"""Part of a place's collectives in surveyed steps that must be among the given rows."""


def in_watched(context: Context, rows: pd.DataFrame) -> pd.Index[Any]:
    """Return the labels of the collectives in watched steps that have the place of `rows`.

    `rows` are collectives of surveyed steps, labelled as in the context's frame.
    """
    frame = context.in_steps
    surveyed = frame["step"].isin(context.surveyed).to_numpy(dtype=bool)
    if rows.empty or surveyed.all():
        return pd.Index([])
    # Most places are in none of the rows: a few columns tell, and the rest is not looked at.
    for column in ("op", "source", "message_bytes"):
        frame = keep(frame, frame[column].isin(rows[column].unique()))
    surveyed = frame["step"].isin(context.surveyed).to_numpy(dtype=bool)
    called = numbered(frame, PLACE)
    nth = pd.Series(called).groupby([called, frame["step"].to_numpy()]).cumcount()
    place = numbered(pd.DataFrame({"called": called, "nth": nth}), ("called", "nth"))
    given = pd.Series(frame.index.isin(rows.index)[surveyed]).groupby(place[surveyed]).mean()
    labels: pd.Index[Any] = frame.index[~surveyed & pd.Series(place).isin(given.index[given >= MOSTLY])]
    return labels
