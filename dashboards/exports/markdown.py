"""The report as Markdown for a pull request: what it costs, where, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.applies import duration
from shardtoll.dashboards.facts.first_screen import together, under_bars
from shardtoll.dashboards.facts.first_screen.first_facts import more_like
from shardtoll.dashboards.facts.first_screen.first_rows import Row, rows
from shardtoll.dashboards.words.escaped import code, in_html, plain, table
from shardtoll.dashboards.words.files import write as write_file
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.words import human

MOST: Final = 65_536
"""Characters that GitHub takes in a comment."""
SHOWN: Final = 20
"""Findings that stand in the table."""


def write(report: Report, path: Path) -> list[Path]:
    """Write the Markdown and return the files written; UsageError if that fails."""
    write_file(path, markdown(report).encode())
    return [path]


def markdown(report: Report) -> str:
    """Return the summary: never longer than a comment may be, and it says what it leaves out."""
    findings = list(enumerate(report.findings, start=1))
    listed = _rows(report)
    lines = [f"## shardtoll: {_counts(report)}", "", plain(report.verdict, 1000), ""]
    lines += [part for line in under_bars.below_verdict(report) for part in (plain(line, 1000), "")]
    if findings:
        shown = [cells for _, cells in listed[:SHOWN]]
        lines += table(("#", "finding", "where", "toll per step", "saving", "what"), shown)
        lines.append("")
    lines += [part for sentence in together.on_the_bill(report) for part in (plain(sentence, 1000), "")]
    if left := sum(count for count, _ in listed[SHOWN:]):
        lines += [f"{human.plural(left, 'more finding')} not in this table.", ""]
    lines += [*_anatomy(report), ""]
    end = [f"<sub>{_run(report)}</sub>", ""]
    budget = MOST - len("\n".join([*lines, *end])) - 200
    for number, finding in findings:
        details = _details(number, finding)
        budget -= sum(map(len, details)) + len(details)
        if budget < 0:
            lines += [f"Details of findings {number} to {len(findings)} are left out: they are too long.", ""]
            break
        lines += details
    return "\n".join([*lines, *end])


def _counts(report: Report) -> str:
    if not report.findings:
        return "nothing found"
    words = {"error": "error", "warning": "warning", "info": "note"}
    counts = {
        word: sum(finding.severity == severity for finding in report.findings)
        for severity, word in words.items()
    }
    return ", ".join(human.plural(count, word) for word, count in counts.items() if count)


def _rows(report: Report) -> list[tuple[int, list[str]]]:
    """Return how many findings each row of the table is of, and its cells, in the order of the bill.

    Errors that share a row on the first screen share it here too. Each finding with a toll has its own row.
    """
    made = []
    for row in rows(report.findings):
        if row.finding.toll_ns is None and not row.more:
            made.append((row.numbers, _row(row)))
        else:
            # A row may also hold errors that its findings cause.
            of = ((number, report.findings[number - 1]) for number in row.numbers)
            made += [((number,), _row(Row(finding, (number,)))) for number, finding in of]
    return [(len(numbers), cells) for numbers, cells in sorted(made, key=lambda each: each[0])]


def _row(row: Row) -> list[str]:
    finding, more = row.finding, more_like(row)
    return [
        human.runs(row.numbers),
        f"{finding.severity} **{plain(finding.kind)}**",
        plain(row.place or finding.where.label(), 80 if row.place is None else 160),
        *(duration(finding, name) for name in ("toll", "saving")),
        plain(finding.title, 200) + (f"; {plain(more, 160)}" if more else ""),
    ]


def _anatomy(report: Report) -> list[str]:
    slowest = step_times.longest(step_times.rank_times(report))
    if slowest is None:
        return ["No step finished, so there are no step times."]
    parts = [
        f"{words} {human.duration(value)} ({human.share(value, slowest.total_ns)})"
        for (_, words), value in zip(step_times.PARTS, slowest.parts_ns, strict=True)
        if value
    ]
    unknown = [
        words for (_, words), value in zip(step_times.PARTS, slowest.parts_ns, strict=True) if value is None
    ]
    if unknown:
        parts.append(f"unknown in watched steps: {', '.join(unknown)}")
    return [
        f"The step of the slowest rank, {slowest.ranks[0]} ({summary.mean_of(report)}): "
        f"{human.duration(slowest.total_ns)} = {', '.join(parts) or 'nothing'}."
    ]


def _details(number: int, finding: Finding) -> list[str]:
    lines = [
        f"<details><summary>Finding {number}, {finding.kind}: {in_html(finding.title, 120)}</summary>",
        "",
    ]
    facts = [(name, plain(value, 200)) for name, value in summary.places(finding)]
    facts += [("place", plain(line, 300)) for line in summary.occurrences(finding)]
    facts += [
        ("ranks", human.runs(finding.ranks)),
        ("toll per step", duration(finding, "toll")),
        ("floor", duration(finding, "floor")),
        ("saving", duration(finding, "saving")),
        ("confidence", finding.confidence),
        *(
            (plain(evidence.label, 80), plain(human.quantity(evidence.value, evidence.unit), 300))
            for evidence in finding.evidence
        ),
    ]
    lines += [*table(("fact", "value"), facts), ""]
    remedy = finding.remedy
    if remedy is not None:
        against = f" The saving is against {plain(remedy.counterfactual)}." if remedy.counterfactual else ""
        named = f" ({remedy.effort})" if remedy.effort else ""
        lines += [f"What to do{named}: {plain(remedy.text, 1000)}.{against}".replace("..", "."), ""]
        if remedy.code:
            lines += [*code(remedy.code), ""]
    return [*lines, "</details>", ""]


def _run(report: Report) -> str:
    run = report.run
    facts = [
        summary.checked(report),
        summary.forecast_of(run) or f"{len(run.ranks_seen)} of {human.plural(run.world_size, 'rank')} seen",
        f"backend {plain(run.backend or human.UNKNOWN, 60)}",
        f"device {plain(run.device or human.UNKNOWN, 60)}",
        f"torch {plain(run.torch or human.UNKNOWN, 60)}",
        f"fabric {plain(report.fabric.name, 80)}",
    ]
    return "; ".join(facts)
