"""What findings about needless collectives share: whole matches only, the pair as evidence, one a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.layers import Names, pattern
from shardtoll.analyzers.redundant_collective import is_sampled, repeats
from shardtoll.analyzers.tally import Line, keep, number, tally
from shardtoll.analyzers.words import place, size, times
from shardtoll.analyzers.wrapper_causes import WRAPPER_CAUSES
from shardtoll.ledger import Confidence, Evidence, Finding, Remedy, Severity

LEAST_BYTES: Final = 256
"""Smaller messages are metrics and counts, which gain nothing by moving less."""

"""Causes that begin so use buffers of their own and reduce what the user's loss makes of the data."""

FIRST: Final = ("op", "source", "phase", "caused_by_op", "seq")
"""What is told of the other one of a pair, in columns `first_op`, ..."""

KEYS: Final = ("op", "net", "phase", "caused_by_op", "parameters", "source", "first_op", "first_source")


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of the collectives of one place."""

    what: str
    """Ends the title, after how many there are, where and of what size."""
    remedy: Remedy
    saved: float = 1.0
    """The part of their exposed time that the remedy's counterfactual does not have."""
    severity: Severity = "warning"
    confidence: Confidence = "certain"
    evidence: tuple[Evidence, ...] = ()


def candidates(context: Context, *ops: str) -> pd.DataFrame:
    """Return the matched collectives of surveyed steps, in the order of issue, that may be needless.

    Wrappers' own, small ones and those that only repeat an earlier one are left out; `at` is when each was
    issued.
    """
    frame = context.in_surveyed
    mask = (
        frame["op"].isin(ops)
        & frame["match_id"].notna()
        & (frame["group_size"] > 1)
        & (frame["message_bytes"] >= LEAST_BYTES).fillna(False)
        & ~frame["caused_by_op"].fillna("").str.startswith(WRAPPER_CAUSES)
        & ~frame.index.isin(repeats(context).index)
    )
    frame = keep(frame, mask)
    frame = frame.assign(at=frame["issue_ns"].fillna(frame["start_ns"]))
    ordered: pd.DataFrame = frame.sort_values(["rank", "step", "at"], kind="stable", na_position="last")
    return ordered


def on_all_ranks(frame: pd.DataFrame, mask: pd.Series[Any] | npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Return the rows of which the mask is true on every rank of the group."""
    kept = keep(frame, mask)
    ranks = kept.groupby("match_id")["rank"].transform("nunique")
    return keep(kept, ranks == kept["group_size"])


def without_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame, none of which is one of a pair."""
    told: pd.DataFrame = frame.assign(**{f"first_{name}": None for name in FIRST})
    return told


def with_first(context: Context, frame: pd.DataFrame, labels: Any) -> pd.DataFrame:
    """Return the frame with what is told of the other one of each pair, by row label; NA: there is none."""
    first = context.collectives.reindex(labels)
    told: pd.DataFrame = frame.assign(**{f"first_{name}": first[name].to_numpy() for name in FIRST})
    return told


def findings(context: Context, frame: pd.DataFrame, tell: Callable[[Line], Told]) -> list[Finding]:
    """Return one finding a place. Counts, bytes and times are per surveyed step, on the rank with most."""
    if frame.empty:
        return []
    frame = frame.assign(parameters=pattern(frame["parameter"]))
    values = ("exposed_ns", "message_bytes", "used_bytes")
    result = tally(frame, KEYS, values, context.surveyed)
    parameters, modules = Names(frame["parameter"], result.code), Names(frame["module"], result.code)
    sampled = is_sampled(frame).groupby(result.code).any()
    made = []
    for line in result.lines:
        told = tell(line)
        # A choice costs nothing that is not billed elsewhere.
        toll = line.figures["exposed_ns"] if told.severity != "info" else None
        moved = line.figures["message_bytes"]
        op, cause = str(line.first["op"]), line.text("caused_by_op")
        parameter = parameters.place(line, "parameters")
        named = modules.of(line)
        module = named[0] if len(named) == 1 else None
        subject = f" of {parameter}" if parameter else ""
        saving = None if toll is None else int(toll * told.saved)
        remedy = told.remedy if saving is not None else replace(told.remedy, counterfactual=None)
        made.append(
            Finding(
                kind="redundant-collective",
                severity=told.severity,
                title=f"{times(line.each, op)}{subject} a step on {line.first['net']} in "
                f"{line.first['phase']}{place(module, line.text('source'))}, {size(moved)}, {told.what}",
                toll_ns=toll,
                floor_ns=None,
                saving_ns=saving,
                bytes=moved,
                count=line.count,
                ranks=line.ranks,
                where=replace(
                    line.where("phase", "source", "group", "mesh_dim", op=cause or op, parameter=parameter),
                    module=module,
                ),
                evidence=(
                    Evidence("collective", op),
                    *pair(line),
                    Evidence("message", number(line.first["message_bytes"]), "bytes"),
                    *told.evidence,
                    *parameters.evidence(line, "parameters"),
                    *modules.evidence(line, "modules"),
                    Evidence("in all steps and ranks", line.total),
                ),
                remedy=remedy,
                # Fingerprints of long messages are of a sample.
                confidence="likely"
                if told.confidence == "certain" and bool(sampled[line.code])
                else told.confidence,
            )
        )
    return made


def pair(line: Line) -> tuple[Evidence, ...]:
    """Return both of a pair, or the one, as evidence."""
    again = Evidence("this one", one(line, ""))
    return (again,) if line.text("first_op") is None else (Evidence("pairs with", one(line, "first_")), again)


def one(line: Line, prefix: str) -> str:
    """Return one of the pair in words: op, phase, sequence number, cause and line."""
    seq = number(line.first[f"{prefix}seq"])
    parts = (
        line.text(f"{prefix}op"),
        line.text(f"{prefix}phase"),
        None if seq is None else f"seq {seq}",
        line.text(f"{prefix}caused_by_op"),
        line.text(f"{prefix}source"),
    )
    return ", ".join(part for part in parts if part)
