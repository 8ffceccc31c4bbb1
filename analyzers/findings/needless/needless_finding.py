"""The finding about collectives of one place that need not be: what all such findings have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.layer_names import Names, pattern
from shardtoll.analyzers.shared.placements import hidden
from shardtoll.analyzers.shared.sampled import is_sampled
from shardtoll.analyzers.shared.tally import Line, number, tally, with_columns
from shardtoll.ledger import Confidence, Evidence, Finding, Remedy, Rows, Severity
from shardtoll.ledger.words.human import place, some_size
from shardtoll.ledger.words.human import plural as times

VALUES: Final = ("exposed_ns", "message_bytes", "used_bytes")


class Subject(Struct, frozen=True):
    """Facts, in words, that a title may use about the collectives of one place."""

    place: str
    """As ` (layers.0, train.py:7)`; empty if nothing of it is known."""
    size: str
    matched: bool
    """Each is matched with the other ranks'."""
    sampled: bool
    """Some message has more elements than a fingerprint looks at."""


class Story(Struct, frozen=True):
    """Texts about the collectives of one place."""

    title_end: str
    """Follows how many there are, of what and where."""
    remedy: Remedy
    evidence: tuple[Evidence, ...]
    """Which collectives they are, before their size."""
    more_evidence: tuple[Evidence, ...]
    """After their size."""
    total_label: str
    """Label of how many there are in all."""
    severity: Severity = "warning"
    confidence: Confidence = "certain"
    saved: float = 1.0
    """The part of their exposed time that the remedy's counterfactual does not have."""
    floor_ns: int | None = None
    clause: str | None = None
    """Why they need not be, in a few words, for a line that another fact begins."""


def clauses(context: Context) -> dict[Rows, str]:
    """Return the clause of each finding made so far, by its rows; filled as findings are made."""
    made: dict[Rows, str] = context.memo.setdefault(clauses, {})
    return made


def needless_findings(
    context: Context,
    frame: pd.DataFrame,
    keys: Sequence[str],
    phase: str,
    tell: Callable[[Line, Subject], Story],
) -> list[Finding]:
    """Return one finding a group of rows by `keys`, on the rank where its figures are largest.

    `keys` may name `parameters`: the parameter with its numbers as `*`. `phase`: the column that titles name.
    """
    if frame.empty:
        return []
    frame = with_columns(frame, parameters=pattern(frame["parameter"]))
    # `implicit-redistribute` bills collectives that DTensor inserted, so they stay separate (see `one_line`).
    frame = with_columns(frame, inserted=hidden(frame))
    result = tally(frame, (*keys, "inserted"), VALUES, context.surveyed)
    parameters, modules = Names(frame["parameter"], result.code), Names(frame["module"], result.code)
    sampled = is_sampled(frame).groupby(result.code).any()
    matched = frame["match_id"].notna().groupby(result.code).all()
    findings = []
    for line in result.lines:
        named = modules.of(line)
        module = named[0] if len(named) == 1 else None
        moved = line.figures["message_bytes"]
        subject = Subject(
            place=place(module, line.text("source")),
            size=some_size(moved),
            matched=bool(matched[line.code]),
            sampled=bool(sampled[line.code]),
        )
        story = tell(line, subject)
        # A choice costs nothing that is not billed elsewhere.
        toll = line.figures["exposed_ns"] if story.severity != "info" else None
        saving = toll if toll is None or story.saved == 1 else int(toll * story.saved)
        op, cause = str(line.first["op"]), line.text("caused_by_op")
        parameter = parameters.place(line, "parameters")
        rows = Rows.of(collectives=result.places(line))
        if story.clause:
            clauses(context)[rows] = story.clause
        of_parameter = f" of {parameter}" if parameter else ""
        findings.append(
            Finding(
                kind="redundant-collective",
                severity=story.severity,
                title=f"{times(line.each, op)}{of_parameter} per step on {line.first['net']} in "
                f"{line.first[phase]}{story.title_end}",
                toll_ns=toll,
                floor_ns=story.floor_ns,
                saving_ns=saving,
                bytes=moved,
                count=line.count,
                ranks=line.ranks,
                where=replace(
                    line.where("phase", "source", "group", "mesh_dim", op=cause or op, parameter=parameter),
                    module=module,
                ),
                rows=rows,
                parameters=parameters.several(line),
                evidence=(
                    Evidence("collective", op),
                    *story.evidence,
                    Evidence("message", number(line.first["message_bytes"]), "bytes"),
                    *story.more_evidence,
                    *parameters.evidence(line, "parameters"),
                    *modules.evidence(line, "modules"),
                    Evidence(story.total_label, line.total),
                ),
                # A saving is claimed only if there is a counterfactual.
                remedy=story.remedy if saving is not None else replace(story.remedy, counterfactual=None),
                # Fingerprints of long messages are of a sample.
                confidence="likely"
                if story.confidence == "certain" and subject.sampled
                else story.confidence,
            )
        )
    return findings


def described(line: Line, columns: Sequence[str]) -> str:
    """Return a collective in words, by those of its columns that are known; `seq` with its name before it."""
    parts = (
        f"seq {seq}"
        if column.endswith("seq") and (seq := number(line.first[column])) is not None
        else line.text(column)
        for column in columns
    )
    return ", ".join(part for part in parts if part)
