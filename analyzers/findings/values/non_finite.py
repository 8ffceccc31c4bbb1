"""Losses, gradients and parameters that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import optimizes, rows_of
from shardtoll.analyzers.shared import remedy_code
from shardtoll.analyzers.shared.tally import keep, text
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Where
from shardtoll.ledger.records.work import OPTIMIZER_STEP
from shardtoll.ledger.words.human import place
from shardtoll.ledger.words.human import ranks as rank_words
from shardtoll.ledger.words.names import shortened

NAMED: Final = 3
"""Parameters that a title names."""

LEFT_OUT: Final = "left-out"
"""Value in an optimizer's record if a gradient scaler keeps it from using such gradients."""


def find(context: Context) -> list[Finding]:
    """Return one finding of all that is not finite, with the operator that met it first.

    Only what an optimizer used counts: a gradient scaler finds infinity in some steps and leaves those out.
    In runs without an optimizer a loss counts as it is. Surveyed steps look at samples: the loss, the largest
    parameters with their gradients, and operators. The checks look at every element and name parameters.
    """
    gradients, parameters = _checked(context, "gradient"), _checked(context, "parameter")
    optimizers = keep(context.computes_in_steps, context.computes_in_steps["op"] == OPTIMIZER_STEP)
    used = keep(optimizers, optimizers["non_finite"] == "input")
    written = keep(optimizers, optimizers["non_finite"] == "output")
    losses = _losses(context, optimizers)
    sources = (gradients, parameters, used, written, losses)
    if all(frame.empty for frame in sources):
        return []
    every = pd.concat([frame[["step", "rank"]].astype("int64") for frame in sources], ignore_index=True)
    first_step = int(every["step"].min())
    ranks = tuple(sorted(int(rank) for rank in every["rank"].unique()))
    names = list(dict.fromkeys([*gradients["name"].astype(str), *parameters["name"].astype(str)]))
    subjects = [
        *(("the loss",) if len(losses) else ()),
        *_subject("gradient", gradients["name"], len(used) > 0),
        *_subject("parameter", parameters["name"], len(written) > 0),
    ]
    origin = _origin(context, first_step)
    module, source = (None, None) if origin is None else (text(origin["module"]), text(origin["source"]))
    one = names[0] if len(names) == 1 else None
    return [
        Finding(
            kind="non-finite",
            severity="error",
            title=f"{_listed(subjects)} held NaN or infinity on {rank_words(ranks)} from step {first_step} on"
            f"{place(module, source)}",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=max(1, len(names)),
            ranks=ranks,
            where=Where(
                phase=None if origin is None else str(origin["phase"]),
                module=module,
                parameter=one,
                op=None if origin is None else str(origin["op"]),
                source=source,
            ),
            evidence=(
                Evidence("steps with it", ", ".join(str(step) for step in _steps(every))),
                Evidence("met first by", None if origin is None else _met(origin)),
                *((Evidence("parameters", ", ".join(names)),) if len(names) > 1 else ()),
            ),
            remedy=_remedy(one, module, is_dtensor=_is_dtensor((gradients, parameters), one)),
            rows=Rows() if origin is None else Rows.of(computes=[int(origin["row"])]),
            parameters=tuple(names) if len(names) > 1 else (),
        )
    ]


def _checked(context: Context, kind: str) -> pd.DataFrame:
    """Return the checked values of a kind that hold NaN or infinity and were put to use."""
    rows = rows_of(context, kind)
    left_out = rows["may_leave_out"].fillna(False).astype(bool)
    return keep(rows, rows["square"].isna() & rows["hash"].notna() & (rows["numel"] > 0) & ~left_out)


def _losses(context: Context, optimizers: pd.DataFrame) -> pd.DataFrame:
    """Return the losses of steps in which an optimizer went on; all losses if none ever stepped.

    A gradient scaler leaves steps out by design; if one was at work, the gradients that were used tell.
    """
    values = context.values
    left_out = values["may_leave_out"].fillna(False).astype(bool)
    losses = keep(values, (values["kind"] == "loss") & values["step"].notna() & ~left_out)
    if losses.empty or not optimizes(context):
        return losses
    went_on = keep(optimizers, (optimizers["non_finite"] != LEFT_OUT).fillna(True))
    pairs = set(zip(went_on["rank"].astype(int), went_on["step"].astype(int), strict=True))
    mine = zip(losses["rank"].astype(int), losses["step"].astype(int), strict=True)
    return keep(losses, pd.Series([pair in pairs for pair in mine], index=losses.index, dtype=bool))


def _subject(what: str, names: pd.Series[Any], sampled: bool) -> Iterable[str]:
    """Return what is said of gradients or parameters: their names, or that some of them are it."""
    unique = list(dict.fromkeys(names.astype(str)))
    if len(unique) == 1:
        yield f"the gradient of {unique[0]}" if what == "gradient" else f"parameter {unique[0]}"
    elif unique:
        of = "gradients of " if what == "gradient" else ""
        yield f"{of}{len(unique)} parameters ({shortened(unique, NAMED)})"
    elif sampled:
        yield f"{what}s that the optimizer {'used' if what == 'gradient' else 'wrote'}"


def _listed(subjects: list[str]) -> str:
    return subjects[0] if len(subjects) == 1 else f"{', '.join(subjects[:-1])} and {subjects[-1]}"


def _steps(every: pd.DataFrame, most: int = 8) -> list[int | str]:
    steps = sorted(int(step) for step in every["step"].unique())
    return [*steps[:most], *(("...",) if len(steps) > most else ())]


def _origin(context: Context, step: int) -> pd.Series[Any] | None:
    """Return the first operator of the step that met NaN or infinity; None if none is on record."""
    rows = context.computes_in_steps
    rows = rows.assign(row=rows.index)
    rows = keep(rows, (rows["step"] == step) & rows["non_finite"].notna() & (rows["op"] != OPTIMIZER_STEP))
    if rows.empty:
        return None
    first: pd.Series[Any] = rows.sort_values(["index", "rank"], kind="stable").iloc[0]
    return first


def _met(origin: pd.Series[Any]) -> str:
    where = "an operand" if origin["non_finite"] == "input" else "its result alone"
    module = text(origin["module"])
    of = f" of {module}" if module else ""
    return f"{origin['op']}{of} in {origin['phase']} on rank {int(origin['rank'])}, in {where}"


def _is_dtensor(frames: Iterable[pd.DataFrame], name: str | None) -> bool:
    """Return whether a parameter has placements: torch.distributed takes its local part only."""
    return any(bool(keep(rows, rows["name"] == name)["placements"].notna().any()) for rows in frames)


def _remedy(parameter: str | None, module: str | None, *, is_dtensor: bool) -> Remedy:
    local = ".to_local()" if is_dtensor else ""
    subject = "loss" if parameter is None else f"{remedy_code.parameter(parameter)}.grad{local}"
    of = f" of {module}" if module else ""
    return Remedy(
        "Run one step in torch.autograd.set_detect_anomaly(True), and skip such a step on all ranks or on "
        "none. "
        f"Causes{of}: float16 without a gradient scaler, a division by zero, log or sqrt of zero, a wholly "
        "masked row, a learning rate too high.",
        "with torch.autograd.set_detect_anomaly(True):  # names the operator whose backward makes NaN\n"
        "    loss.backward()\n"
        f"bad = (~torch.isfinite({subject})).any().float()\n"
        "dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n"
        "if not bad:  # equal on all ranks\n"
        "    optimizer.step()",
    )
