"""The answer of `shardtoll whatif`: the step before and after, and what becomes of the bill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.roofline import (
    Fabric,
    choose_fabric,
    fabric_names,
    fabric_on_record,
    load_fabric,
    with_device,
)
from shardtoll.analyzers.whatif.anatomy import of_step
from shardtoll.analyzers.whatif.bills import changed_bill
from shardtoll.analyzers.whatif.edits.asked import Asked, asked_edits
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.remedies import NO_EDIT, edit_of, nodes_there
from shardtoll.analyzers.whatif.path import critical_path
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.ledger import Finding, Ledger, Report, UsageError
from shardtoll.ledger.answers.what_if import WITHOUT_CAPTURE, Change, Parts, RankParts, WhatIf
from shardtoll.ledger.report.report import WHAT_IF
from shardtoll.ledger.words import human

LEAST_LONGER: Final = 1e-3
"""A fix that lengthens the step by this share or more says why."""

MOST_ANALYSED: Final = 400_000
"""Nodes up to which the changed step is analysed anew for the findings that vanish and appear."""


@WHAT_IF.entry
def what_if(
    report: Report,
    fixes: Sequence[int] = (),
    *,
    first: int | None = None,
    name: str = "the run",
    **asked: Any,
) -> WhatIf:
    """Return the step after fixes of the bill and other changes; `asked` are the fields of `Asked`.

    `fixes` are numbers of findings, `first` the first so many that can be replayed. Raises UsageError where
    nothing is asked for, where a finding has no edit, and where the run cannot be replayed.
    """
    wanted = Asked(**asked)
    ledger = Ledger(with_device(report.run), report.groups, report.tables)
    context = make_context(ledger, _fabric(report))
    edits = [*_fixes(context, report, fixes, first), *asked_edits(context, wanted)]
    if not edits:
        raise UsageError("nothing to change is given", "give --fix 1, or another change; see --help")
    recorded = recorded_graph(context)
    if recorded is None:
        raise UsageError(
            f"{name} has no step that can be replayed: its collectives have no times, or its ranks no step "
            "in common",
            "record whole steps on all ranks",
        )
    for edit in edits:
        if edit.missing is not None and not nodes_there(recorded, edit):
            raise UsageError(edit.missing, "leave it out")
    made = Replayer(context, recorded)
    draft, after, step_after = made.simulated(edits)
    saved = made.saved(edits)
    before_parts, after_parts = made.parts(made.outcome), made.parts(after, draft)
    slowest = recorded.slowest_rank(after, made.slowest)
    notes = [WITHOUT_CAPTURE] if made.recorded.captured else []
    notes += [_source_note(made), *dict.fromkeys(edit.note for edit in edits if edit.note)]
    notes += longer_notes(made, edits)
    notes += [*beyond_notes(made, edits, report.findings)]
    vanished: tuple[str, ...] = ()
    appeared: tuple[str, ...] = ()
    if len(recorded.graph) <= MOST_ANALYSED:
        fixed = {edit.number for edit in edits if edit.number is not None}
        vanished, appeared = changed_bill(made, draft, after, report.findings, fixed)
    else:
        notes.append("The changed step is too large to analyse anew: no finding is said to vanish or appear.")
    return WhatIf(
        run=name,
        source=recorded.source,
        steps=recorded.steps,
        ranks_seen=len(recorded.ranks),
        nodes=len(recorded.graph),
        replay_error=made.doubt.replay_error,
        unknown_share=made.doubt.unknown_share,
        before=of_step(before_parts[made.slowest], made.step_ns),
        after=of_step(after_parts[slowest], step_after),
        saving_ns=round(made.step_ns - step_after),
        saving_low_ns=round(saved.low_ns),
        saving_high_ns=round(saved.high_ns),
        changes=_changes(made, edits, report.findings),
        ranks=tuple(RankParts(rank, before_parts[rank], after_parts[rank]) for rank in recorded.ranks),
        vanished=vanished,
        appeared=appeared,
        path=critical_path(recorded, after, slowest, step_after, step_factor=draft.step_factor),
        notes=tuple(notes),
        slowest_before=int(made.slowest),
        slowest_after=int(slowest),
    )


def _fabric(report: Report) -> Fabric:
    recorded = fabric_on_record(report.run)
    if report.fabric.name in fabric_names() and (recorded is None or recorded.name != report.fabric.name):
        return load_fabric(report.fabric.name)
    return choose_fabric(report.run)


def _fixes(context: Context, report: Report, fixes: Sequence[int], first: int | None) -> list[Edit]:
    made = []
    for number in dict.fromkeys(fixes):
        if not 1 <= number <= len(report.findings):
            there = f"give 1 to {len(report.findings)}" if report.findings else "the bill is empty"
            raise UsageError(f"there is no finding {number}", there)
        finding = report.findings[number - 1]
        edit = edit_of(context, finding, number)
        if edit is None:
            why = NO_EDIT.get(finding.kind, _why_none(finding))
            raise UsageError(f"finding {number} ({finding.kind}) cannot be replayed: {why}", "leave it out")
        made.append(edit)
    for number, finding in enumerate(report.findings, start=1):
        if first is None or len(made) >= first:
            break
        edit = edit_of(context, finding, number)
        if edit is not None and number not in fixes:
            made.append(edit)
    return made


def _why_none(finding: Finding) -> str:
    if finding.kind == "cross-node-traffic" and finding.saving_ns is None:
        return "nothing on record says how fast its collectives are inside a node"
    return "the finding names no rows or ranks that an edit could change"


def _changes(made: Replayer, edits: Sequence[Edit], findings: Sequence[Finding]) -> tuple[Change, ...]:
    changes = []
    for count, edit in enumerate(edits, start=1):
        saved = made.saved([edit])
        finding = None if edit.number is None else findings[edit.number - 1]
        changes.append(
            Change(
                label=edit.label,
                number=edit.number,
                kind=None if finding is None else finding.kind,
                title=None if finding is None else finding.title,
                toll_ns=None if finding is None else finding.toll_ns,
                saving_ns=round(saved.mid_ns),
                low_ns=round(saved.low_ns),
                high_ns=round(saved.high_ns),
                step_ns=round(made.after_ns(edits[:count])),
            )
        )
    return tuple(changes)


def longer_notes(made: Replayer, edits: Sequence[Edit]) -> list[str]:
    """Return why each fix of a finding that lengthens the step does so."""
    notes = []
    for edit in edits:
        longer_ns = -made.saved([edit]).mid_ns
        if edit.number is None or longer_ns < LEAST_LONGER * made.step_ns:
            continue
        draft = made.draft([edit])
        now = made.parts(made.outcome)
        most = {rank: parts.compute_ns - now[rank].compute_ns for rank, parts in _parts_after(made, draft)}
        rank = max(most, key=lambda each: most[each])
        more = (
            f"gives rank {rank} {human.duration(most[rank])} more compute" if most[rank] > 0 else "moves work"
        )
        unknown = human.percent(made.doubt.unknown_share)
        notes.append(
            f"The fix of finding {edit.number} makes this step {human.duration(longer_ns)} longer: "
            f"it {more}. Waits without a reason on record are {unknown} of the critical path, and replay "
            "cannot shorten them."
        )
    return notes


def beyond_notes(made: Replayer, edits: Sequence[Edit], findings: Sequence[Finding]) -> Iterator[str]:
    """Yield why a fix saves more than its finding costs on the bill."""
    for edit in edits:
        toll_ns = None if edit.number is None else findings[edit.number - 1].toll_ns
        saved_ns = made.saved([edit]).mid_ns
        if toll_ns and saved_ns - toll_ns >= LEAST_LONGER * made.step_ns:
            why = "" if edit.more is None else f": {edit.more}"
            yield (
                f"The fix of finding {edit.number} saves {human.duration(saved_ns)}, and its toll is "
                f"{human.duration(toll_ns)}{why}."
            )


def _parts_after(made: Replayer, draft: Draft) -> list[tuple[int, Parts]]:
    return list(made.parts(draft.outcome(), draft).items())


def _source_note(made: Replayer) -> str:
    if made.recorded.source == "events":
        return "Replayed from launches, streams and waits on record."
    return (
        "Replayed from collectives and the ranks' own time between them. The record holds no launches, so "
        "delays by the host are not separate."
    )
