"""Many small messages one after another whose least time is latency: one message would do."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import ROOTED
from shardtoll.analyzers.findings.needless.coalesced import coalesced
from shardtoll.analyzers.roofline import collective_cost
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import (
    Codes,
    Line,
    begins_with,
    keep,
    number,
    numbered,
    tally,
    with_columns,
)
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.records.work import kind_of_work
from shardtoll.ledger.words.human import duration, percent, place, some_size
from shardtoll.ledger.words.human import plural as times

LEAST_MESSAGES: Final = 32
"""Fewer messages in a row are left alone. A program may well reduce a handful of tensors one by one. An
example are the norms' gradients of a small sequence-parallel model. Two a norm, two norms a block: 10 for 2
blocks, 18 for 4. The hundreds of a per-parameter loop are what costs."""

TINY_BYTES: Final = 1024
"""Messages up to this take latency alone on any fabric: at 1 GB/s a kilobyte moves in a microsecond."""

ONE_NUMBER_BYTES: Final = 8
"""Largest message that is one number."""

FASTEST: Final = 0.1
"""Part of the transfers of one kind that are taken as the fastest: one alone may be a clock's error."""

LEAST_SHARE: Final = 0.01
"""Share of the step that coalescing must be able to save. Below it the run-to-run noise of a step (1 to 4 %
in published sweeps) hides the gain."""

DEPENDENT_PHASES: Final = ("forward", "backward", "recompute")
"""Phases with matmuls in them: two collectives with a matmul between depend on it, and cannot be one."""

FUSABLE: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")

BURST: Final = ("rank", "step", "group", "group_id", "op", "dtype", "reduce_op", "root", "phase", "stretch")

KEYS: Final = ("net", "op", "dtype", "reduce_op", "phase", "source")
VALUES: Final = (
    "exposed_ns",
    "message_bytes",
    "saveable_ns",
    "one_floor_ns",
    "one_expected_ns",
    "expected_ns",
)


def _stretches(context: Context, frame: pd.DataFrame) -> Codes:
    """Return for each row how many matmul-like operators its rank had started in the step before it.

    -1 if that is unknown although the phase has matmuls: no operator was recorded, or the collective has no
    time.
    """
    computes = context.computes_in_steps
    matmuls = [op for op in computes["op"].unique() if kind_of_work(str(op)) == "matmul"]
    computes = keep(computes, computes["op"].isin(matmuls)).sort_values("start_ns")
    starts = {
        key: computes["start_ns"].iloc[places].to_numpy(dtype=np.int64)
        for key, places in computes.groupby(["rank", "step"]).indices.items()
    }
    issued = frame["issue_ns"].fillna(frame["start_ns"])
    stretch = np.zeros(len(frame), dtype=np.int64)
    dependent = frame["phase"].isin(DEPENDENT_PHASES).to_numpy(dtype=bool)
    for key, places in frame.groupby(["rank", "step"]).indices.items():
        of_rank, own_at = starts.get(key), issued.iloc[places]
        unknown = dependent[places]
        if of_rank is not None:
            stretch[places] = np.searchsorted(of_rank, own_at.to_numpy(dtype=np.int64, na_value=0), "right")
            unknown = unknown & own_at.isna().to_numpy(dtype=bool)
        stretch[places[unknown]] = -1
    return stretch


