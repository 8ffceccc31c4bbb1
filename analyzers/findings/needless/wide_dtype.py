"""Gradients and parameters that travel in a wider number format than they are computed in."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.compute_dtypes import Formats, formats
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.roofline import collective_cost
from shardtoll.analyzers.shared.layer_names import Names, pattern
from shardtoll.analyzers.shared.tally import codes, keep, numbered, tally, text, with_columns
from shardtoll.analyzers.shared.wrapper_causes import GATHERERS
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.words.human import duration, place, size, some_size
from shardtoll.ledger.words.human import plural as times

WIDTH: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element."""
WIDE: Final = ("float32", "float64")

REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")
REDUCING_PHASES: Final = ("backward", "optimizer", "other")
WHOLE_MODEL: Final = ("DistributedDataParallel", "DeepSpeed.ZeRO-1", "DeepSpeed.ZeRO-2")
"""Causes whose buckets hold more parameters than the one they are named after."""
REDUCERS: Final = (*GATHERERS, *WHOLE_MODEL)

LEAST_ELEMENTS: Final = 1024
"""A reduction by hand with fewer is no gradient worth the name: a loss, a norm, counts of experts."""

SUBJECT: Final = ("op", "dtype", "phase", "caused_by_op", "module", "parameter")
KEYS: Final = ("net", "op", "dtype", "phase", "caused_by_op", "source", "narrow")
VALUES: Final = ("exposed_ns", "message_bytes", "saved_bytes", "narrow_floor_ns", "saveable_ns")


def wide(context: Context) -> pd.DataFrame:
    """Return the collectives that move what a narrow format computed, with `narrow`, `by_hand` and what
    the narrow format would change: `saved_bytes`, `narrow_floor_ns`, `saveable_ns`.

    These are a wrapper's gathers of parameters, and reductions of gradients: by a wrapper, of a known
    parameter or, by hand, outside of modules. The format is that of the parameter's own module, else of the
    wrapped one, else of the model.
    """
    frame = context.in_surveyed
    computed = formats(context)
    narrow_at_all = bool(computed.table["format"].notna().any())
    # A group of one transfers nothing in any format.
    several = frame["group_size"].ne(1).fillna(value=True).astype(bool)
    frame = keep(frame, frame["dtype"].isin(WIDE) & frame["message_bytes"].notna() & several & narrow_at_all)
    if frame.empty:
        return frame
    # Each kind of collective once, not each of millions.
    code, subjects = codes(frame, SUBJECT)
    narrow_of = [_narrow(computed, subject) for subject in subjects[list(SUBJECT)].to_dict("records")]
    narrow = np.array([name for name, _ in narrow_of], dtype=object)[code]
    by_hand = np.array([hand for _, hand in narrow_of], dtype=bool)[code]
    frame = with_columns(frame, narrow=pd.array(narrow, dtype="string"), by_hand=by_hand)
    elements = frame["message_bytes"].to_numpy(dtype=np.int64) // frame["dtype"].map(WIDTH).to_numpy(
        dtype=np.int64
    )
    large = elements >= max(LEAST_ELEMENTS, computed.least_product or LEAST_ELEMENTS)
    # Who reduces gradients one by one reduces small ones at the same line too.
    line = numbered(frame, ("source", "caused_by_op", "phase"))
    with_large = np.bincount(line, weights=large, minlength=1)[line] > 0
    frame = keep(frame, frame["narrow"].notna().to_numpy(dtype=bool) & (~by_hand | with_large))
    return _with_figures(context, frame)


