"""A report whose step falls fix by fix: every number is chosen."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.ledger import Finding, Report
from shardtoll.ledger.answers.what_if import Change, Foreseen, Parts, Path
from tests import sample_reports

MS = 1_000_000


def finding(kind: str, toll_ns: int | None) -> Finding:
    return Finding(kind, "warning", "x", toll_ns, None, None, None, 1, (1,))


def change(number: int, kind: str, saving_ms: int, step_ms: int) -> Change:
    low, high = saving_ms - 1, saving_ms + 1
    step_ns = step_ms * MS
    return Change(
        "<b>gone</b>", number, kind, "a title", 9 * MS, saving_ms * MS, low * MS, high * MS, step_ns
    )


def report(**changed: object) -> Report:
    """30 ms today; the first fix takes 10 off, the second adds 2, the third is not replayed."""
    changes = (change(1, "straggler", 10, 20), change(2, "recompute", -2, 22))
    parts = Parts(30 * MS, 10 * MS, 10 * MS, 0, 10 * MS)
    seen = Foreseen("points", (1, 2), 77, 0.001, 0.0, parts, changes, 12 * MS, Path(30 * MS, (), 0.0, 0))
    findings = (
        finding("straggler", 9 * MS),
        finding("recompute", 9 * MS),
        finding("hang", 9 * MS),
        finding("wrong-gradient", None),
    )
    return replace(sample_reports.report(findings=findings), foreseen=replace(seen, **changed))  # type: ignore[arg-type]
