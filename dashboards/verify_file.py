"""What `shardtoll verify` found as a file: JSON for programs, Markdown for a pull request."""

from __future__ import annotations

import json
from pathlib import Path

from shardtoll.dashboards import verdict
from shardtoll.dashboards.files import write as write_file
from shardtoll.dashboards.markdown_table import cell, table
from shardtoll.ledger.verification import Verification, verification_to_json


def to_json(verification: Verification) -> str:
    """Return it as one line of JSON."""
    return json.dumps(verification_to_json(verification), allow_nan=False, separators=(",", ":"))


def write_json(verification: Verification, path: Path) -> list[Path]:
    """Write the JSON and return the files written; UsageError where that fails."""
    write_file(path, to_json(verification).encode())
    return [path]


def write_markdown(verification: Verification, path: Path) -> list[Path]:
    """Write a page of Markdown and return the files written; UsageError where that fails."""
    write_file(path, markdown(verification).encode())
    return [path]


def markdown(verification: Verification) -> str:
    """Return it as Markdown: tables of the findings and of the step's figures."""
    v = verification
    lines = [
        f"# shardtoll verify: {'passed' if v.passed else 'not passed'}",
        "",
        f"{cell(v.before)} -> {cell(v.after)}. {cell(verdict.headline(v))}.",
        *(f"- not alike: {cell(words)}" for words in v.warnings),
        "",
        *table(
            ("#", "finding", "where", "verdict", "why", "predicted saving"),
            [
                (str(one.number), f"{one.finding.kind}: {verdict.title(one)}", verdict.place(one.finding),
                 one.verdict, one.why, verdict.predicted(one))
                for one in v.findings
            ],
        ),
        "",
        *_also(v),
        f"**{cell(verdict.gradients_words(v.gradients))}**: {cell(v.gradients.why)}",
        *(f"- {cell(line)}" for line in verdict.differences(v.gradients)),
        "",
        f"**saving {v.saving.kept}**: {cell(v.saving.why)}",
        "",
        *table(("per step", "before", "after", "change"), verdict.figures(v)),
    ]  # fmt: skip
    if v.new:
        lines += [
            "",
            "New in the run after:",
            "",
            *(f"- {cell(line)}" for line in verdict.new_findings(v.new)),
        ]
    return "\n".join(lines) + "\n"


def _also(v: Verification) -> list[str]:
    if not v.also:
        return []
    return [f"{verdict.ALSO}:", "", *(f"- {cell(line)}" for line in verdict.also(v)), ""]
