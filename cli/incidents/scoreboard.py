"""The incidents' scoreboard: one row each, then recall and precision; on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shardtoll.cli.incidents.verdict import AVOIDABLE, Score, Verdict, total
from shardtoll.dashboards.terminal.screen import Screen
from shardtoll.dashboards.words.text import clean
from shardtoll.ledger import Finding
from shardtoll.ledger.words import human
from shardtoll.samples.incidents.expected import Expected


def show(verdicts: Sequence[Verdict], width: int | None = None) -> None:
    """Print the table, the errors in full, and the totals."""
    console = Screen(width)
    table = Table(title="incidents", title_justify="left", expand=False)
    table.add_column("incident", no_wrap=True)
    table.add_column("found what, and where", overflow="fold")
    table.add_column("size seen / expected")
    table.add_column("twin")
    table.add_column("s", justify="right")
    for verdict in verdicts:
        _rows(table, verdict)
    console.print(table)
    for verdict in verdicts:
        for line in problems(verdict):
            console.print(Text(clean(f"{verdict.wanted.name}: {line}"), style="red"))
        again = repeated(verdict)
        if again is not None:
            console.print(Text(f"{verdict.wanted.name}: {again}", style="yellow"))
    console.print(Text(summary(total(verdicts)), style="bold"))


def problems(verdict: Verdict) -> list[str]:
    """Return the errors of an incident, one line each."""
    lines = []
    if verdict.failed is not None:
        lines.append(f"did not run: {verdict.failed}")
    else:
        for missing in verdict.missing:
            lines.append(f"missed {missing.expected.kind} at {missing.expected.place}: {missing.why}")
    for expected, finding in verdict.still:
        lines.append(f"the fixed twin still has {expected.kind}: {finding.title}")
    for alarm in verdict.alarms:
        what = f"{alarm.finding.kind} at {alarm.finding.where.label()}: {alarm.finding.title}"
        lines.append(f"false alarm on the {alarm.variant} program: {what}")
    return lines


def repeated(verdict: Verdict) -> str | None:
    """Return that it was run again; None if it was not."""
    if verdict.runs < 2:
        return None
    return f"run {verdict.runs} times: the first miss rests on times, which load changes"


def summary(score: Score) -> str:
    """Return the totals in one line."""
    true = score.weighed - score.false
    again = (
        "" if not score.again else f"; {human.plural(score.again, 'incident')} missed by times and ran again"
    )
    left = (
        ""
        if not score.unweighed
        else f", {score.unweighed} of them shown as times or as choices, not weighed"
    )
    failed = "" if not score.failed else f"; {human.plural(score.failed, 'incident')} did not run"
    return (
        f"recall {_share(score.recall)} ({score.found} of {score.expected} expected findings{left}), "
        f"precision {_share(score.precision)} ({true} of {human.plural(score.weighed, 'finding')} that say "
        f"something is wrong or avoidable){failed}. Weighed are kinds of correctness, "
        f"{', '.join(AVOIDABLE)}. {human.plural(score.others, 'other finding')} "
        f"({human.plural(score.others_warn, 'warning')}) were not expected and not weighed: "
        f"they are about times or the bill itself{again}"
    )


def document(verdicts: Sequence[Verdict], asked: int) -> dict[str, Any]:
    """Return the scoreboard as JSON can hold it; `asked` incidents were to be run."""
    score = total(verdicts)
    return {
        "asked": asked,
        "recall": score.recall,
        "precision": score.precision,
        "expected": score.expected,
        "found": score.found,
        "weighed": score.weighed,
        "false": score.false,
        "failed": score.failed,
        "not_weighed": score.others,
        "not_weighed_warnings": score.others_warn,
        "run_again": score.again,
        "incidents": [_document(verdict) for verdict in verdicts],
    }


def _document(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.wanted.name,
        "source": verdict.wanted.source,
        "ranks": verdict.wanted.ranks,
        "good": verdict.good,
        "runs": verdict.runs,
        "seconds": None if verdict.seconds is None else round(verdict.seconds, 2),
        "failed": verdict.failed,
        "found": [
            {
                "kind": expected.kind,
                "place": expected.place,
                "where": finding.where.label(),
                "confidence": finding.confidence,
                "bytes": finding.bytes,
                "bytes_expected": expected.bytes,
                "flops": finding.figure("flops_too_many"),
                "flops_expected": expected.flops,
                "toll_ns": finding.toll_ns,
                "toll_ns_expected": expected.toll_ns,
            }
            for expected, finding in verdict.found
        ],
        "missing": [
            {"kind": missing.expected.kind, "place": missing.expected.place, "why": missing.why}
            for missing in verdict.missing
        ],
        "problems": problems(verdict),
    }


def _rows(table: Table, verdict: Verdict) -> None:
    wanted = verdict.wanted
    seconds = "" if verdict.seconds is None else f"{verdict.seconds:.1f}"
    rows: list[tuple[Text, str]] = []
    for expected, finding in verdict.found:
        what = Text(expected.kind, style="green").append(f"\n{clean(finding.where.label())}", style="dim")
        rows.append((what, _size(expected, finding)))
    for missing in verdict.missing:
        what = Text(f"missed: {missing.expected.kind}", style="red")
        rows.append((what.append(f"\n{missing.expected.place}", style="dim"), ""))
    if not wanted.expected:
        rows.append((Text("did not run", style="red") if verdict.failed else _clean(verdict), ""))
    for number, (what, size) in enumerate(rows):
        twin = _twin(verdict) if number == 0 else Text()
        table.add_row(wanted.name if number == 0 else "", what, size, twin, seconds if number == 0 else "")


def _clean(verdict: Verdict) -> Text:
    if verdict.alarms:
        return Text(human.plural(len(verdict.alarms), "false alarm"), style="red")
    return Text("clean", style="green")


def _twin(verdict: Verdict) -> Text:
    if verdict.failed or not verdict.wanted.expected:
        return Text("-" if verdict.failed is None else "did not run", style="dim")
    dirty = len(verdict.still) + sum(alarm.variant == "mended" for alarm in verdict.alarms)
    return Text("not clean", style="red") if dirty else Text("clean", style="green")


def _size(expected: Expected, finding: Finding) -> str:
    """Return each size that was expected, seen against expected."""
    parts = []
    if expected.bytes is not None:
        parts.append(f"{human.size(finding.bytes)} / {human.size(expected.bytes)}")
    if expected.flops is not None:
        parts.append(f"{human.work(finding.figure('flops_too_many'))} / {human.work(expected.flops)}")
    if expected.toll_ns is not None:
        least, most = (human.duration(bound) for bound in expected.toll_ns)
        parts.append(f"{human.duration(finding.toll_ns)} / {least} to {most}")
    return ", ".join(parts) or "-"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
