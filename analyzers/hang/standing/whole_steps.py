"""Which steps of a rank's record are whole: it holds the last collectives only; one step may have more."""

from __future__ import annotations

from shardtoll.ledger.records.flight import RankFlight


def cut_step(flight: RankFlight) -> int | None:
    """Return the step whose first collectives the record no longer holds; None if no step is known to be cut.

    The record gives a lower bound of each sort in such a step.
    """
    first = flight.calls[0] if flight.calls else None
    return None if first is None or first.number <= 1 else first.step
