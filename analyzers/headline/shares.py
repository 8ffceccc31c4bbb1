"""How much of the steps is communication, compute or unknown, in the words of the bars."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.trust import counted
from shardtoll.analyzers.headline.said import CANNOT, LACKING, LEAST_SHARE
from shardtoll.analyzers.headline.step_words import step_word
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.records.levels import watched_steps
from shardtoll.ledger.words.human import percent
from shardtoll.ledger.words.human import plural as times

LITTLE_COMPUTE: Final = 0.1
"""Share of the steps below which compute hides hardly anything of the transfers."""


def own_ns(context: Context, rows: pd.DataFrame) -> pd.Series[float]:
    """Return how long steps took, as the table of ranks shows it: capture is left out of watched ones."""
    took: pd.Series[float] = rows["duration_ns"].astype("float64")
    watched = bool(watched_steps(context.ledger.tables["steps"]))
    return took - rows["capture_ns"].astype("float64") if watched else took


def small(context: Context, share: float) -> str:
    """Return that communication is hidden or small, or that too little of it is known to say so."""
    doubt = _doubt(context, share)
    if doubt is not None:
        return f"{CANNOT}, as {doubt}: {brief_of(context, share)}"
    compute = _compute(context)
    if context.collectives.empty and share == 0:
        return f"No communication is on record{f'; {compute}' if compute else ''}"
    also = f"; {compute}" if compute else ""
    if context.ledger.run.is_forecast:
        # No other rank is played, so none can be late.
        return f"The network is not at fault: {brief_of(context, share)}{also}"
    return f"Neither the network nor a late rank is at fault: {brief_of(context, share)}{also}"


def _compute(context: Context) -> str | None:
    """Return how much of the steps is compute; None if the steps do not record it."""
    share = _compute_share(context)
    return None if share is None else f"compute takes {percent(share)}"


def _compute_share(context: Context) -> float | None:
    rows = context.parts_rows
    total = float((rows["duration_ns"] - rows["capture_ns"]).sum())
    return float(rows["compute_ns"].sum()) / total if total > 0 else None


def little_compute(context: Context) -> str:
    """Return `, compute only 2.3 %` if that is too little to hide transfers behind; else nothing."""
    share = None if context.on_cpu else _compute_share(context)
    return f", compute only {percent(share)}" if share is not None and share < LITTLE_COMPUTE else ""


def blind(context: Context) -> str | None:
    """Return that there is no device timeline, and how many collectives were issued; None if there is one."""
    if context.surveyed or "no-device-timeline" not in set(context.notices["kind"]):
        return None
    issued = times(len(context.in_steps), "collective")
    return (
        "There is no device timeline, so compute, exposed communication and idle time are unknown; "
        f"{issued} {'was' if len(context.in_steps) == 1 else 'were'} issued; "
        "record the device's activities too"
    )


def off_record(context: Context) -> str | None:
    """Return that too much is not on record to speak of communication; None if it is."""
    lacks, issued = counted.lacking(context)
    if lacks <= LACKING * issued:
        return None
    unlisted = f"{counted.words(lacks, issued)} are counted, not listed"
    return f"{CANNOT}, as {unlisted}"


def brief_of(context: Context, share: float) -> str:
    """Return how much communication is exposed, in the words of the bars."""
    named = "waiting for ranks and moving data take" if _divided(context) else "exposed communication takes"
    return f"{named} {of_step(context, share)}"


def _divided(context: Context) -> bool:
    """Return whether some exposed communication is known to be waiting or moving data, as bars show it."""
    frame = context.in_alike
    exposed = (frame["exposed_ns"].notna() & (frame["exposed_ns"] > 0)).to_numpy(dtype=bool)
    return bool((exposed & frame["transfer_ns"].notna().to_numpy(dtype=bool)).any())


def of_step(context: Context, share: float) -> str:
    """Return `22 % of the step (mean of 4 ranks)`; without the mean if one rank was recorded."""
    seen = len(context.ledger.run.ranks_seen)
    mean = f" (mean of {seen:,} ranks)" if seen > 1 else ""
    return f"{_bound(context)}{percent(share)} of the {step_word(context)}{mean}"


def _bound(context: Context) -> str:
    """Return `at least ` if some step knows a part of its exposed communication only, else nothing."""
    return "" if context.in_part(context.told_rows).empty else "at least "


def _doubt(context: Context, share: float) -> str | None:
    """Return how many collectives have no known exposed time; None if that forbids no verdict.

    They may be exposed for as long as they took, `LEAST_SHARE` of the steps together with the known `share`.
    """
    rows = context.told_rows
    bounded = context.in_part(rows)
    if bounded.empty:
        return None
    frame = context.in_alike[["step", "rank", "exposed_ns", "duration_ns"]]
    frame = keep(frame, frame["step"].isin(bounded["step"]))
    silent = keep(frame, frame["exposed_ns"].isna())
    if len(silent) <= LACKING * len(frame):
        return None
    most = float(silent["duration_ns"].sum()) / float(own_ns(context, rows).sum())
    if silent["duration_ns"].notna().all() and share + most < LEAST_SHARE:
        return None
    return f"{len(silent):,} of {times(len(frame), 'collective')} have no known exposed time"
