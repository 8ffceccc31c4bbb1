"""Shared by findings about needless collectives: whole matches only, the pair as evidence, one a place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.needless_finding import (
    Story,
    Subject,
    described,
    needless_findings,
)
from shardtoll.analyzers.findings.needless.redundant_collective import repeats
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import Line, begins_with, keep, with_columns
from shardtoll.analyzers.shared.wrapper_causes import WRAPPER_CAUSES
from shardtoll.ledger import Confidence, Evidence, Finding, Remedy, Severity

LEAST_BYTES: Final = 256
"""Smaller messages are metrics and counts, which gain nothing by moving less."""

FIRST: Final = ("op", "source", "phase", "caused_by_op", "seq", "reduce_op")
"""Columns shown of the other collective of a pair, named `first_op`, ..."""

SHOWN: Final = ("op", "phase", "seq", "caused_by_op", "source")
"""Columns shown of each collective of a pair."""

KEYS: Final = ("op", "net", "phase", "caused_by_op", "parameters", "source", "first_op", "first_source")


class Told(Struct, frozen=True):
    """Facts to report about the collectives of one place."""

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
    frame = _candidates(context)
    return keep(frame, frame["op"].isin(ops))


@once
def _candidates(context: Context) -> pd.DataFrame:
    frame = context.in_surveyed
    mask = (
        frame["match_id"].notna()
        & (frame["group_size"] > 1)
        & (frame["message_bytes"] >= LEAST_BYTES).fillna(False)
        & ~begins_with(frame["caused_by_op"], WRAPPER_CAUSES)
        & ~frame.index.isin(repeats(context).index)
    )
    frame = keep(frame, mask)
    frame = with_columns(frame, at=frame["issue_ns"].fillna(frame["start_ns"]))
    ordered: pd.DataFrame = frame.sort_values(["rank", "step", "at"], kind="stable", na_position="last")
    return ordered


def on_all_ranks(frame: pd.DataFrame, mask: pd.Series[Any] | npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Return the rows of which the mask is true on every rank of the group."""
    kept = keep(frame, mask)
    ranks = kept.groupby("match_id")["rank"].transform("nunique")
    return keep(kept, ranks == kept["group_size"])


@once
def none_needless(context: Context) -> pd.DataFrame:
    """Return what `without_first` returns, without rows: for records that do not tell what is needless."""
    return without_first(context.in_surveyed.iloc[:0])


def without_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame, none of which is one of a pair."""
    return with_columns(frame, **{f"first_{name}": None for name in FIRST})


def with_first(context: Context, frame: pd.DataFrame, labels: Any) -> pd.DataFrame:
    """Return the frame with `FIRST` of the other one of each pair, by row label; NA: there is none."""
    first = context.collectives.reindex(labels)
    return with_columns(frame, **{f"first_{name}": first[name].to_numpy() for name in FIRST})


def findings(
    context: Context, frame: pd.DataFrame, tell: Callable[[Line], Told], also: tuple[str, ...] = ()
) -> list[Finding]:
    """Return one finding a place; `frame` has what `with_first` or `without_first` adds.

    `also`: further columns, after `KEYS`, in which the collectives of one finding agree.
    """

    def story(line: Line, subject: Subject) -> Story:
        part = tell(line)
        return Story(
            title_end=f"{subject.place}, {subject.size}, {part.what}",
            remedy=part.remedy,
            evidence=pair(line),
            more_evidence=part.evidence,
            total_label="in all steps and ranks",
            severity=part.severity,
            confidence=part.confidence,
            saved=part.saved,
            clause=part.what,
        )

    return needless_findings(context, frame, (*KEYS, *also), "phase", story)


def pair(line: Line) -> tuple[Evidence, ...]:
    """Return both of a pair, or the one, as evidence."""
    again = Evidence("this one", described(line, SHOWN))
    if line.text("first_op") is None:
        return (again,)
    return Evidence("pairs with", described(line, [f"first_{name}" for name in SHOWN])), again
