"""What `shardtoll check` found as a file: JSON for programs, Markdown for a pull request."""

from __future__ import annotations

import json
from pathlib import Path

from shardtoll.dashboards import check_words as words
from shardtoll.dashboards.files import write as write_file
from shardtoll.dashboards.text import clean
from shardtoll.ledger.overrun import BudgetCheck, check_to_json


def to_json(check: BudgetCheck) -> str:
    """Return it as one line of JSON."""
    return json.dumps(check_to_json(check), allow_nan=False, separators=(",", ":"))


def write_json(check: BudgetCheck, path: Path) -> list[Path]:
    """Write the JSON and return the files written; UsageError where that fails."""
    # A name may hold half of a character pair, which no file does.
    write_file(path, to_json(check).encode("utf-8", "backslashreplace"))
    return [path]


def write_markdown(check: BudgetCheck, path: Path) -> list[Path]:
    """Write a page of Markdown and return the files written; UsageError where that fails."""
    write_file(path, markdown(check).encode("utf-8", "backslashreplace"))
    return [path]


def markdown(check: BudgetCheck) -> str:
    """Return it as Markdown: a table of what is over, and what each figure is made of."""
    lines = [
        f"# shardtoll check: {'passed' if check.passed else 'not passed'}",
        "",
        f"{_cell(check.run)} against {_cell(check.budget)}. {_cell(words.headline(check))}.",
        "",
    ]
    shown = check.overruns[: words.MOST_LINES]
    if shown:
        lines += ["| answer | limit | why | where |", "| --- | --- | --- | --- |"]
        for one in shown:
            row = (one.answer, words.name(one), words.why(one), words.place(one))
            lines.append("| " + " | ".join(map(_cell, row)) + " |")
        if len(check.overruns) > len(shown):
            lines.append(f"\nand {len(check.overruns) - len(shown):,} more")
        lines.append("")
    for one in shown:
        parts = words.parts(one)
        if parts:
            lines += [f"{_cell(words.name(one))}:", "", *(f"- {_cell(part)}" for part in parts), ""]
    lines += [f"- warning: {_cell(warning)}" for warning in check.warnings]
    return "\n".join(lines).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    """Return text that Markdown shows as it is: names come from users' programs."""
    shown = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return "".join(f"\\{char}" if char in "`*[]_~" else char for char in shown)