def _narrow(computed: Formats, subject: dict[object, object]) -> tuple[str | None, bool]:
    """Return the narrow format in which the subject of a collective is computed, None if it is not. Also
    return whether only its size can show that it is one of gradients."""
    op, phase = subject["op"], subject["phase"]
    cause, module, parameter = (text(subject[name]) for name in ("caused_by_op", "module", "parameter"))
    gathers = op == "all_gather" and (cause or "").startswith(GATHERERS)
    if not gathers and not (op in REDUCTIONS and phase in REDUCING_PHASES):
        return None, False
    if (cause or "").startswith(WHOLE_MODEL):
        return computed.below(""), False
    if parameter is not None:
        owners = [name.rpartition(".")[0] for name in parameter.split(", ")]
        of_owners = computed.of_modules(owners)
        if of_owners is not None or not (cause or "").startswith(REDUCERS):
            return of_owners, False
    if (cause or "").startswith(REDUCERS):
        return computed.below(module or ""), False
    # In a module's backward it may be anything: statistics of a norm, activations.
    return (computed.below(""), True) if module is None else (None, False)


def _with_figures(context: Context, frame: pd.DataFrame) -> pd.DataFrame:
    if frame.empty:
        return frame
    code, first = codes(frame, ("op", "message_bytes", "cost_id", "dtype", "narrow"))
    saved, floors, expected = [], [], []
    for op, moved, cost_id, dtype, narrow in first[
        ["op", "message_bytes", "cost_id", "dtype", "narrow"]
    ].itertuples(index=False):
        needed = int(moved) * WIDTH[narrow] // WIDTH[dtype]
        cost = collective_cost(context.fabric, op, needed, context.place_of(cost_id))
        saved.append(int(moved) - needed)
        floors.append(np.nan if cost is None else float(cost.floor_ns))
        expected.append(np.nan if cost is None else float(cost.time_ns))
    narrow_floor, narrow = np.array(floors)[code], np.array(expected)[code]
    exposed = frame["exposed_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    # Who waits for a late rank waits for small messages just as long.
    moving = np.fmin(exposed, frame["transfer_ns"].to_numpy(dtype=np.float64, na_value=np.nan))
    moving = np.where(np.isnan(exposed), np.nan, moving)
    wide_ns = frame["expected_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    share = 1 - np.divide(narrow, wide_ns, out=np.full(len(wide_ns), np.nan), where=wide_ns > 0)
    saveable = np.floor(np.maximum(moving * share, 0))
    filled: pd.DataFrame = with_columns(
        frame,
        saved_bytes=pd.array(np.array(saved, dtype=np.int64)[code], dtype="Int64"),
        narrow_floor_ns=_whole(narrow_floor),
        saveable_ns=_whole(saveable),
    )
    return filled


def _whole(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> pd.api.extensions.ExtensionArray:
    """Return floats, NaN for unknown, as nullable whole numbers."""
    unknown = np.isnan(values)
    return pd.arrays.IntegerArray(np.where(unknown, 0, values).astype(np.int64), unknown)


def find(context: Context) -> list[Finding]:
    """Return one finding a group, op, phase, cause and line.

    `bytes` are those that the narrow format spares, per surveyed step, on the rank where they are most. The
    counterfactual is the same step with these collectives in the format of the computation. It spares the
    part of their own time (waiting left out) that the expected times of both formats say goes with the bytes.
    """
    frame = wide(context)
    if frame.empty:
        return []
    frame = with_columns(frame, parameters=pattern(frame["parameter"]))
    result = tally(frame, KEYS, VALUES, context.surveyed)
    parameters, modules = Names(frame["parameter"], result.code), Names(frame["module"], result.code)
    patterns = Names(frame["parameters"], result.code)
    findings = []
    for line in result.lines:
        figures = line.figures
        op, wide_name, narrow = (str(line.first[name]) for name in ("op", "dtype", "narrow"))
        moved, saved, toll = figures["message_bytes"], figures["saved_bytes"], figures["exposed_ns"]
        assert saved is not None
        saving = None if toll is None or figures["saveable_ns"] is None else min(figures["saveable_ns"], toll)
        by_hand = bool(line.first["by_hand"])
        of, ofm, ofp = parameters.of(line), modules.of(line), patterns.of(line)
        parameter = of[0] if len(of) == 1 else ofp[0] if len(ofp) == 1 and line.first["parameters"] else None
        module = ofm[0] if len(ofm) == 1 else None
        what = "parameters" if op == "all_gather" else "gradients" if not by_hand else "what backward made"
        where = line.where(
            "phase", "source", "group", "mesh_dim", op=line.text("caused_by_op") or op, parameter=parameter
        )
        findings.append(
            Finding(
                kind="wide-dtype",
                severity="info",
                title=f"{times(line.each, op)} per step on {line.first['net']} in {line.first['phase']} "
                f"moved {what} in {wide_name} although the matrices computed in {narrow}: "
                f"{some_size(moved)}, {narrow} would spare {size(saved)}"
                f"{place(module, line.text('source'))}; a choice about numerics",
                toll_ns=toll,
                floor_ns=figures["narrow_floor_ns"],
                saving_ns=saving,
                bytes=saved,
                count=line.count,
                ranks=line.ranks,
                where=replace(where, module=module),
                rows=Rows.of(collectives=result.places(line)),
                parameters=parameters.several(line),
                evidence=(
                    Evidence("collective", op),
                    Evidence("moved as", wide_name),
                    Evidence("computed in", narrow),
                    Evidence("bytes moved per step", moved, "bytes"),
                    Evidence(f"bytes that {narrow} spares per step", saved, "bytes"),
                    *((Evidence("time that goes with them", saving, "ns"),) if saving is not None else ()),
                    *parameters.evidence(line, "parameters"),
                    *modules.evidence(line, "modules"),
                ),
                remedy=remedy(line.text("caused_by_op"), op, narrow, wide_name, saving),
                confidence="likely" if by_hand else "certain",
            )
        )
    return findings


_LOSSY = (
    "It is a choice about numerics, not a mistake: sums of many ranks in {narrow} lose digits{small}. "
    "Compare a few hundred steps of loss before you keep it."
)
_FLOAT16 = ", and float16 overflows above 65,504"
_EXACT = "Under autocast the weights are cast to {narrow} anyway, so nothing is lost on the way."


def remedy(cause: str | None, op: str, narrow: str, wide: str, saving_ns: int | None) -> Remedy:
    """Return what to write for the wrapper that `cause` names; by hand if it names none."""
    cause = cause or ""
    gathers = op == "all_gather"
    if gathers:
        text, note = f"Gather the parameters in {narrow}.", _EXACT
    else:
        text, note = f"Reduce in {narrow}.", _LOSSY
    text = f"{text} {note.format(narrow=narrow, small=_FLOAT16 if narrow == 'float16' else '')}"
    counterfactual = None
    if saving_ns is not None:
        counterfactual = (
            f"the same collectives in {narrow}: {duration(saving_ns)} of their own time goes with the bytes "
            f"of {wide}, as the expected times of both say"
        )
    return Remedy(text=text, code=_code(cause, narrow, gathers=gathers), counterfactual=counterfactual)


def _code(cause: str, narrow: str, *, gathers: bool) -> str:
    if cause.startswith("FSDP1"):
        policy = f"MixedPrecision(param_dtype=torch.{narrow}, reduce_dtype=torch.{narrow})"
        return f"FullyShardedDataParallel(module, mixed_precision={policy})"
    if cause.startswith("FSDP"):
        choice = "param_dtype" if gathers else f"param_dtype=torch.{narrow}, reduce_dtype"
        return f"fully_shard(module, mp_policy=MixedPrecisionPolicy({choice}=torch.{narrow}))"
    if cause.startswith("DistributedDataParallel"):
        short = "bf16" if narrow == "bfloat16" else "fp16"
        return (
            f"from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import {short}_compress_hook\n"
            f"model.register_comm_hook(None, {short}_compress_hook)"
        )
    if cause.startswith("DeepSpeed"):
        short = "bfp16" if narrow == "bfloat16" else "fp16"
        return f'"communication_data_type": "{short}"  # in the DeepSpeed config'
    return f"part = gradient.to(torch.{narrow})\ndist.all_reduce(part)"
