"""Overruns of a budget as GitHub workflow commands, which a pull request shows at their source lines.

The syntax is in docs.github.com, "Workflow commands for GitHub Actions": `::error
file=..,line=..,title=..::message`. There `%`, carriage return and line feed are written as %25, %0D and %0A,
and in properties `:` and `,` as %3A and %2C.

Overruns with the same excess are grouped by the source lines at which it may be fixed. One added collective
is over the limit of the step, of its group and of its phase, by as much in each. It is at a line that all of
these have. A single run does not show which of several such lines is new.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.dashboards.check import words
from shardtoll.dashboards.words.text import answer, clip
from shardtoll.ledger.answers.overrun import BudgetCheck, Overrun

MOST: Final = 50
"""Annotations of one check: GitHub shows ten of a step and fifty of a run."""
MOST_LIMITS: Final = 12
"""Limits listed at one line."""
LINES: Final = 10
"""Lines of one excess that are marked, the costliest: GitHub shows so many of a step."""
_SITE: Final = re.compile(r"(?P<file>.{1,1000}):(?P<line>[1-9][0-9]{0,8})(?: \(.*\))?", re.DOTALL)

Site = tuple[str, str]
"""File and line."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The message at one source line, or at none."""

    site: Site | None
    overruns: tuple[Overrun, ...]
    others: int
    """Other lines that may as well be the one to change."""


def source_files(check: BudgetCheck) -> set[str]:
    """Return the files of the overruns' source lines, as the run names them."""
    return {mark.site[0] for mark in marks(check.overruns) if mark.site is not None}


def workflow_commands(check: BudgetCheck, paths: Mapping[str, str] | None = None) -> list[str]:
    """Return a line for each source line that is over or may be, and each warning, the failing ones first.

    Limits with the same excess are one annotation. `paths` has the path in the checkout of each of
    `source_files` that is known there.
    """
    ordered = sorted(marks(check.overruns), key=lambda mark: _excused(check, mark))
    commands = [_mark(check, mark, paths or {}) for mark in ordered]
    commands += [
        _command("warning", {"title": "shardtoll check"}, clip(warning, 600)) for warning in check.warnings
    ]
    if len(commands) > MOST:
        text = f"and {len(commands) - MOST + 1:,} more: the log has them"
        commands[MOST - 1 :] = [_command("warning", {"title": "shardtoll check"}, text)]
    return commands


def _excused(check: BudgetCheck, mark: Mark) -> bool:
    return all(check.excused(overrun) for overrun in mark.overruns)


def _mark(check: BudgetCheck, mark: Mark, paths: Mapping[str, str]) -> str:
    where = {}
    if mark.site is not None:
        where = {"file": paths.get(mark.site[0], mark.site[0]), "line": mark.site[1]}
    # Failed limits come before allowed ones at the same line.
    ordered = sorted(mark.overruns, key=check.excused)
    first = ordered[0]
    more = f" and {len(ordered) - 1} more" if len(ordered) > 1 else ""
    title = f"{answer(first.answer)}: {words.name(first)}{more}"
    lines = [words.why(first), words.place(first)]
    lines += [
        f"also {answer(overrun.answer)}: {words.name(overrun)}: {words.why(overrun)}"
        for overrun in ordered[1:MOST_LIMITS]
    ]
    if len(ordered) > MOST_LIMITS:
        lines.append(f"and {len(ordered) - MOST_LIMITS:,} limits more")
    if mark.others:
        lines.append(
            f"one of {mark.others + 1} lines that may be the cause: "
            "which of them is new a single run does not tell"
        )
    # The narrowest of them is made of the fewest calls.
    lines += words.parts(
        min(ordered, key=lambda overrun: (not overrun.calls, len(overrun.calls) + overrun.calls_left_out))
    )
    kind = "warning" if _excused(check, mark) else "error"
    return _command(kind, {**where, "title": title}, "\n".join(lines))


def _command(name: str, properties: dict[str, str], text: str) -> str:
    pairs = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {pairs}::{_data(text)}"


def _data(text: str) -> str:
    # Half a character pair or a control character has no place in a log either.
    safe = "\n".join(clip(line, 2_000) for line in text.split("\n"))
    return safe.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(clip(text, 1_000)).replace(":", "%3A").replace(",", "%2C")


def site(source: str | None) -> Site | None:
    """Return file and line of a source as `job/train.py:7 (step)`."""
    match = None if source is None else _SITE.fullmatch(source)
    return None if match is None else (match["file"], match["line"])


def marks(overruns: Sequence[Overrun]) -> list[Mark]:
    """Return what to say at which lines, in the order of the overruns."""
    placed: dict[object, tuple[Site | None, list[Overrun], int]] = {}
    for same in _folded(overruns):
        lines: list[Site | None] = [*_lines(same)]
        for line in lines or [None]:
            # An overrun without a line gets its own message.
            key: object = line if line is not None else ("none", len(placed))
            _, together, others = placed.setdefault(key, (line, [], len(lines) - 1))
            together += same
            placed[key] = (line, together, min(others, max(0, len(lines) - 1)))
    return [Mark(line, tuple(overruns_there), others) for line, overruns_there, others in placed.values()]


def _folded(overruns: Iterable[Overrun]) -> list[list[Overrun]]:
    """Return those together that are over a limit of one name by as much, on one rank and in one step."""
    folded: dict[object, list[Overrun]] = {}
    for number, overrun in enumerate(overruns):
        key: object = number
        if overrun.answer == "over" and overrun.found is not None and overrun.limit_name.startswith("max_"):
            key = (overrun.limit_name, round(overrun.found - overrun.limit, 9), overrun.step, overrun.rank)
        folded.setdefault(key, []).append(overrun)
    return list(folded.values())


def _lines(same: Sequence[Overrun]) -> list[Site]:
    """Return the lines that all of them have, those of implicit calls first."""
    shared: list[Site] | None = None
    for overrun in same:
        mine = _of_calls(overrun)
        if not overrun.calls_left_out and mine:
            shared = mine if shared is None else [line for line in shared if line in mine] or shared
    if shared is None:
        shared = next((mine for overrun in same if (mine := _of_calls(overrun))), [])
    return shared[:LINES]


def _of_calls(overrun: Overrun) -> list[Site]:
    calls = sorted(overrun.calls, key=lambda call: not call.implicit)
    sites = [line for call in calls if (line := site(call.source)) is not None]
    of_overrun = site(overrun.source)
    return list(dict.fromkeys(sites)) or ([] if of_overrun is None else [of_overrun])
