"""The part of the headline that speaks of an idle device, if that costs most."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.origin import origins
from shardtoll.analyzers.findings.stages import pipeline_imbalance
from shardtoll.analyzers.findings.stragglers.lateness import host_computes
from shardtoll.analyzers.headline.step_words import step_word
from shardtoll.analyzers.shared import host_code
from shardtoll.analyzers.shared.gpu_maker import gpu_maker
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.records.levels import watched_steps
from shardtoll.ledger.words.human import duration, percent

IDLE_SHARE: Final = 0.2
"""Share of all ranks' steps from which idle time leads, if it is also `MORE` times what
communication costs."""

MORE: Final = 3.0
MOST: Final = 0.5
"""Share of all ranks' steps from which idle time leads already if it is `TWICE` what communication costs, and
all ranks are on record."""
TWICE: Final = 2.0
ALMOST: Final = 0.75
"""Share of idle time from which one reason is said to be all of it."""

EVEN: Final = 0.8
"""Part of the longest idle time that every rank must have for it to be said of all of them."""

TELLING: Final = 0.01
"""Share of the steps from which the recording is said to be left out."""

STAGES: Final = ("pipeline-imbalance", "pipeline-bubble", "straggler")
"""Kinds of findings that say why stages of a pipeline stand idle."""
LATE: Final = ("straggler",)
REASONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "data": ("Data loading costs most", ("data-stall",)),
    "host-sync": ("The host stops to read values from the device", ("host-sync",)),
    "bubble": ("Pipeline stages stand idle, not for the network", STAGES),
    "launch": ("The CPU launches kernels too slowly", ("launch-bound",)),
}
"""Kind of stall -> what to say if it is more than half of the idle time, and the kinds of its findings."""
BY_HOST: Final = ("data-stall", "host-sync", "checkpoint-stall")
"""Kinds of findings on what a host does in place of operators."""
ADVISE: Final = (*BY_HOST, "launch-bound", "pipeline-imbalance", "pipeline-bubble")
"""Kinds of findings that say why a device is idle."""
BY_SLOW_HOST: Final = (("host-sync",), ("launch-bound",))
"""The `REASONS` that a survey makes worse."""
SURVEYED: Final = "Every step was surveyed, which slows the host"
SURVEYED_HINT: Final = "audit at the default level to see how much of that is the job's own"
UNTOLD: Final = "Only surveyed steps tell idle time, and a survey slows the host"
UNTOLD_HINT: Final = "how much of that is the job's own is unknown"
CAPTURES: Final = "The host records CUDA graphs, and nothing of them runs yet"
CAPTURES_HINT: Final = "record steps that replay them"
ON_CPU: Final = "The host is busy outside operators"


def _shares(context: Context) -> tuple[float, float]:
    """Return the shares of idle time and of exposed communication in all ranks' steps without recording."""
    rows = context.parts_rows
    total = float((rows["duration_ns"] - rows["capture_ns"]).sum())
    if total <= 0:
        return 0.0, 0.0
    return float(rows["idle_ns"].sum()) / total, float(rows["exposed_comm_ns"].sum()) / total


def _device(context: Context) -> str:
    return "device" if gpu_maker(context.ledger.run.device) is None else "GPU"


def _all_idle(context: Context, mean: pd.DataFrame) -> str:
    """Return how long all ranks are idle, as a mean over them."""
    idle, own = float(mean["idle_ns"].mean()), float(mean["own_ns"].mean())
    seen = "" if len(mean) == context.ledger.run.world_size else "recorded "
    who = f"{'both' if len(mean) == 2 else f'all {len(mean):,}'} {seen}ranks"
    does = (
        f"{who} run no operator" if host_computes(context) else f"the {_device(context)}s of {who} are idle"
    )
    return (
        f"{does} for {duration(idle)} ({percent(idle / own)}) of the {duration(own)} "
        f"{step_word(context)} (mean)"
    )


def besides(context: Context) -> str:
    """Return a clause on idle time that is more than exposed communication, though it does not lead."""
    share, comm_share = _shares(context)
    if share < IDLE_SHARE or share <= comm_share:
        return ""
    # The steps as the bars show them: capture is left out of watched ones.
    rows = context.parts_rows
    watched = bool(watched_steps(context.ledger.tables["steps"]))
    shown_ns = rows["duration_ns"] - rows["capture_ns"] if watched else rows["duration_ns"]
    return f"; another {percent(float(rows['idle_ns'].sum()) / float(shown_ns.sum()))} is idle"


