"""One finding whole: what happens, where, what it costs, what to change, and how it was measured."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardtoll.dashboards.terminal.terminal_bill import INDENT, block
from shardtoll.dashboards.words.kind_words import WORDS
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Evidence, Report
from shardtoll.ledger.words import human

_LABEL: Final = 200
_VALUE: Final = 600


def one_finding(report: Report, number: int) -> RenderableType:
    """Return finding `number` of the report, counted from 1."""
    finding = report.findings[number - 1]
    meaning = WORDS.get(finding.kind)
    parts: list[RenderableType] = [*block(number, finding, report.run)]
    if meaning is not None:
        parts += [Text(), Text(f"{finding.kind}: {meaning}", style="dim")]
    if finding.evidence:
        parts += [Text(), Text("how it was measured", style="bold")]
        parts += [
            Padding(Text(f"{clip(item.label, _LABEL)}: {_value(item)}"), INDENT, expand=False)
            for item in finding.evidence
        ]
    return Group(*parts)


def _value(item: Evidence) -> str:
    return clip(human.quantity(item.value, item.unit), _VALUE)
