"""What is over budget as GitHub workflow commands, which a pull request shows at their source lines.

Syntax: docs.github.com, "Workflow commands for GitHub Actions": `::error file=..,line=..,title=..::message`;
`%`, carriage return and line feed are written as %25, %0D and %0A, in properties `:` and `,` as %3A and %2C.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shardtoll.dashboards import check_words as words
from shardtoll.dashboards.text import clip
from shardtoll.ledger.overrun import BudgetCheck, Overrun

MOST: Final = 50
"""Annotations of one check: GitHub shows ten of a step and fifty of a run."""
_SITE: Final = re.compile(r"(?P<file>.{1,1000}):(?P<line>[1-9][0-9]{0,8})(?: \(.*\))?", re.DOTALL)


def source_files(check: BudgetCheck) -> set[str]:
    """Return the files of the overruns' source lines, as the run names them."""
    return {site[0] for one in check.overruns if (site := _site(one)) is not None}


def workflow_commands(check: BudgetCheck, paths: Mapping[str, str] | None = None) -> list[str]:
    """Return a line for each overrun and each warning, the failing ones first.

    `paths` has the path in the checkout of each of `source_files` that is known there.
    """
    ordered = sorted(check.overruns, key=check.excused)
    told = [_overrun(check, one, paths or {}) for one in ordered]
    told += [_command("warning", {"title": "shardtoll check"}, clip(one, 600)) for one in check.warnings]
    if len(told) > MOST:
        text = f"and {len(told) - MOST + 1:,} more: the log has them"
        told[MOST - 1 :] = [_command("warning", {"title": "shardtoll check"}, text)]
    return told


def _overrun(check: BudgetCheck, one: Overrun, paths: Mapping[str, str]) -> str:
    where = {}
    site = _site(one)
    if site is not None:
        where = {"file": paths.get(site[0], site[0]), "line": site[1]}
    title = f"{one.answer}: {words.name(one)}"
    text = "\n".join([words.why(one), words.place(one), *words.parts(one)])
    return _command("warning" if check.excused(one) else "error", {**where, "title": title}, text)


def _site(one: Overrun) -> tuple[str, str] | None:
    site = None if one.source is None else _SITE.fullmatch(one.source)
    return None if site is None else (site["file"], site["line"])


def _command(name: str, properties: dict[str, str], text: str) -> str:
    told = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {told}::{_data(text)}"


def _data(text: str) -> str:
    # Half a character pair or a control character has no place in a log either.
    safe = "\n".join(clip(line, 2_000) for line in text.split("\n"))
    return safe.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(clip(text, 1_000)).replace(":", "%3A").replace(",", "%2C")
