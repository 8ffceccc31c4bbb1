"""Which findings of the bill a change takes away, and which it brings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.two_runs.same_finding import paired, place
from shardtoll.analyzers.whatif.after import ledger_with
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.ledger import Finding, Ledger, analyze

_UNCHANGED: Final = ("trust", "correctness")


@dataclass(frozen=True, slots=True)
class _Billed:
    number: int
    """Number of the finding on its bill."""
    finding: Finding
    rows: frozenset[int]
    """Its collectives, by where they stand in the record."""


def changed_bill(
    made: Replayer, draft: Draft, after: Outcome, bill: Sequence[Finding], fixed: Collection[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the findings that vanish with the change and those that appear; not those of the record.

    A record tells more than a replay of it. So a finding vanishes in two cases: replay without the change
    shows it, or the change is its own fix. `fixed` are such numbers of `bill`. Nor does one appear that
    replay without the change shows too.
    """
    ledger = made.context.ledger
    was = _billed(bill, np.arange(ledger.tables["collectives"].num_rows))
    plain = _replayed(made, ledger, Draft(made.recorded), made.outcome)
    now = _replayed(made, ledger, draft, after)
    stayed, shown, also = _same(was, now), _same(was, plain), _same(plain, now)
    vanished = [
        each for row, each in enumerate(was) if row not in stayed and (row in shown or each.number in fixed)
    ]
    known = {*stayed.values(), *also.values()}
    return _words(vanished), _words([each for row, each in enumerate(now) if row not in known])


def _replayed(made: Replayer, ledger: Ledger, draft: Draft, outcome: Outcome) -> list[_Billed]:
    changed, places = ledger_with(ledger, draft, made.outcome, outcome)
    return _billed(analyze(changed, made.context.fabric).findings, places)


def _billed(findings: Sequence[Finding], places: npt.NDArray[np.int64]) -> list[_Billed]:
    return [
        _Billed(
            number,
            each,
            frozenset(places[each.rows.mask("collectives", len(places))].tolist()),
        )
        for number, each in enumerate(findings, start=1)
        if each.family not in _UNCHANGED
    ]


def _same(before: Sequence[_Billed], after: Sequence[_Billed]) -> dict[int, int]:
    """Return index in `before` -> index in `after` of the same finding.

    Findings of a kind that share collectives are the same, even if the change gave them another name. The
    others are the same by kind and place, as in two runs.
    """
    shared = sorted(
        (
            (len(each.rows & other.rows), -row, -to)
            for row, each in enumerate(before)
            for to, other in enumerate(after)
            if each.finding.kind == other.finding.kind and not each.rows.isdisjoint(other.rows)
        ),
        reverse=True,
    )
    pairs: dict[int, int] = {}
    for _, row, to in shared:
        if -row not in pairs and -to not in pairs.values():
            pairs[-row] = -to
    rows = [row for row in range(len(before)) if row not in pairs]
    left = [to for to in range(len(after)) if to not in pairs.values()]
    by_place = paired([before[row].finding for row in rows], [after[to].finding for to in left])
    return pairs | {rows[row]: left[to] for row, to in by_place.items()}


def _words(billed: Sequence[_Billed]) -> tuple[str, ...]:
    return tuple(f"{each.finding.kind}: {place(each.finding.where)}" for each in billed)
