"""A pipeline's step with another number of micro-batches."""

from __future__ import annotations

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.pipelines.pipeline_shape import shape
from shardtoll.analyzers.roofline.model.direct import PAIRED
from shardtoll.analyzers.shared.tally import keep
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.ledger import UsageError


def more_micro_batches(context: Context, count: int) -> Edit:
    """Return the edit: a step of p passes and s stages lasts (p + s - 1) / p times its work.

    At the low end of its band each pass keeps its cost outside compute, however small its micro-batch. Raises
    UsageError if the run shows no pipeline whose micro-batches are known.
    """
    pipes = shape(context)
    if pipes is None or pipes.micro_batches is None or pipes.stages_per_rank is None:
        raise UsageError(
            "--micro-batches: the run shows no pipeline whose micro-batches are known",
            "leave it out, or report a run with a pipeline",
        )
    idle = pipes.ranks - 1
    was, now = pipes.passes or pipes.micro_batches * pipes.stages_per_rank, count * pipes.stages_per_rank
    factor = (1 + idle / now) / (1 + idle / was)
    low = max(factor, _with_fixed_costs(context, idle, was, now))

    def apply(draft: Draft, end: float) -> None:
        draft.step_factor *= low if end < 0 else factor

    return Edit(f"{count} micro-batches in place of {pipes.micro_batches}", apply, banded=low > factor)


def _with_fixed_costs(context: Context, idle: int, was: float, now: float) -> float:
    """Return the step's time with `now` passes as a share of that with `was`, on the rank that computes most.

    Work that is neither compute nor exposed collectives costs each pass as much as before: launches, the
    messages themselves. The bubble that compute of that length has separates the messages from the bubble.
    """
    rows = context.parts_rows
    if rows.empty:
        return 0.0
    means = rows.groupby("rank")[["duration_ns", "compute_ns", "exposed_comm_ns", "capture_ns"]].mean()
    means = means.astype("float64").fillna(0.0)
    rank = means["compute_ns"].idxmax()
    of_rank = context.in_surveyed
    of_rank = keep(of_rank, (of_rank["rank"] == rank) & of_rank["op"].isin(PAIRED))
    messages_ns = float(of_rank["exposed_ns"].fillna(0).sum()) / max(1, len(context.surveyed))
    one = means.loc[rank]
    others_ns = max(0.0, float(one["exposed_comm_ns"]) - messages_ns)
    compute_ns = float(one["compute_ns"])
    lasts_ns = float(one["duration_ns"] - one["capture_ns"])
    if not compute_ns or lasts_ns <= 0:
        return 0.0
    fixed_ns = max(0.0, lasts_ns - others_ns - compute_ns * (1 + idle / was)) / (was + idle)
    return (others_ns + compute_ns * (1 + idle / now) + fixed_ns * (now + idle)) / lasts_ns