def clause(
    context: Context, kinds: Collection[str], *, shown: bool = False
) -> tuple[str, tuple[str, ...]] | None:
    """Return what idle time says, with its figures, and the kinds of findings that say what to do about it.

    None if communication or compute costs more. `kinds` of the findings: launches are named only if a finding
    stands behind that. `shown`: the report has idle time in no finding. Every view has a line on that, which
    says how to find its code.
    Over watched steps, if surveyed ones show how they divide; else over the surveyed ones.
    """
    share_idle, comm_share = _shares(context)
    # If ranks are missing, exposed communication has causes that nobody sees.
    mostly = share_idle >= MOST and not context.ledger.run.ranks_missing
    if share_idle < IDLE_SHARE or share_idle < (TWICE if mostly else MORE) * comm_share:
        return None
    steps, stalls = context.parts_rows, context.stalls_in_steps
    idle = float(context.surveyed_rows["idle_ns"].sum())
    lost = keep(stalls, stalls["step"].isin(context.surveyed)).groupby("kind")["lost_ns"].sum()
    reasons = [kind for kind in REASONS if kind != "launch" or "launch-bound" in kinds]
    lost_by_kind = {kind: float(lost.get(kind, 0)) for kind in reasons}
    most = max(lost_by_kind, key=lambda kind: lost_by_kind[kind])
    explained = lost_by_kind[most] > idle / 2
    head, advise = REASONS[most] if explained else ("Idle time costs most", ADVISE)
    in_part = explained and most != "bubble" and lost_by_kind[most] < ALMOST * idle
    if float(lost.get("host", 0)) > idle / 2 and host_computes(context):
        head, advise, in_part = ON_CPU, BY_HOST, False
    own_ns = steps["duration_ns"] - steps["capture_ns"]
    mean = steps.assign(own_ns=own_ns).groupby("rank")[["own_ns", "idle_ns"]].mean()
    row = int(np.argmax(mean["idle_ns"].to_numpy(dtype=np.float64)))
    worst = mean.iloc[row]
    if len(mean) > 1 and float(mean["idle_ns"].min()) >= EVEN * float(worst["idle_ns"]):
        fact = _all_idle(context, mean)
    else:
        who = f"rank {mean.index[row]}" + ("" if host_computes(context) else f"'s {_device(context)}")
        does = "runs no operator" if host_computes(context) else "is idle"
        share = percent(float(worst["idle_ns"]) / float(worst["own_ns"]))
        fact = (
            f"{who} {does} for {duration(float(worst['idle_ns']))} ({share}) of its "
            f"{duration(float(worst['own_ns']))} {step_word(context)}"
        )
    if mean.index[row] in context.slowed_ranks and advise in (ADVISE, BY_HOST, *BY_SLOW_HOST):
        # The host's other work matters less than its recording. Loaders and schedules are not slowed.
        watched = (context.step_rows["level"] == "watch").any()
        head, hint = (UNTOLD, UNTOLD_HINT) if watched else (SURVEYED, SURVEYED_HINT)
        return f"{head}: {fact}; {hint}", ()
    if in_part:
        # One rank's part is the toll of its finding; of several it is a mean, which would be a second figure.
        part = lost_by_kind[most] / idle
        of_it = duration(part * float(worst["idle_ns"])) if len(mean) == 1 else percent(part)
        fact += f", {of_it} of that for this reason"
    did = _by_code(context, mean.index[row], float(worst["idle_ns"])) if advise is ADVISE else None
    if float(steps["capture_ns"].sum()) >= TELLING * float(steps["duration_ns"].sum()):
        # The step that the bars show holds the recording.
        fact += " without recording"
    if did is not None and did.captures:
        return f"{CAPTURES}: {fact}; {CAPTURES_HINT}", ()
    if did is not None and did.source is not None:
        return f"{head}: {fact}; speed up {_short(did.source)}, or call it ahead of the step", ()
    if most == "bubble":
        uneven = pipeline_imbalance.worst(context)
        late = next((origin for origin in origins(context) if origin.steady), None)
        if uneven is not None:
            fact = f"{fact}, while {pipeline_imbalance.clause(uneven)}"
        elif late is not None and "straggler" in kinds:
            longer = duration(late.before_ns - late.without_ns)
            return f"{head}: {fact}, and rank {late.rank} is late, which makes the step {longer} longer", LATE
    # Nothing of a dry run's host can be recorded: it ran nowhere.
    unexplained = advise is ADVISE and not set(ADVISE) & set(kinds) and not context.ledger.run.is_forecast
    unexplained = unexplained and not shown
    return f"{head}: {fact}{f'; {_find(context)}' if unexplained else ''}", advise


def _find(context: Context) -> str:
    """Return how to find what a host does in idle time that no finding explains."""
    if context.ledger.run.source == "live":
        return "find its code with py-spy dump"
    return "record with_stack=True to see the host's code"


def _by_code(context: Context, rank: int, idle_ns: float) -> host_code.Doing | None:
    """Return the code that the rank's host was in for more than half of its idle time; None if none was."""
    surveyed = context.surveyed_rows
    steps = int((surveyed["rank"] == rank).sum())
    stalls = keep(context.stalls_in_steps, context.stalls_in_steps["step"].isin(context.surveyed))
    did = host_code.most(keep(stalls, stalls["rank"] == rank), steps)
    return did if did is not None and did.mean_ns > idle_ns / 2 else None


def _short(source: str) -> str:
    """Return `train.py:12 (main)` without the folders before it."""
    path, colon, rest = source.partition(":")
    return f"{path.rsplit('/', 1)[-1]}{colon}{rest}"
