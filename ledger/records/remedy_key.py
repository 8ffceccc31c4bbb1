"""Which findings have one remedy, whatever places and numbers it names: renderers show them in one row."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from shardtoll.ledger.records.finding import Finding

_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?: ?(?:[kMGT]?B|ns|µs|ms|s|%)\b)?")


def with_keys(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, each remedy with its key: reports of before have none."""
    return [
        finding
        if finding.remedy is None or finding.remedy.key is not None
        else replace(finding, remedy=replace(finding.remedy, key=key(finding, finding.remedy.text)))
        for finding in findings
    ]


def key(finding: Finding, text: str) -> str:
    """Return `exposed-communication:5e0c71aa`: the kind, and its remedy without names and numbers."""
    where = finding.where
    for name in (where.parameter, where.module, where.source):
        text = text.replace(f"`{name}`", "`").replace(name, "") if name else text
    return f"{finding.kind}:{zlib.crc32(_NUMBER.sub('', text).encode()):08x}"
