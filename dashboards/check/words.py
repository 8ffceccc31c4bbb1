"""Results of a budget check, in the words that every renderer shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.dashboards.words.text import answer, clip
from shardtoll.ledger.answers.overrun import BudgetCheck, Call, Overrun
from shardtoll.ledger.report.report import BUDGET_LINES
from shardtoll.ledger.words import human
from shardtoll.ledger.words.names import shortened

_LONGEST: Final = 300
_NAME: Final = 120
MOST_LINES: Final = 200
"""Overruns shown in words; all are in the JSON."""


def headline(check: BudgetCheck) -> str:
    """Return the answer in one line."""
    judged = (
        f"{human.plural(check.limits, 'limit')} on {human.plural(check.steps, 'step')} "
        f"of {human.plural(check.ranks, 'rank')}"
    )
    over = sum(overrun.answer == "over" for overrun in check.overruns)
    untold = len(check.overruns) - over
    said = [f"{over:,} over budget"] if over else []
    if untold:
        allowed = ", allowed" if check.unknown_allowed else ""
        said.append(f"{untold:,} unknown{allowed}")
    return f"{', '.join(said) or 'within budget'}: {judged}"


def name(overrun: Overrun) -> str:
    """Return which limit it is, as `max_wire_bytes of module "layers.*"`."""
    if overrun.place is None:
        return overrun.limit_name
    of = f" of {clip(overrun.section, _NAME)}" if overrun.section is not None else ""
    if overrun.limit_name == "no_implicit":
        return f'no_implicit "{clip(overrun.place, _NAME)}"{of}'
    if overrun.limit_name == "forbid":
        return f"forbid {clip(overrun.place, _NAME)}{of}"
    return f"{overrun.limit_name} of {clip(overrun.place, _NAME)}"


def why(overrun: Overrun) -> str:
    """Return how far it is over, in words."""
    return clip(overrun.why, 2 * _LONGEST)


def place(overrun: Overrun) -> str:
    """Return where: the source line, the step and the rank, as far as known."""
    parts = [f"at {clip(overrun.source, _LONGEST)}"] if overrun.source else []
    if overrun.step is not None:
        parts.append(f"step {overrun.step}")
    if overrun.rank is not None:
        parts.append(f"rank {overrun.rank}")
    return ", ".join(parts) or "place unknown"


def call(each: Call) -> str:
    """Return collectives of one cause in a line."""
    parts = [
        human.plural(each.count, clip(each.op, _NAME)),
        f"{human.size(each.wire_bytes)} sent",
        f"on {'mesh dim' if each.mesh_dim else 'group'} {clip(each.mesh_dim or each.group, _NAME)}",
        each.phase,
    ]
    if each.implicit:
        parts.append("implicit")
    if each.module is not None:
        parts.append(clip(f"module {each.module or '(root)'}", _NAME))
    if each.parameter:
        parts.append(clip(f"parameter {each.parameter}", _NAME))
    if each.caused_by_op:
        parts.append(clip(each.caused_by_op, _NAME))
    if each.placements_from or each.placements_to:
        parts.append(clip(f"{each.placements_from or '?'} -> {each.placements_to or '?'}", _NAME))
    if each.source:
        parts.append(clip(f"at {each.source}", _LONGEST))
    return " · ".join(parts)


def shown_parts(check: BudgetCheck) -> list[tuple[Overrun, list[str]]]:
    """Return the overruns that are shown, with the parts of their figures.

    Several limits may count the same collectives: these are listed at the first one, and others name it.
    """
    made: list[tuple[Overrun, list[str]]] = []
    listed: dict[tuple[frozenset[Call], int], str] = {}
    for overrun in check.overruns[:MOST_LINES]:
        calls = frozenset(overrun.calls), overrun.calls_left_out
        lines = parts(overrun)
        if len(lines) > 1 and calls in listed:
            lines = [f"the same collectives as for {listed[calls]}"]
        elif lines:
            listed.setdefault(calls, name(overrun))
        made.append((overrun, lines))
    return made


def parts(overrun: Overrun) -> list[str]:
    """Return the parts of the figure, one line per cause; empty if the overrun's own words say it all."""
    if overrun.limit_name == "no_implicit" and overrun.answer == "over":
        # Its words name the cause; calls of several parameters or layers add which.
        lines = [call(each) for each in _joined(overrun.calls)] if len(overrun.calls) > 1 else []
    else:
        lines = [call(each) for each in _joined(overrun.calls)]
    if overrun.calls_left_out:
        lines.append(f"and {human.plural(overrun.calls_left_out, 'cause')} more")
    return lines


def _joined(calls: Sequence[Call]) -> list[Call]:
    """Return the calls with those as one that differ in module and parameter only, all of known names."""
    alike: dict[Call, list[Call]] = {}
    for each in calls:
        cause = replace(each, count=0, wire_bytes=0, exposed_ns=None, module=None, parameter=None)
        alike.setdefault(cause if each.module or each.parameter else each, []).append(each)
    return [_one(of) for of in alike.values()]


def _one(calls: Sequence[Call]) -> Call:
    sizes = [each.wire_bytes for each in calls]
    return replace(
        calls[0],
        count=sum(each.count for each in calls),
        wire_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        module=shortened(each.module for each in calls if each.module is not None) or calls[0].module,
        parameter=shortened(each.parameter for each in calls if each.parameter) or None,
        exposed_ns=calls[0].exposed_ns if len(calls) == 1 else None,
    )


@BUDGET_LINES.entry
def lines(check: BudgetCheck) -> list[str]:
    """Return the whole in plain lines, as a test that fails shows it."""
    said = [headline(check)]
    for overrun, of_it in shown_parts(check):
        said.append(f"  {answer(overrun.answer)}: {name(overrun)}: {why(overrun)}")
        said.append(f"      {place(overrun)}")
        said += [f"      {line}" for line in of_it]
    if len(check.overruns) > MOST_LINES:
        said.append(f"  and {len(check.overruns) - MOST_LINES:,} more")
    return [*said, *(f"  warning: {clip(words, 2 * _LONGEST)}" for words in check.warnings)]
