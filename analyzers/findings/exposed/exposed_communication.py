"""Communication that nothing hid, by place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.bounds.comm_bounds import most_free_compute_ns
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.exposed import ddp_buckets, exposed_remedies, sharded_blocks
from shardtoll.analyzers.findings.habits import expert_imbalance
from shardtoll.analyzers.findings.habits.billed import billed_as_habits
from shardtoll.analyzers.findings.needless import (
    equal_inputs,
    gathered_logits,
    inverse_pairs,
    latency_bound,
    partly_used,
    reduced_before_ddp,
    redundant_collective,
    sync_every_microbatch,
)
from shardtoll.analyzers.findings.needless.same_place import in_watched
from shardtoll.analyzers.findings.stages import pipeline_bubble
from shardtoll.analyzers.findings.stragglers import late_bills
from shardtoll.analyzers.shared import serving_remedies
from shardtoll.analyzers.shared.fsdp_blocks import left_by_larger, too_small_shards
from shardtoll.analyzers.shared.layer_names import Names, pattern
from shardtoll.analyzers.shared.placements import hidden
from shardtoll.analyzers.shared.remedy_code import OBJECT_CALLS
from shardtoll.analyzers.shared.tally import Codes, Line, keep, tally, with_columns
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Severity, Where
from shardtoll.ledger.words.human import duration, in_steps, percent, place, some_size
from shardtoll.ledger.words.human import plural as times

LEAST_SHARE: Final = 0.01
"""Places that cost a smaller share of the step are added up in one finding."""

WARNING_SHARE: Final = 0.1
"""Share of the step from which an accelerator's idling is a warning. On CPUs it stays information:
transport and training share the cores there, so hiding one behind the other gains little."""

LEAST_HIDING: Final = 0.8
"""Part of a transfer that compute must be able to hide; otherwise the advice begins with sending less."""

GATHERS: Final = ("all_gather", "gather")

KEYS: Final = ("phase", "modules", "source", "op", "net")
"""`modules`: the module with its numbers as `*`, so that the layers of a model are one place."""
COLUMNS: Final = (
    *("step", "rank", "op", "group", "mesh_dim", "net", "phase", "implicit", "placements_from"),
    *("caused_by_op", "module", "parameter", "source"),
    *("exposed_ns", "transfer_ns", "message_bytes", "floor_ns", "dtype"),
)
"""Columns of a collective that are read."""
VALUES: Final = ("exposed_ns", "waited_ns", "moving_ns", "message_bytes", "floor_ns")


def left_over(context: Context) -> pd.DataFrame:
    """Return the collectives in the steps `timed` that no other finding bills, with `COLUMNS`.

    Implicit redistributes, repeats and coalescible small messages have findings of their own. The last two
    are known of surveyed steps; what has the same place in watched steps is billed there as well.
    """
    frame = context.in_timed[list(COLUMNS)]
    billed = hidden(frame)
    for rows in (
        redundant_collective.repeats(context),
        partly_used.partly_used(context),
        inverse_pairs.gathered_again(context),
        inverse_pairs.there_and_back(context),
        equal_inputs.needless(context),
        sync_every_microbatch.needless(context),
        reduced_before_ddp.reduced_before(context),
        gathered_logits.gathered(context),
        billed_as_habits(context),
        latency_bound.claimed(context)[0],
    ):
        billed |= frame.index.isin(rows.index) | frame.index.isin(in_watched(context, rows))
    return keep(frame, ~billed)


def find(context: Context) -> list[Finding]:
    """Return one finding a phase, module, line, op and group, and one for the small rest.

    Modules that differ in numbers only, as the layers of a model, are one place: `blocks.*.mlp`.

    Exposed times are per step, on the rank where they are largest. Each collective is in one finding, so the
    tolls bill no time twice. Waiting that `straggler` or `pipeline-bubble` bills is left out. The
    counterfactual is full overlap: the transfer hidden behind the step's compute. For DDP with one bucket for
    all gradients, it is all but the last of smaller buckets behind backward's. The saving therefore leaves
    out waiting for late ranks, which no overlap removes, and never exceeds the compute that hides nothing
    yet. Collectives of unknown exposed time are left to `incomplete-input`.
    """
    frame = left_over(context)
    frame = keep(frame, frame["exposed_ns"].notna())
    if frame.empty or not context.step_ns:
        return []
    bubbles = pipeline_bubble.message_waits(context)["lost_ns"]
    waited = sum(
        billed.reindex(frame.index).fillna(0).to_numpy(dtype=np.int64)
        for billed in (late_bills.billed_ns(context), expert_imbalance.billed_ns(context), bubbles)
    )
    exposed = frame["exposed_ns"].to_numpy(dtype=np.int64) - waited
    transfer = frame["transfer_ns"].to_numpy(dtype=np.int64, na_value=np.iinfo(np.int64).max)
    frame = with_columns(
        frame,
        exposed_ns=pd.array(exposed, dtype="Int64"),
        waited_ns=waited,
        moving_ns=np.minimum(exposed, transfer),
        all=0,
        modules=pattern(frame["module"]),
    )
    result = tally(frame, KEYS, VALUES, context.timed)
    large = [
        line
        for line in result.lines
        if _share(context, line) >= LEAST_SHARE or (_logged(line) and not context.serves)
    ]
    modules = Names(frame["module"], result.code)
    findings = [
        replace(
            _finding(
                context,
                line,
                result.places(line),
                modules.place(line, "modules"),
                _usual_bytes(keep(frame, result.code == line.code)),
            ),
            rows=Rows.of(collectives=result.places(line)),
        )
        for line in large
    ]
    codes = {line.code for line in large}
    small = [line for line in result.lines if line.code not in codes]
    rest = keep(frame, ~np.isin(result.code, [*codes]))
    for line in tally(rest, ("all",), VALUES, context.timed).lines:
        if _share(context, line) >= LEAST_SHARE:
            made = _rest(context, line, rest.index.to_numpy(), small)
            findings.append(replace(made, rows=Rows.of(collectives=rest.index)))
    return findings


def _floor_ns(line: Line) -> int | None:
    """Return the floor of a place; None if it is above the toll. Then transfers are partly hidden, or the
    floor is known of a few on another rank: the toll cannot be compared with it."""
    toll, floor = line.figures["exposed_ns"], line.figures["floor_ns"]
    return None if toll is None or floor is None or floor > toll else floor


def _logged(line: Line) -> bool:
    """Whether a whole tensor is gathered outside the model's passes, as for logging: reported however small.

    By `full_tensor()`, or by a call of the user's own that names no parameter, as an optimizer's shards do.
    """
    cause = line.text("caused_by_op") or ""
    if line.first["phase"] != "other":
        return False
    by_hand = cause == line.first["op"] and cause in GATHERS and line.text("parameter") is None
    return by_hand or cause.startswith("DTensor.full_tensor")


def _share(context: Context, line: Line) -> float:
    return context.share(line.figures["exposed_ns"], context.timed) or 0.0


def _severity(context: Context, share: float) -> Severity:
    return "warning" if share >= WARNING_SHARE and not context.on_cpu else "info"


def _usual_bytes(rows: pd.DataFrame) -> int | None:
    """Return the size that most of a place's messages have; None unknown.

    DDP's first step reduces all gradients in one bucket, before it cuts them into buckets of their own.
    """
    sizes = rows["message_bytes"].value_counts()
    return None if sizes.empty else int(sizes.index[0])


def _finding(
    context: Context, line: Line, places: Codes, module: str | None, message_bytes: int | None
) -> Finding:
    op, phase = str(line.first["op"]), str(line.first["phase"])
    floor = _floor_ns(line)
    in_all = " in all" if line.count > 1 else ""
    against = "" if floor is None else f"; floor {duration(floor)}"
    alone = ddp_buckets.one_bucket(context, line, message_bytes)
    return _made(
        context,
        line,
        places,
        f"{in_steps(line.each, op)}, {some_size(line.figures['message_bytes'])}{in_all}, "
        f"on {line.first['net']} in {phase}"
        f"{place(module, line.text('source'))}{against}",
        replace(
            line.where("phase", "source", "group", "mesh_dim", op=op),
            module=module,
            parameter=line.text("parameter") if line.count == 1 else None,
        ),
        _remedy(context, line, message_bytes, module) if alone is None else alone.remedy,
        alone,
        only_hides=alone is None and _only_hides(context, line, message_bytes),
        left=_left(line, message_bytes),
    )


def _left(line: Line, message_bytes: int | None) -> float | None:
    """Return the part of its time that stays where the remedy sends less, and hides nothing; else None.

    Nothing, if one step in many does it.
    """
    cause = line.text("caused_by_op") or ""
    if _logged(line) or cause in OBJECT_CALLS:
        return 0.0
    if message_bytes is None or not too_small_shards(cause, message_bytes, line.count):
        return None
    return left_by_larger(message_bytes, line.count)


def _only_hides(context: Context, line: Line, message_bytes: int | None) -> bool:
    op, phase = str(line.first["op"]), str(line.first["phase"])
    if context.serves and serving_remedies.exposed(op) is not None:
        return False
    return exposed_remedies.can_only_hide(line.text("caused_by_op") or "", op, phase, message_bytes)


def _remedy(context: Context, line: Line, message_bytes: int | None, module: str | None) -> Remedy:
    op, phase = str(line.first["op"]), str(line.first["phase"])
    served = serving_remedies.exposed(op) if context.serves else None
    if served is not None:
        return Remedy(served.text, served.code, exposed_remedies.COUNTERFACTUAL)
    cause = line.text("caused_by_op") or ""
    torch, count = context.ledger.run.torch, line.count
    sharded = None
    if not too_small_shards(cause, message_bytes, count):
        sharded = sharded_blocks.remedy(context, cause, module, line.text("parameter"))
    return sharded or exposed_remedies.remedy(cause, op, phase, message_bytes, torch, count=count)


def _rest(context: Context, line: Line, places: Codes, small: Sequence[Line]) -> Finding:
    """Return the finding of all small places, with the advice for the one that costs most of them."""
    most = max(small, key=lambda each: each.figures["exposed_ns"] or 0)
    what = (
        f"{in_steps(line.each, 'collective')} at {times(len(small), 'place')} of less than "
        f"{percent(LEAST_SHARE)} each"
    )
    advice, only_hides = _remedy(context, most, None, None), _only_hides(context, most, None)
    return _made(context, line, places, what, Where(), advice, only_hides=only_hides)


def _made(
    context: Context,
    line: Line,
    places: Codes,
    what: str,
    where: Where,
    remedy: Remedy,
    alone: ddp_buckets.OneBucket | None = None,
    *,
    only_hides: bool,
    left: float | None = None,
) -> Finding:
    toll, moving = line.figures["exposed_ns"], line.figures["moving_ns"]
    if toll is None or moving is None:
        raise AssertionError("rows of unknown exposed time were left out")
    # Overlap can hide no more than there is compute that hides nothing yet, which surveyed steps tell.
    free = None if left is not None else most_free_compute_ns(context)
    if left == 0.0:
        remedy = replace(remedy, counterfactual=exposed_remedies.SELDOM)
    saving = None if free is None else min(toll, moving, int(free))
    if left is not None:
        saving = int((1 - left) * min(toll, moving))
    if alone is not None:
        saving = min(toll, alone.saving_ns(moving), *(() if free is None else (int(free),)))
        what += ddp_buckets.clause(alone, moving)
    if free is not None and free < LEAST_HIDING * moving and only_hides:
        remedy = exposed_remedies.sending_less(remedy, duration(free), line.text("dtype"))
    share = _share(context, line)
    waiting = toll - moving
    # Who is late is the straggler's bill; here it only says that a faster network would not help.
    late = f", {duration(waiting)} of it waiting for a later rank" if waiting > toll / 2 else ""
    return Finding(
        kind="exposed-communication",
        severity=_severity(context, share),
        title=f"{duration(toll)} per step ({percent(share)}) exposed in {what}{late}",
        toll_ns=toll,
        floor_ns=_floor_ns(line),
        saving_ns=saving,
        bytes=line.figures["message_bytes"],
        count=line.count,
        ranks=line.ranks,
        where=where,
        evidence=(
            Evidence("exposed", toll, "ns"),
            Evidence("of it moving data, or unknown whether moving or waiting", moving, "ns"),
            Evidence("share of the step", round(share, 4), "share"),
            Evidence(
                "waiting on top, billed as straggler or pipeline-bubble", line.figures["waited_ns"], "ns"
            ),
            *(() if alone is None else alone.evidence),
            Evidence("fabric", context.fabric_words(places)),
        ),
        remedy=replace(remedy, counterfactual=None) if saving is None else remedy,
        confidence="likely",
    )
