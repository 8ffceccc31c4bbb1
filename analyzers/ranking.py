"""The order of the bill."""

from __future__ import annotations

from collections.abc import Iterable

from shardtoll.ledger import Finding


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return errors first, then by toll, dearest first; unknown tolls after known; else as they came."""
    return tuple(
        sorted(
            findings,
            key=lambda f: (f.severity != "error", f.toll_ns is None, 0 if f.toll_ns is None else -f.toll_ns),
        )
    )
