"""The sentences of the headline if ranks wait for each other because they share CPU cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import Crowded
from shardtoll.analyzers.headline.moving import HEADS
from shardtoll.ledger import Finding
from shardtoll.ledger.words.human import plural

WORTH_NAMING: Final = 0.05
"""Toll of a warning, as a share of exposed communication, from which it is named after shared cores."""
MOST_OF_EXPOSED: Final = 0.5
"""Part of the exposed communication from which the tolls of a kind are said before the sharing of cores."""


def both(shared: Crowded) -> str:
    """Return that the ranks share cores."""
    return f"{shared.ranks} ranks share {plural(shared.cores, 'CPU core')} and delay each other"


def sentence(
    context: Context, shared: Crowded, brief: str, more: tuple[str, ...], findings: Sequence[Finding]
) -> tuple[str, tuple[str, ...]]:
    """Return the sentence, and what may follow it as far as there is room.

    `brief`: how much waiting takes; `more`: how much moving data does. Tolls hold waiting that
    ends with the sharing of cores. A kind comes first if its tolls are at least `MOST_OF_EXPOSED` of what is
    exposed on the worst rank.
    """
    warned = [
        number
        for number, each in enumerate(findings, 1)
        if each.severity == "warning" and each.toll_ns and each.saving_ns != 0
    ]
    exposed = float(context.told_rows.groupby("rank")["exposed_comm_ns"].mean().max())
    if warned:
        kind = findings[warned[0] - 1].kind
        tolls = sum(
            findings[number - 1].toll_ns or 0 for number in warned if findings[number - 1].kind == kind
        )
        if kind in HEADS and tolls >= MOST_OF_EXPOSED * exposed:
            head = f"{HEADS[kind]} most: {brief}{''.join(more)}; start with finding {warned[0]}"
            return f"{head}. Also, {both(shared)}", ()
    worth = [number for number in warned if (findings[number - 1].toll_ns or 0) >= WORTH_NAMING * exposed]
    then = f", then see finding {worth[0]} ({findings[worth[0] - 1].kind})" if worth else ""
    return f"The network is not at fault: {both(shared)}; {brief}", (*more, f"; give each rank a core{then}")