def bursts(context: Context) -> pd.DataFrame:
    """Return the collectives that could be one: rows of bursts, with `burst` and `saveable_ns`.

    A burst is at least `LEAST_MESSAGES` of one group, op, dtype and phase on one rank with no matmul between
    them. Latency dominates each of them on this fabric. `saveable_ns` spreads the saving of one message of
    all its bytes over the burst. The saving is the exposed time without waiting for late ranks, less the
    expected time of the one message. Only surveyed steps tell where matmuls are.
    """
    frame = context.in_surveyed
    frame = _with_seen_latency(context, frame)
    judgeable = frame["expected_ns"].notna() & frame["message_bytes"].notna() & frame["op"].isin(FUSABLE)
    small = (frame["expected_ns"] > 0) & (2 * frame["expected_latency_ns"] >= frame["expected_ns"])
    frame = keep(frame, judgeable & small)
    frame = with_columns(frame, stretch=_stretches(context, frame))
    frame = keep(frame, frame["stretch"] >= 0)
    burst = numbered(frame, BURST)
    sizes = np.bincount(burst, minlength=1)[burst]
    frame = keep(with_columns(frame, burst=burst, burst_size=sizes), sizes >= LEAST_MESSAGES)
    if frame.empty:
        return frame
    exposed = frame["exposed_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    transfer = frame["transfer_ns"].to_numpy(dtype=np.float64, na_value=np.inf)
    of_burst = with_columns(frame, moving_ns=np.minimum(exposed, transfer)).groupby("burst")
    ones = pd.DataFrame(
        [
            _one_message(context, op, int(moved), cost_id, number(seen_ns))
            for op, moved, cost_id, seen_ns in zip(
                of_burst["op"].first(),
                of_burst["message_bytes"].sum(),
                of_burst["cost_id"].first(),
                of_burst["seen_ns"].max(),
                strict=True,
            )
        ],
        index=of_burst.size().index,
        columns=["floor_ns", "expected_ns"],
    )
    # A burst with one unknown time has an unknown sum, not a smaller one.
    moving = of_burst["moving_ns"].sum().where(of_burst["moving_ns"].count() == of_burst.size())
    # Floor division keeps the sum of the parts within what the burst can save.
    part = (moving - ones["expected_ns"]).clip(lower=0) // of_burst.size()
    saved: pd.DataFrame = with_columns(
        frame,
        saveable_ns=_whole(part.reindex(frame["burst"])),
        **{
            f"one_{name}": _whole(np.ceil(ones[name] / of_burst.size()).reindex(frame["burst"]))
            for name in ones.columns
        },
    )
    return saved


def _with_seen_latency(context: Context, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives with an expected time also for tiny messages without one, and `seen_ns`.

    A message of a few bytes is latency on any fabric. If no fabric is known, or this job refuted the guessed
    one, the fastest such transfers seen here give the time of one. `seen_ns` is that time if it was taken,
    else unknown.
    """
    seen = pd.Series(pd.NA, index=frame.index, dtype="Int64")
    fit = frame["expected_ns"].isna() & (frame["message_bytes"] <= TINY_BYTES).fillna(False)
    # The time that a rank spends in a rooted operation is not that of the whole.
    took = frame["transfer_ns"].mask(frame["op"].isin(ROOTED), frame["whole_ns"])
    tiny = keep(with_columns(frame, took_ns=took), fit & (took > 0).fillna(False))
    if context.fabric.measured or tiny.empty:
        none: pd.DataFrame = with_columns(frame, seen_ns=seen)
        return none
    for (op, group), rows in tiny.groupby(["op", "group_id"]):
        fastest = int(rows["took_ns"].astype("int64").quantile(FASTEST))
        seen[fit & (frame["op"] == op) & (frame["group_id"] == group)] = max(1, fastest)
    with_expected: pd.DataFrame = with_columns(
        frame,
        seen_ns=seen,
        expected_ns=frame["expected_ns"].fillna(seen),
        expected_latency_ns=frame["expected_latency_ns"].fillna(seen),
    )
    return with_expected


def _one_message(
    context: Context, op: str, message_bytes: int, cost_id: object, seen_ns: int | None
) -> tuple[float, float]:
    """Return floor and expected time of one message; of a tiny one seen here, its time as both."""
    if seen_ns is not None and message_bytes <= TINY_BYTES:
        return float(seen_ns), float(seen_ns)
    cost = collective_cost(context.fabric, op, message_bytes, context.place_of(cost_id))
    return (np.nan, np.nan) if cost is None else (float(cost.floor_ns), float(cost.time_ns))


def _whole(values: pd.Series[float]) -> pd.api.extensions.ExtensionArray:
    """Return floats, NaN for unknown, as nullable whole numbers."""
    floats = values.to_numpy(dtype=np.float64)
    unknown = np.isnan(floats)
    return pd.arrays.IntegerArray(np.where(unknown, 0, floats).astype(np.int64), unknown)


@once
def claimed(context: Context) -> tuple[pd.DataFrame, list[Line]]:
    """Return the rows of the bursts worth a finding, and their groups (by `KEYS`) with figures."""
    frame = bursts(context)
    if frame.empty:
        return frame, []
    result = tally(frame, KEYS, VALUES, context.surveyed)
    shares = [context.share_as_watched(line.figures["saveable_ns"]) for line in result.lines]
    worth = [
        line
        for line, share in zip(result.lines, shares, strict=True)
        if share is not None and share >= LEAST_SHARE
    ]
    frame = with_columns(frame, code=result.code)
    return keep(frame, frame["code"].isin([line.code for line in worth])), worth


def find(context: Context) -> list[Finding]:
    """Return one finding a group, op, dtype, phase and line.

    Counts, bytes and times are per surveyed step, on the rank where they are largest. The counterfactual is
    one message per burst, with all its bytes, at its expected time. If the fabric is unknown or refuted, tiny
    messages are compared with the fastest of them; others give no finding.
    """
    frame, lines = claimed(context)
    by_code = frame.groupby("code") if lines else None
    findings = []
    for line in lines:
        assert by_code is not None, "a line has rows"
        toll, saving, moved = (line.figures[name] for name in ("exposed_ns", "saveable_ns", "message_bytes"))
        if toll is None or saving is None:
            continue
        share = context.share_as_watched(toll) or 0.0
        op, phase, source = str(line.first["op"]), str(line.first["phase"]), line.text("source")
        one_floor = line.figures["one_floor_ns"]
        of_line = keep(frame, frame["code"] == line.code)
        settles = phase == "other" and _after_backward(context, of_line)
        median_bytes = int(by_code["message_bytes"].median()[line.code])
        # A user's loop between backward and optimizer is about a norm or flag if it sends one number, else
        # about gradients.
        of_norms = phase == "optimizer" or (settles and median_bytes <= ONE_NUMBER_BYTES)
        phase = "optimizer" if settles else phase
        findings.append(
            Finding(
                kind="latency-bound",
                severity="warning",
                title=f"{times(line.each, f'small {op}')} per step on {line.first['net']} in {phase}, "
                f"{some_size(moved)} in all, cost {duration(toll)} ({percent(share)} of it), "
                f"most of it latency{place(None, source)}",
                toll_ns=toll,
                floor_ns=one_floor,
                saving_ns=min(toll, saving),
                bytes=moved,
                count=line.count,
                ranks=line.ranks,
                where=replace(line.where("source", "group", "mesh_dim", op=op), phase=phase),
                evidence=(
                    Evidence("most in a row, no matmul between", int(by_code["burst_size"].max()[line.code])),
                    Evidence("median message", median_bytes, "bytes"),
                    *_latency(context, line),
                    Evidence("expected of the messages one by one", line.figures["expected_ns"], "ns"),
                    Evidence("expected of the coalesced messages", line.figures["one_expected_ns"], "ns"),
                    Evidence("floor of the coalesced messages", one_floor, "ns"),
                    Evidence("fabric", context.fabric_words(of_line.index.to_numpy())),
                ),
                rows=Rows.of(collectives=of_line.index),
                remedy=_remedy(
                    op,
                    "optimizer" if of_norms else "other",
                    line.count,
                    line.text("mesh_dim"),
                    source,
                    line.text("reduce_op"),
                    whole=_whole_tensors(of_line),
                ),
                confidence="certain"
                if context.fabric.measured and number(line.first["seen_ns"]) is None
                else "likely",
            )
        )
    return findings


def _latency(context: Context, line: Line) -> tuple[Evidence, ...]:
    expected = number(line.first["expected_ns"])
    if number(line.first["seen_ns"]) is not None:
        return (
            Evidence("the fastest tenth of such messages here takes", expected, "ns"),
            Evidence(
                "why not what the fabric expects", "it is unknown, or refuted by this job's own transfers"
            ),
        )
    return (
        Evidence("expected of one small message", expected, "ns"),
        Evidence("of it latency", number(line.first["expected_latency_ns"]), "ns"),
        *_way(context, number(line.first["cost_id"])),
    )


def _way(context: Context, cost_id: int | None) -> tuple[Evidence, ...]:
    """Return by which algorithm and protocol one of them is fastest, and how that is known."""
    if cost_id is None:
        return ()
    cost = context.costs[cost_id]
    way = " with ".join(part for part in (cost.algorithm, cost.protocol) if part)
    return (Evidence("fastest by", f"{way}, {cost.steps} steps"), Evidence("basis", cost.basis))


def _after_backward(context: Context, rows: pd.DataFrame) -> bool:
    """Whether all of it comes after the last work before the optimizer, of backward: what clips or logs.

    Capture knows the optimizer's own code and torch's clipping by their stacks. A user's loop that handles
    gradients before `step()` belongs to the same phase.
    """
    computes = context.computes_in_steps
    computes = keep(computes, computes["phase"] != "optimizer")
    last = computes.loc[computes.groupby(["rank", "step"])["start_ns"].idxmax()]
    joined = rows[["rank", "step", "issue_ns"]].merge(
        last[["rank", "step", "start_ns", "phase"]], on=["rank", "step"], how="left"
    )
    after = (joined["phase"] == "backward") & (joined["issue_ns"] > joined["start_ns"])
    return bool(after.fillna(False).all())


def _whole_tensors(rows: pd.DataFrame) -> bool:
    """Whether `full_tensor()` asked for all of it."""
    return bool(begins_with(rows["caused_by_op"], "DTensor.full_tensor").all())


def _remedy(
    op: str,
    phase: str,
    count: int,
    mesh_dim: str | None,
    source: str | None,
    reduce_op: str | None = None,
    *,
    whole: bool = False,
) -> Remedy:
    if whole:
        text = (
            "Reduce norms of each rank's own part: full_tensor() gathers whole tensors here. "
            "`clip_grad_norm_` of all parameters, with foreach=True, reduces one number."
        )
        group = "" if mesh_dim is None else f', group=mesh.get_group("{mesh_dim}")'
        written = (
            "own = torch.stack([g.to_local().norm() for g in gradients]).square().sum()\n"
            f"dist.all_reduce(own{group})  # then norm = own.sqrt()\n"
            "# or: clip_grad_norm_(model.parameters(), max_norm, foreach=True)"
        )
    elif phase == "optimizer":
        text = (
            "Take the norms of all gradients first, stack them and reduce them together. `clip_grad_norm_` "
            f"of all parameters does so. Use the fused or foreach optimizer instead of one {op} per "
            "parameter."
        )
        written = (
            "clip_grad_norm_(model.parameters(), max_norm, foreach=True)  # one reduction instead of "
            f"{count}\n"
            "optimizer = torch.optim.AdamW(model.parameters(), foreach=True)\n"
            "# or by hand: norm = torch.stack([g.norm() for g in gradients]).norm()"
        )
    else:
        text = f"Copy the tensors into one flat buffer, call one {op} on it, and copy back."
        written = coalesced(op, mesh_dim, source, reduce_op)
    return Remedy(
        text=text,
        code=written,
        counterfactual=f"one message with all bytes of each row, not {count}, at its expected time",
    )
