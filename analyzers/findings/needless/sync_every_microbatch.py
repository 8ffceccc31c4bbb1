"""Gradients reduced on each micro-batch, where the optimizer needs them reduced once."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.compute_dtypes import formats
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.micro_batches import passes_begun
from shardtoll.analyzers.findings.needless.same_place import in_watched
from shardtoll.analyzers.findings.needless.wide_dtype import LEAST_ELEMENTS, WIDTH
from shardtoll.analyzers.shared.layer_names import Names, pattern
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
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Rows
from shardtoll.ledger.words.human import place, some_size
from shardtoll.ledger.words.human import plural as times

BUCKETS: Final = "DistributedDataParallel"
"""Causes that begin so reduce buckets, which are made anew after the first backward."""

KEPT_IN_PARTS: Final = ("DeepSpeed.ZeRO-2", "DeepSpeed.ZeRO-3")
"""Wrappers that keep gradients in parts and so have to reduce every micro-batch."""

REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")

KEYS: Final = ("caused_by_op", "op", "net", "phase", "line")

WINDOW: Final = ("rank", "window", "gradients_begun", "subject")


@once
def needless(context: Context) -> pd.DataFrame:
    """Return the gradient reductions that a later micro-batch of the same optimizer step repeats.

    Backward passes, as operators show them, separate micro-batches: a pass begins when backward follows
    forward on a rank. `window` numbers the optimizer's steps; if no optimizer was seen to step, a window is
    an audit step. It also ends when gradients are seen to be cleared: `gradients_begun`. `subject` is what is
    reduced: parameter, cause, op, group and size, of DDP the whole pass. `passes` is how many micro-batches
    of the window reduced it; the last is needed.

    A user's own reduction may be of a gradient without a parameter's name: after torch.autograd.grad, or
    packed with others. It counts if an optimizer is seen (`_by_hand`).
    """
    frame = context.in_surveyed
    mask = (
        frame["phase"].isin(("backward", "other"))
        & frame["op"].isin(REDUCTIONS)
        & (frame["parameter"].notna() | _unnamed(frame))
        & (frame["group_size"] > 1)
        & ~frame["of_values"].fillna(False).astype(bool)
        & ~begins_with(frame["caused_by_op"], KEPT_IN_PARTS)
    )
    frame = keep(frame, mask)
    if frame.empty:
        return frame
    frame = with_columns(frame, at=frame["issue_ns"].fillna(frame["start_ns"]))
    frame = with_columns(frame, micro=passes_begun(context, frame, backward=True))
    frame = keep(frame, frame["parameter"].notna().to_numpy(dtype=bool) | _by_hand(context, frame))
    frame = keep(frame, frame["at"].notna() & (frame["micro"] > 0))
    if frame.empty:
        return frame
    frame = frame.sort_values(["rank", "at"], kind="stable")
    stepped = frame["optimizer_steps"].max()
    counts_optimizer_steps = not pd.isna(stepped) and int(stepped) > 0
    if counts_optimizer_steps:
        # A reduction without optimizer steps is from an optimizer's closure, which needs each of its
        # gradients.
        frame = keep(frame, frame["optimizer_steps"].notna())
        if frame.empty:
            return frame
    window = frame["optimizer_steps"] if counts_optimizer_steps else frame["step"]
    begun = frame["gradients_begun"].fillna(-1).astype(np.int64)
    frame = with_columns(frame, window=window.to_numpy(dtype=np.int64), gradients_begun=begun, subject=-1)
    frame["subject"] = _subjects(frame)
    of_window = frame.groupby(list(WINDOW))
    passes, last = of_window["micro"].transform("nunique"), of_window["micro"].transform("max")
    again: pd.DataFrame = keep(with_columns(frame, passes=passes), (passes > 1) & (frame["micro"] < last))
    return again


def _unnamed(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows user code asked for outside of modules and passes, of no known parameter."""
    mask: pd.Series[bool] = (
        frame["parameter"].isna()
        & (frame["phase"] == "other")
        & frame["module"].isna()
        & frame["source"].notna()
        & ~frame["implicit"].fillna(True).astype(bool)
    )
    return mask


