"""Batches, copies or the second forward taken out of a step, whatever finding they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stragglers.step_excess import told_steps
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.shared.tally import keep, numbered
from shardtoll.analyzers.whatif.edits.begins import begin_earlier
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.ledger.records.record import PHASES

_Floats = npt.NDArray[np.float64]

_RUN: Final = ("step", "rank")

_WORK: Final = (*_RUN, "op", "module")
"""Columns in which an operator of the second forward agrees with its counterpart in the first."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Work that an option takes out: its nodes, or if steps from points have none, what stalls say it
    costs."""

    option: str
    label: str
    words: str
    """As in `the record has no ...`."""
    kind: Kind
    phase: str | None
    stall: str
    own: tuple[Kind, ...]
    """Kinds of own time that hold it if it has no nodes."""


BATCHES: Final = Gone(
    "--batch-ready",
    "every batch is ready",
    "wait for a batch that makes a step longer",
    Kind.DATA,
    None,
    "data",
    (Kind.HOST, Kind.GAP),
)

COPIES: Final = Gone(
    "--async-copies",
    "copies overlap with compute",
    "copy that a step waits for",
    Kind.COPY,
    None,
    "copy",
    (),
)

RECOMPUTE: Final = Gone(
    "--no-recompute",
    "without the second forward",
    "second forward",
    Kind.COMPUTE,
    "recompute",
    "recompute",
    (Kind.COMPUTE,),
)

_ESTIMATED: Final = (
    "The record times matrix products and attention of the second forward only. It is taken to last as long "
    "as the first does between the same operators."
)


def taken_out(context: Context, gone: Gone) -> Edit:
    """Return the edit without that work; it changes nothing if the record has none."""

    timed = (context.stalls["kind"] == "recompute").any()
    is_estimated = gone is RECOMPUTE and context.ledger.run.source == "live" and not timed
    # Untimed work may be anything that a module's forward does.
    own_kinds = (*gone.own, Kind.HOST, Kind.GAP) if is_estimated else gone.own

    def apply(draft: Draft, _: float) -> None:
        recorded = draft.recorded
        nodes = recorded.of_kinds((gone.kind,))
        if gone.phase is not None:
            nodes &= recorded.phase == PHASES.index(gone.phase)
        if nodes.any() and gone.phase is None:
            draft.duration[nodes] = 0.0
        elif nodes.any() and gone.phase is not None and recorded.source == "events":
            draft.no_phase(PHASES.index(gone.phase))
        elif recorded.source == "points":
            phase = None if gone.phase is None else PHASES.index("backward")
            if gone is BATCHES and batches_ready(context, draft):
                return
            if each := lost_by_step(context, recorded, gone.stall):
                draft.shorten_each(own_kinds, each, phase, gone.stall)
            else:
                draft.shorten(own_kinds, _lost_ns(context, gone.stall), phase, gone.stall)

    missing = f"{gone.option}: the record has no {gone.words}, so nothing is known to be saved"
    return Edit(gone.label, apply, missing=missing, note=_ESTIMATED if is_estimated else None)


def lost_by_step(context: Context, recorded: Recorded, kind: str) -> dict[tuple[int, int], float]:
    """Return (step, rank) -> what stalls of a kind cost it in that replayed step.

    Empty if it cost them nothing, or if the stalls of some are not on record. Its cost in other steps says
    nothing of one step, as another rank may lose it in each.
    """
    rows = context.stalls_in_steps
    rows = rows[rows["kind"] == kind]
    explained = set(told_steps(context))
    # A loop's batches are noted in all steps of a live run, traced or not.
    if kind == "data" and context.ledger.run.source == "live" and rows["before_ns"].notna().any():
        explained.update(context.steps)
    rows = rows[rows["step"].isin(recorded.steps) & (rows["lost_ns"] > 0)]
    if not set(recorded.steps) <= explained:
        return {}
    lost = rows.groupby(["step", "rank"])["lost_ns"].sum()
    steps, ranks = (lost.index.get_level_values(name).astype(int).tolist() for name in ("step", "rank"))
    return dict(zip(zip(steps, ranks, strict=True), lost.astype(float).tolist(), strict=True))


def batches_ready(context: Context, draft: Draft) -> bool:
    """Take each rank's waits for batches off steps made from points, inside and before. Return whether the
    record has any, step by step."""
    recorded = draft.recorded
    if recorded.source != "points":
        return False
    before, inside = before_by_step(context, recorded), lost_by_step(context, recorded, BATCHES.stall)
    begin_earlier(recorded, draft.release, before)
    if inside:
        draft.shorten_each(BATCHES.own, inside, None, BATCHES.stall)
    return bool(before or inside)


def before_by_step(context: Context, recorded: Recorded) -> dict[tuple[int, int], float]:
    """Return (step, rank) -> what the rank waited for its batch before that step."""
    rows = context.stalls
    rows = rows[(rows["kind"] == BATCHES.stall) & rows["step"].isin(recorded.steps)]
    rows = rows[rows["before_ns"].fillna(0) > 0]
    waited = rows.groupby(["step", "rank"])["before_ns"].sum()
    return {(int(step), int(rank)): float(value) for (step, rank), value in waited.items()}


def _lost_ns(context: Context, kind: str) -> dict[int, float]:
    """Return rank -> cost of stalls of a kind per step, in the steps that know them. For operators run again,
    it is the cost in surveyed steps if no stall shows it."""
    rows, steps = context.stalls_in_steps, told_steps(context)
    rows = rows[(rows["kind"] == kind) & rows["step"].isin(steps)]
    lost = rows.groupby("rank")["lost_ns"].sum()
    if kind == "recompute" and rows.empty:
        return second_forward_ns(context)
    return {int(rank): float(value) / max(1, len(steps)) for rank, value in lost.items()}


def second_forward_ns(context: Context) -> dict[int, float]:
    """Return rank -> ns per surveyed step in the second forward, without its collectives; empty without one.

    Live records hold its matrix products and attention. Each stands for as much as its counterpart in the
    first forward: until the next operator of that forward begins. Exposed collectives and the share of the
    step that capture takes are left out. The last of a forward, and one without a like, stands for itself
    alone.
    """
    rows = context.priced_computes
    rows = keep(rows, rows["duration_ns"].notna() & rows["start_ns"].notna())
    again = (rows["phase"] == "recompute").to_numpy(dtype=bool)
    if not again.any():
        return {}
    order = np.lexsort([rows[name].to_numpy(dtype=np.int64) for name in ("start_ns", "rank", "step")])
    rows, again = rows.iloc[order], again[order]
    own_ns = rows["duration_ns"].to_numpy(dtype=np.float64)
    first = (rows["phase"] == "forward").to_numpy(dtype=bool)
    lasts = np.where(first, np.fmax(own_ns, _until_next(context, rows, first)), own_ns)
    work = numbered(rows, _WORK)
    likes = pd.Series(lasts[first]).groupby(work[first]).mean().reindex(work[again]).to_numpy(np.float64)
    ranks = rows["rank"].to_numpy(dtype=np.int64)[again]
    total = pd.Series(np.fmax(own_ns[again], likes)).groupby(ranks).sum()
    return {int(rank): float(value) / max(1, len(context.surveyed)) for rank, value in total.items()}


def _until_next(context: Context, rows: pd.DataFrame, first: npt.NDArray[np.bool_]) -> _Floats:
    """Return for each operator the ns until the next one begins, if both are of one forward; else 0."""
    start = rows["start_ns"].to_numpy(dtype=np.float64)
    run = numbered(rows, _RUN)
    lasts = np.zeros(len(rows))
    goes_on = first[:-1] & first[1:] & (run[:-1] == run[1:])
    lasts[:-1][goes_on] = np.diff(start)[goes_on]
    waits = np.zeros(len(rows))
    for (step, rank), theirs in context.in_surveyed.groupby(list(_RUN), sort=False):
        here = np.flatnonzero(((rows["step"] == step) & (rows["rank"] == rank)).to_numpy(dtype=bool))
        timed = keep(theirs, theirs["issue_ns"].notna() & theirs["exposed_ns"].notna())
        nearest = np.searchsorted(start[here], timed["issue_ns"].to_numpy(dtype=np.float64), side="right") - 1
        there = nearest >= 0
        np.add.at(waits, here[nearest[there]], timed["exposed_ns"].to_numpy(dtype=np.float64)[there])
    taken = context.surveyed_rows
    capture = (taken["capture_ns"].fillna(0) / taken["duration_ns"].replace(0, np.nan)).astype("float64")
    share = capture.fillna(0).groupby(taken["rank"]).mean().clip(0, 1)
    kept = 1 - rows["rank"].map(share).fillna(0).to_numpy(dtype=np.float64)
    shortened: _Floats = np.maximum(lasts - waits, 0) * kept
    return shortened
