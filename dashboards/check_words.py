"""What a budget check found, in the words that every renderer shows."""

from __future__ import annotations

from typing import Final

from shardtoll.dashboards import human
from shardtoll.dashboards.text import clip
from shardtoll.ledger.overrun import BudgetCheck, Call, Overrun

_LONGEST: Final = 300
_NAME: Final = 120
MOST_LINES: Final = 200
"""Overruns told in words; all are in the JSON."""


def headline(check: BudgetCheck) -> str:
    """Return the answer in one line."""
    judged = (
        f"{human.plural(check.limits, 'limit')} on {human.plural(check.steps, 'step')} "
        f"of {human.plural(check.ranks, 'rank')}"
    )
    over = sum(one.answer == "over" for one in check.overruns)
    untold = len(check.overruns) - over
    said = [f"{over:,} over budget"] if over else []
    if untold:
        allowed = ", allowed" if check.unknown_allowed else ""
        said.append(f"{untold:,} cannot be told{allowed}")
    return f"{', '.join(said) or 'within budget'}: {judged}"


def name(one: Overrun) -> str:
    """Return which limit it is, as `max_wire_bytes of module "layers.*"`."""
    if one.place is None:
        return one.limit_name
    of = f" of {clip(one.section, _NAME)}" if one.section is not None else ""
    if one.limit_name == "no_implicit":
        return f'no_implicit "{clip(one.place, _NAME)}"{of}'
    if one.limit_name == "forbid":
        return f"forbid {clip(one.place, _NAME)}{of}"
    return f"{one.limit_name} of {clip(one.place, _NAME)}"


def why(one: Overrun) -> str:
    """Return how far it is over, in words."""
    return clip(one.why, 2 * _LONGEST)


def place(one: Overrun) -> str:
    """Return where: the source line, the step and the rank, as far as known."""
    parts = [f"at {clip(one.source, _LONGEST)}"] if one.source else []
    if one.step is not None:
        parts.append(f"step {one.step}")
    if one.rank is not None:
        parts.append(f"rank {one.rank}")
    return ", ".join(parts) or "place unknown"


def call(one: Call) -> str:
    """Return collectives of one cause in a line."""
    parts = [
        f"{one.count:,} {clip(one.op, _NAME)}",
        f"{human.size(one.wire_bytes)} sent",
        f"on {'mesh dim' if one.mesh_dim else 'group'} {clip(one.mesh_dim or one.group, _NAME)}",
        one.phase,
    ]
    if one.implicit:
        parts.append("implicit")
    if one.module is not None:
        parts.append(clip(f"module {one.module or '(root)'}", _NAME))
    if one.parameter:
        parts.append(clip(f"parameter {one.parameter}", _NAME))
    if one.caused_by_op:
        parts.append(clip(one.caused_by_op, _NAME))
    if one.placements_from or one.placements_to:
        parts.append(clip(f"{one.placements_from or '?'} -> {one.placements_to or '?'}", _NAME))
    if one.source:
        parts.append(clip(f"at {one.source}", _LONGEST))
    return " · ".join(parts)


def parts(one: Overrun) -> list[str]:
    """Return what the figure is made of, a line a cause; nothing where the overrun itself says it all."""
    if one.limit_name == "no_implicit" and one.answer == "over":
        # Its words name the cause; calls of several parameters or layers add which.
        lines = [call(each) for each in one.calls] if len(one.calls) > 1 else []
    else:
        lines = [call(each) for each in one.calls]
    if one.calls_left_out:
        lines.append(f"and {human.plural(one.calls_left_out, 'cause')} more")
    return lines


def lines(check: BudgetCheck) -> list[str]:
    """Return the whole in plain lines, as a test that fails shows it."""
    told = [headline(check)]
    for one in check.overruns[:MOST_LINES]:
        told.append(f"  {one.answer}: {name(one)}: {why(one)}")
        told.append(f"      {place(one)}")
        told += [f"      {line}" for line in parts(one)]
    if len(check.overruns) > MOST_LINES:
        told.append(f"  and {len(check.overruns) - MOST_LINES:,} more")
    return [*told, *(f"  warning: {clip(words, 2 * _LONGEST)}" for words in check.warnings)]