def _by_hand(context: Context, frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which of the unnamed rows can be gradients, by their size and by when they are issued.

    A line reduces gradients if it never ran before a backward and at least once reduces enough. Enough is as
    many elements as the smallest matrix product of backward has. Smaller ones of the same line are biases.
    Other reductions, as of a loss, activations or statistics of a batch, are needed on each micro-batch. A
    group's other reductions are not gradients either, if its gradients have their names.
    """
    if not _known(context):
        return np.zeros(len(frame), dtype=bool)
    line = numbered(frame, ["source", "op", "group"])
    width = frame["dtype"].map(WIDTH).to_numpy(dtype=np.float64, na_value=np.nan)
    elements = frame["message_bytes"].to_numpy(dtype=np.float64, na_value=0) / width
    unnamed = frame["parameter"].isna().to_numpy(dtype=bool)
    least = formats(context).least_product
    large = np.bincount(line, weights=elements >= (least or LEAST_ELEMENTS), minlength=1)[line] > 0
    early = np.bincount(line, weights=frame["micro"].to_numpy() == 0, minlength=1)[line] > 0
    group = numbered(frame, ["group"])
    named = np.bincount(group, weights=~unnamed, minlength=1)[group] > 0
    candidates: npt.NDArray[np.bool_] = unnamed & large & ~early & ~named
    return candidates


def _subjects(frame: pd.DataFrame) -> Codes:
    """Return a number for what each row reduces; equal ones are equal subjects."""
    buckets = begins_with(frame["caused_by_op"], BUCKETS)
    subject = numbered(
        with_columns(frame, line=frame["source"].where(frame["parameter"].isna())),
        ["rank", "caused_by_op", "op", "group", "parameter", "message_bytes", "dtype", "module", "line"],
    )
    subject = subject * 2
    if buckets.any():
        # Buckets are laid out anew after the first backward; what a pass reduces in all stays the same.
        in_buckets = keep(frame, buckets)
        in_pass = in_buckets.groupby(["rank", "micro", "group", "caused_by_op"])
        whole = with_columns(
            in_buckets,
            last=in_pass["parameter"].transform("last"),
            sum=in_pass["message_bytes"].transform("sum"),
        )
        number_of = numbered(whole, ["rank", "group", "caused_by_op", "last", "sum"])
        subject[buckets] = number_of * 2 + 1
    return subject


def _known(context: Context) -> bool:
    stepped = context.in_surveyed["optimizer_steps"].max()
    return not pd.isna(stepped) and int(stepped) > 0


def find(context: Context) -> list[Finding]:
    """Return one finding a wrapper, op, group and line.

    The counterfactual is the same micro-batches with gradients added up on each rank and reduced with the
    last one. The saving is the whole exposed time of the others. The exposed time is a mean over watched
    steps if there are any. It is compared with their length, and a surveyed step waits longer.
    """
    frame = needless(context)
    if frame.empty:
        return []
    line = frame["source"].where(~begins_with(frame["caused_by_op"], "FSDP"))
    frame = with_columns(frame, parameters=pattern(frame["parameter"]), line=line)
    result = tally(frame, KEYS, ("exposed_ns", "message_bytes", "wire_bytes"), context.surveyed)
    parameters, modules = Names(frame["parameter"], result.code), Names(frame["module"], result.code)
    outermost = _outermost(frame, result.code)
    micro = frame.groupby(result.code)["passes"].max()
    watched = _watched_tolls(context, frame)
    kept = _all_reduced_once(context, frame)
    findings = []
    for line in result.lines:
        line.figures["exposed_ns"] = watched.get(_key(line), line.figures["exposed_ns"])
        finding = _finding(line, int(micro[line.code]), parameters, modules, outermost.get(line.code))
        finding = replace(finding, rows=Rows.of(collectives=result.places(line)))
        findings.append(replace(finding, severity="info") if kept and _scatters(line) else finding)
    return findings


def _watched_tolls(context: Context, needless_rows: pd.DataFrame) -> dict[tuple[str | None, ...], int]:
    """Return the exposed time of the same collectives in steps that all ranks watched, by `_key`."""
    numbers = tuple(sorted(set(context.alike) - set(context.surveyed)))
    rows = context.in_steps.loc[in_watched(context, needless_rows)]
    rows = keep(rows, rows["step"].isin(numbers))
    if rows.empty:
        return {}
    line = rows["source"].where(~begins_with(rows["caused_by_op"], "FSDP"))
    lines = tally(with_columns(rows, line=line), KEYS, ("exposed_ns",), numbers).lines
    tolls = {_key(group_line): group_line.figures["exposed_ns"] for group_line in lines}
    return {key: toll for key, toll in tolls.items() if toll is not None}


def _key(line: Line) -> tuple[str | None, ...]:
    return tuple(line.text(name) for name in KEYS)


def _scatters(line: Line) -> bool:
    by_fsdp = (line.text("caused_by_op") or "").startswith("FSDP")
    return by_fsdp and line.first["op"] == "reduce_scatter"


def _all_reduced_once(context: Context, needless_rows: pd.DataFrame) -> bool:
    """Whether replicas (HSDP) are reduced with the last micro-batch alone: the rest is for memory's sake."""
    rows = context.in_surveyed
    by_fsdp = keep(rows, (rows["op"] == "all_reduce") & begins_with(rows["caused_by_op"], "FSDP"))
    repeated = by_fsdp.index.isin(needless_rows.index)
    return len(by_fsdp) > 0 and not bool(repeated.any())


def _outermost(frame: pd.DataFrame, code: Codes) -> dict[int, str]:
    """Return for each finding the line to stand at: that of its outermost module, the first of several.

    FSDP reduces the blocks of a model at lines inside it, and its root's parameters at the line that called
    the model. This line is the step's own, in which the micro-batches are looped.
    """
    module = frame["module"].astype("string")
    depth = (module.str.count(".") + (module != "")).to_numpy(dtype=np.float64, na_value=np.inf)
    lines = pd.DataFrame({"code": code, "depth": depth, "source": frame["source"]})
    first = lines.dropna(subset=["source"]).sort_values("depth", kind="stable").drop_duplicates("code")
    return {int(number): str(source) for number, source in zip(first["code"], first["source"], strict=True)}


def _finding(line: Line, micro: int, parameters: Names, modules: Names, source: str | None) -> Finding:
    toll, moved = line.figures["exposed_ns"], line.figures["message_bytes"]
    op, cause = str(line.first["op"]), line.text("caused_by_op") or ""
    named, in_modules = parameters.of(line), modules.of(line)
    advice = advise(cause)
    return Finding(
        kind="sync-every-microbatch",
        severity="warning",
        title=f"gradients were reduced on each of {micro} micro-batches: {micro - 1} of {micro} are "
        f"needless if the gradients add up, {times(line.each, op)} per step on {line.first['net']}, "
        f"{some_size(moved)}{place(None, source)}",
        toll_ns=toll,
        floor_ns=0,
        saving_ns=toll,
        bytes=moved,
        count=line.count,
        ranks=line.ranks,
        where=replace(
            line.where("phase", "group", "mesh_dim", op=cause or op),
            source=source,
            parameter=", ".join(named) if len(named) <= 3 else None,
            module=in_modules[0] if len(in_modules) == 1 else None,
        ),
        parameters=parameters.several(line),
        evidence=(
            Evidence("collective", op),
            Evidence("micro-batches that reduced", micro),
            Evidence("taken for granted", "gradients are not zeroed between those micro-batches"),
            Evidence("needless bytes per step", moved, "bytes"),
            Evidence("of them on the wire, a rank", line.figures["wire_bytes"], "bytes"),
            Evidence("one of them", _one(line)),
            *parameters.evidence(line, "parameters"),
            *modules.evidence(line, "modules"),
            Evidence("needless in all steps and ranks", line.total),
        ),
        remedy=Remedy(
            text=advice.text,
            code=advice.code,
            counterfactual=None
            if toll is None
            else "the same micro-batches, gradients added up on each rank and reduced with the last",
        ),
        figures=(
            Figure("micro_batches", micro, "count"),
            *(() if moved is None else (Figure("needless_bytes", moved, "bytes"),)),
        ),
        # Whoever zeroes gradients in between (SAM, task after task, a skipped step) needs each of them, and
        # that leaves no record.
        confidence="likely",
    )


def _one(line: Line) -> str:
    seq = number(line.first["seq"])
    parts = (
        f"step {number(line.first['step'])}",
        line.text("phase"),
        None if seq is None else f"seq {seq}",
        line.text("parameter"),
        line.text("source"),
    )
    return ", ".join(part for part in parts if part)


class _Advice(Struct, frozen=True):
    text: str
    code: str


def advise(cause: str) -> _Advice:
    """Return how to make the wrapper reduce with the last micro-batch only."""
    if cause.startswith(BUCKETS):
        return _Advice(
            "Use no_sync() for all micro-batches but the last, forward included: outside it "
            "DistributedDataParallel reduces in every backward.",
            "with contextlib.nullcontext() if is_last else model.no_sync():\n"
            "    (loss_fn(model(x), y) / micro_batches).backward()",
        )
    if cause.startswith(("FSDP1", "FullyShardedDataParallel")):
        return _Advice(
            "Use no_sync() for all micro-batches but the last: outside it FSDP1 reduces in every backward. "
            "Each rank then keeps whole gradients until the last micro-batch: memory of the size of the "
            "unsharded model.",
            "with contextlib.nullcontext() if is_last else model.no_sync():\n"
            "    (loss_fn(model(x), y) / micro_batches).backward()",
        )
    if cause.startswith("FSDP"):
        return _Advice(
            "Let FSDP2 reduce with the last micro-batch only. Until then ranks keep whole gradients: that "
            "costs memory of the size of the unsharded model. With replicas (HSDP) the all_reduce alone "
            "can be put off, which costs none.",
            "model.set_requires_gradient_sync(is_last)\n"
            "# HSDP, where memory is short: model.set_requires_all_reduce(is_last)",
        )
    if cause.startswith("DeepSpeed"):
        return _Advice(
            "Give DeepSpeed the micro-batches of a step: it reduces at their boundary.",
            'config["gradient_accumulation_steps"] = n  # given to deepspeed.initialize(config=config)',
        )
    return _Advice(
        "Add the gradients up over the micro-batches and reduce the sums once, before the optimizer.",
        "if is_last:\n    for p in model.parameters():\n        dist.all_reduce(p.grad)",
    )
