"""The part of the headline that says that ranks train on equal batches, and repeat each other's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.ledger import Finding

KIND: Final = "duplicated-data"


def clause(findings: Sequence[Finding]) -> tuple[str, tuple[str, ...]] | None:
    """Return who trains on equal batches, and the kind of the finding; None if no check has shown it.

    It leads whatever else costs time: a faster step would only repeat the same samples sooner.
    """
    shown = (finding for finding in findings if finding.kind == KIND and finding.severity == "warning")
    first = next((finding for finding in shown if finding.confidence == "certain"), None)
    if first is None:
        return None
    return f"{first.title[0].upper()}{first.title[1:]}", (KIND,)
