"""What is over budget as GitHub workflow commands, which a pull request shows at their source lines.

Syntax: docs.github.com, "Workflow commands for GitHub Actions": `::error file=..,line=..,title=..::message`;
`%`, carriage return and line feed are written as %25, %0D and %0A, in properties `:` and `,` as %3A and %2C.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardtoll.dashboards import check_words as words
from shardtoll.dashboards.check_folds import Mark, marks
from shardtoll.dashboards.text import clip
from shardtoll.ledger.overrun import BudgetCheck

MOST: Final = 50
"""Annotations of one check: GitHub shows ten of a step and fifty of a run."""
MOST_LIMITS: Final = 12
"""Limits told at one line."""


def source_files(check: BudgetCheck) -> set[str]:
    """Return the files of the overruns' source lines, as the run names them."""
    return {mark.site[0] for mark in marks(check.overruns) if mark.site is not None}


def workflow_commands(check: BudgetCheck, paths: Mapping[str, str] | None = None) -> list[str]:
    """Return a line for each source line that is over or may be, and each warning, the failing ones first.

    Limits that tell the same excess are one annotation. `paths` has the path in the checkout of each of
    `source_files` that is known there.
    """
    ordered = sorted(marks(check.overruns), key=lambda mark: _excused(check, mark))
    told = [_mark(check, one, paths or {}) for one in ordered]
    told += [_command("warning", {"title": "shardtoll check"}, clip(one, 600)) for one in check.warnings]
    if len(told) > MOST:
        text = f"and {len(told) - MOST + 1:,} more: the log has them"
        told[MOST - 1 :] = [_command("warning", {"title": "shardtoll check"}, text)]
    return told


def _excused(check: BudgetCheck, mark: Mark) -> bool:
    return all(check.excused(one) for one in mark.overruns)


def _mark(check: BudgetCheck, mark: Mark, paths: Mapping[str, str]) -> str:
    where = {}
    if mark.site is not None:
        where = {"file": paths.get(mark.site[0], mark.site[0]), "line": mark.site[1]}
    # What fails is told before what is allowed at the same line.
    ordered = sorted(mark.overruns, key=check.excused)
    first = ordered[0]
    more = f" and {len(ordered) - 1} more" if len(ordered) > 1 else ""
    title = f"{first.answer}: {words.name(first)}{more}"
    lines = [words.why(first), words.place(first)]
    lines += [f"also {one.answer}: {words.name(one)}: {words.why(one)}" for one in ordered[1:MOST_LIMITS]]
    if len(ordered) > MOST_LIMITS:
        lines.append(f"and {len(ordered) - MOST_LIMITS:,} limits more")
    if mark.others:
        lines.append(
            f"one of {mark.others + 1} lines that may be the cause: "
            "which of them is new a single run does not tell"
        )
    # The narrowest of them is made of the fewest calls.
    lines += words.parts(min(ordered, key=lambda one: (not one.calls, len(one.calls) + one.calls_left_out)))
    kind = "warning" if _excused(check, mark) else "error"
    return _command(kind, {**where, "title": title}, "\n".join(lines))


def _command(name: str, properties: dict[str, str], text: str) -> str:
    told = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {told}::{_data(text)}"


def _data(text: str) -> str:
    # Half a character pair or a control character has no place in a log either.
    safe = "\n".join(clip(line, 2_000) for line in text.split("\n"))
    return safe.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(clip(text, 1_000)).replace(":", "%3A").replace(",", "%2C")
