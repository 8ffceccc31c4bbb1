"""The part of a report that a test looks at: a test of one kind needs no other analysis run.

`make fuzz` sets SHARDTOLL_WHOLE: then every such report is a whole one, held to the part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardtoll.analyzers import run
from shardtoll.analyzers.analyses import collectives_of, context_of, findings_of, provenance_of, steps_of
from shardtoll.analyzers.roofline import Fabric
from shardtoll.ledger import FabricInfo, Ledger, Report

WHOLE = "SHARDTOLL_WHOLE" in os.environ


def running(*kinds: str) -> Callable[..., Report]:
    """Return `analyzers.run` with only the analyses of these kinds, without headline and roofline."""

    def part(ledger: Ledger, fabric: Fabric | None = None) -> Report:
        context = context_of(ledger, fabric)
        ledger = context.ledger
        report = Report(
            run=ledger.run,
            fabric=FabricInfo(name=context.fabric.name, provenance=provenance_of(context)),
            groups=(*ledger.groups, *context.matches.undescribed),
            tables={**ledger.tables, "collectives": collectives_of(context), "steps": steps_of(context)},
            findings=tuple(each for each in findings_of(context, kinds) if each.kind in kinds),
        )
        if not WHOLE:
            return report
        whole = run(ledger, fabric)
        assert _said(report, kinds) == _said(whole, kinds)
        return replace(whole, findings=report.findings)

    return part


def _said(report: Report, kinds: tuple[str, ...]) -> Any:
    findings = [each for each in report.findings if each.kind in kinds]
    return findings, report.fabric, report.groups, report.tables["collectives"]
