"""Savings of findings, by replay: a prediction with a band replaces the upper bound if it is proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.record_graph import short_record
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.whatif.edits.remedies import BOUND, edit_of
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.ledger import Figure, Finding, ranked

MOST_EDITS: Final = 24
"""Findings of a bill that are replayed, the first ones."""

LEAST_STEPS: Final = 2
CONTRADICTS: Final = 1.05
"""How many times the bound a replay saves at least, if it contradicts the bill: it is exact to 1.5 %."""
PROVEN: Final = frozenset(("straggler", "data-stall", "host-sync", "transfer-stall"))
"""Kinds with a saving whose edit gave the step without the cause to 1.5 % on made-up traces:
`benchmarks/replay_accuracy.py planted` and `asked`. Edits of live runs, whose steps are points, are not
proven yet. (`benchmarks/replays/replay_live.py`: median error 2.1 %, 16 of 16 bands held, once, on a busy
machine.)"""


@once
def replayer(context: Context) -> Replayer | None:
    """Return the report's replayer; None if nothing can be replayed."""
    recorded = short_record(context)
    return None if recorded is None else Replayer(context, recorded)


def predicted(made: Replayer, context: Context, finding: Finding) -> Finding:
    """Return the finding with what its remedy saves by replay; as it is if none is proven."""
    proven = _is_proven(made, context) and finding.kind in PROVEN
    if not proven or finding.saving_ns is None or not finding.toll_ns:
        return finding
    edit = edit_of(context, finding)
    if edit is None:
        return finding
    saved = made.saved([edit])
    if saved.low_ns > CONTRADICTS * finding.saving_ns:
        # Replay and bill contradict each other: neither is proven, and the bound is the careful one.
        return finding
    mid, low, high = saved.at_most(finding.saving_ns)
    bound = Figure(BOUND, finding.saving_ns, "ns")
    return replace(
        finding,
        saving_ns=mid,
        saving_low_ns=low,
        saving_high_ns=high,
        replayed=edit.label,
        figures=(*finding.figures, bound),
    )


def _is_proven(made: Replayer, context: Context) -> bool:
    """Whether the record is of the sort that predictions were held to: traces of steps by all ranks.

    One step alone is none: when its recording began, ranks had run ahead by what nothing shows. Nor are some
    of the ranks: whom the others waited for may be missing.
    """
    run = context.ledger.run
    return (
        made.recorded.source == "events"
        and len(made.recorded.steps) >= LEAST_STEPS
        and len(run.ranks_seen) == run.world_size
    )


def with_savings(context: Context, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the bill with predicted savings, ranked anew by them; as it is if nothing can be replayed."""
    with_toll = [number for number, finding in enumerate(findings) if finding.toll_ns][:MOST_EDITS]
    made = replayer(context) if with_toll else None
    if made is None:
        return tuple(findings)
    filled = list(findings)
    for number in with_toll:
        filled[number] = predicted(made, context, findings[number])
    return ranked(filled)
