"""Whether a finding says what to do: a sentence, and Python that parses."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from shardtoll.ledger import Finding

NO_CODE = "trust"
"""The family whose findings speak of the record itself: what to do then is to record again, or nothing."""


def check_code(finding: Finding) -> None:
    """Fail if a remedy begins in lower case, or has no code, or code that is no Python."""
    if finding.remedy is not None:
        assert not finding.remedy.text[:1].islower(), f"no sentence: {finding.remedy.text}"
    if finding.family == NO_CODE:
        return
    assert finding.remedy is not None, f"{finding.kind} has no remedy"
    assert finding.remedy.code, f"the remedy of {finding.kind} has no code: {finding.remedy.text}"
    try:
        assert ast.parse(finding.remedy.code).body, f"only comments: {finding.remedy.code}"
    except SyntaxError as error:
        raise AssertionError(f"the code of {finding.kind} is no Python: {finding.remedy.code}") from error


def checked(find: Callable[..., Iterable[Finding]]) -> Callable[..., list[Finding]]:
    """Return the analysis with its findings' code looked at."""

    def found(*arguments: Any) -> list[Finding]:
        findings = list(find(*arguments))
        for finding in findings:
            check_code(finding)
        return findings

    return found
