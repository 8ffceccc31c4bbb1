"""One collective, one finding: what is said of the same collectives becomes one line of the bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.needless_finding import clauses
from shardtoll.analyzers.shared.tally import tally
from shardtoll.ledger import Confidence, Evidence, Figure, Finding
from shardtoll.ledger.records.finding import SEVERITIES

IMPLICIT: Final = "implicit-redistribute"
REDUNDANT: Final = "redundant-collective"
_CONFIDENCES: Final[tuple[Confidence, ...]] = ("certain", "likely", "possible")


class _Fact(Struct, frozen=True):
    """A fact that another finding has about collectives of a line."""

    finding: Finding
    rows: npt.NDArray[np.int64]
    """Those that are on the line."""


def one_line_each(context: Context, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; redundant collectives that another line bills become a fact of that line.

    An implicit redistribute that is also redundant is one line. So are two findings of redundancy about the
    same collectives: a warning goes before information, then the finding of more collectives. Each instant is
    billed once. The remedy and the saving are those of the redundancy, which is the more specific fact. A
    finding whose collectives are not all on other lines stays as it is.
    """
    length = len(context.collectives)
    owner = np.full(length, -1, dtype=np.int64)
    lines = dict(enumerate(findings))
    rows = {
        number: np.flatnonzero(finding.rows.mask("collectives", length))
        for number, finding in lines.items()
        if finding.kind in (IMPLICIT, REDUNDANT) and finding.rows.collectives
    }
    for number in (number for number in rows if lines[number].kind == IMPLICIT):
        owner[rows[number]] = number
    redundant = [number for number in rows if lines[number].kind == REDUNDANT]
    joined: dict[int, list[_Fact]] = {}

    def rank(number: int) -> tuple[int, int]:
        return SEVERITIES.index(lines[number].severity), -len(rows[number])

    for number in sorted(redundant, key=rank):
        mine = owner[rows[number]]
        if (mine < 0).any():
            owner[rows[number][mine < 0]] = number
            continue
        other = lines.pop(number)
        for line in np.unique(mine).tolist():
            joined.setdefault(line, []).append(_Fact(other, rows[number][mine == line]))
    for line, facts in joined.items():
        lines[line] = _joined(context, lines[line], facts, rows[line])
    return list(lines.values())


def _joined(context: Context, line: Finding, facts: Sequence[_Fact], whole: npt.NDArray[np.int64]) -> Finding:
    """Return the line with what other findings say of its collectives, the largest of them first."""
    others = [fact.finding for fact in facts]
    reasons = list(dict.fromkeys(clauses(context).get(other.rows) or other.title for other in others))
    evidence = [Evidence("why they are redundant", reason) for reason in reasons]
    evidence += [item for other in others for item in other.evidence if item not in line.evidence]
    if line.kind == REDUNDANT:
        # Both say that the same collectives are redundant; the first reason has the better claim.
        return replace(line, evidence=(*line.evidence, *dict.fromkeys(evidence)))
    every = np.unique(np.concatenate([fact.rows for fact in facts]))
    count, moved_bytes, exposed_ns = _figures(context, every)
    of = max(count, _figures(context, whole)[0])
    saving = _saving(context, line, facts, exposed_ns)
    remedy = others[0].remedy
    if remedy is not None and saving is None:
        remedy = replace(remedy, counterfactual=None)
    moved = () if moved_bytes is None else (Figure("redundant_bytes", moved_bytes, "bytes"),)
    return replace(
        line,
        title=f"{line.title}; {f'all {count:,}' if count == of else f'{count:,} of {of:,}'} redundant: "
        f"{'; '.join(reasons)}",
        severity=min((line.severity, *(other.severity for other in others)), key=SEVERITIES.index),
        confidence=max((line.confidence, *(other.confidence for other in others)), key=_CONFIDENCES.index),
        also=(REDUNDANT,),
        figures=(*line.figures, Figure("redundant_count", count, "count"), *moved),
        evidence=(*line.evidence, Evidence("redundant per step", count), *dict.fromkeys(evidence)),
        remedy=line.remedy if remedy is None else remedy,
        saving_ns=line.saving_ns if remedy is None else saving,
    )


def _figures(context: Context, rows: npt.NDArray[np.int64]) -> tuple[int, int | None, int | None]:
    """Return count, bytes and exposed time per surveyed step of these rows, as `Line` has them."""
    frame = context.collectives.iloc[rows]
    frame = frame[frame["step"].isin(context.surveyed).to_numpy(dtype=bool)].assign(all=0)
    (line,) = tally(frame, ("all",), ("exposed_ns", "message_bytes"), context.surveyed).lines
    return line.count, line.figures["message_bytes"], line.figures["exposed_ns"]


def _saving(context: Context, line: Finding, facts: Sequence[_Fact], exposed_ns: int | None) -> int | None:
    """Return what the redundancies cost that their remedies save; None if unknown, or a choice."""
    if exposed_ns is None or line.toll_ns is None:
        return None
    saved = 0.0
    for fact in facts:
        other, mine = fact.finding, _figures(context, fact.rows)[2]
        if other.saving_ns is None or mine is None:
            return None
        saved += mine * (other.saving_ns / other.toll_ns if other.toll_ns else 1.0)
    return min(line.toll_ns, exposed_ns, round(saved))
