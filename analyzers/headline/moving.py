"""The part of the headline that judges moving data, if that costs more than waiting for late ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.headline.advice import first_of
from shardtoll.ledger import KINDS, Finding
from shardtoll.ledger.records.finding import HIDING

SLOW_FACTOR: Final = 2.0
"""Transfers that take this many times what is expected are slow."""

LARGE_SHARE: Final = 0.2
"""Share of all ranks' steps below which most of a step is something else: no network is then its fault."""

TURNS_SHARE: Final = 0.05
"""Share of all ranks' steps from which waiting is worth the word that ranks are late by turns."""

UNHIDDEN: Final = "Moving data that nothing hides costs"

HEADS: Final = {
    "implicit-redistribute": "DTensor's implicit collectives cost",
    "redundant-collective": "Redundant communication costs",
    "sync-every-microbatch": "Reducing gradients on every micro-batch costs",
    "gathered-logits": "Gathering logits costs",
    "latency-bound": "Many small messages cost",
    "needless-barrier": "A needless barrier costs",
    "constant-buffers": "Broadcasts of constant buffers cost",
}
"""Kind of the most expensive finding -> what costs most, if no rank is late and the network not slow."""

WAITING: Final = ("straggler", "expert-imbalance")
"""Kinds of findings on communication that bill waiting, not moving data."""
MOVING: Final = tuple(
    kind for kind, family in KINDS.items() if family == "communication" and kind not in WAITING
)
"""Kinds of findings that bill the moving of data."""
SLOW: Final = ("below-roofline",)
"""Kinds that say how transfers compare with what is expected of the fabric."""


def most_expensive(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding the bill names first for its cost; None if none has a toll."""
    return next((finding for finding in findings if finding.toll_ns), None)


def clause(
    context: Context, share: float, factor: float | None, findings: Sequence[Finding], waiting: float = 0.0
) -> tuple[str, tuple[str, ...]]:
    """Return what is at fault as far as evidence goes, and the kinds of the findings that bill it.

    `share`: exposed communication as a share of the steps. `factor`: transfers over the expected time, None
    if unknown. `waiting`: share of the steps in which ranks wait for each other.
    """
    first = most_expensive(findings)
    if first is not None and first.kind == "straggler":
        return "Late ranks, no single one, and moving data both cost time", ("straggler",)
    if factor is None:
        return "Moving data costs most, not late ranks", MOVING
    if factor < SLOW_FACTOR:
        head = HEADS.get(first.kind) if first is not None else None
        kinds = MOVING if first is None or head is None else (first.kind,)
        return f"{head or UNHIDDEN} most, not a late rank or a slow network", kinds
    if first is not None and first.kind in HEADS and share >= LARGE_SHARE:
        # Needless messages cost on a fast network too.
        return f"{HEADS[first.kind]} time, and transfers are slow too", (first.kind,)
    # A rank that is late, perhaps by chance, stands on the bill and by the bars.
    late = any(finding.kind == "straggler" and len(finding.ranks) == 1 for finding in findings)
    if late or share < LARGE_SHARE:
        return _slow(context, share), SLOW
    # If ranks wait for each other by turns, some rank is late each time.
    single = "no rank" if waiting < TURNS_SHARE else "no single rank"
    return f"{_slow(context, share)}, and {single} is late", SLOW


def _slow(context: Context, share: float) -> str:
    """Return what is slow, as far as that is known."""
    if share < LARGE_SHARE:
        return "Communication is slow, but a small part of the step"
    if not context.on_cpu:
        return "The network is slow"
    run = context.ledger.run
    hosts = len(set(run.hosts))
    if hosts == 1 or run.ranks_per_host == run.world_size:
        # One host has no network between its ranks.
        return "Transfers on this host are slow"
    return "Transfers are slow (the network, or CPU cores that ranks share)"


def advised(findings: Sequence[Finding], kinds: tuple[str, ...]) -> tuple[int | None, str]:
    """Return the place of the finding that says what to do, and to what purpose if it is of another kind.

    Slow transfers often have no finding of their own: sending less, or hiding it, is the fix then.
    """
    place = first_of(findings, kinds)
    if place is not None or kinds != SLOW:
        return place, ""
    place = first_of(findings, MOVING)
    if place is None:
        return None, ""
    return place, "to cut their time, " if findings[place].kind in HIDING else "to send less, "
