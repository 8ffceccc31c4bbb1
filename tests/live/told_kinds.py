"""What the records of a sample say of themselves: a fifth of the time of a report of everything.

All analyses look at all samples in test_incidents_strategies.
"""

from __future__ import annotations

from shardtoll.analyzers import implicit_redistribute, incomplete_input, unmatched_collectives
from shardtoll.analyzers.context import make_context
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.ledger import Ledger

_FIND = (unmatched_collectives.find, incomplete_input.find, implicit_redistribute.find)


def kinds_of(ledger: Ledger) -> list[str]:
    """Return the kinds of findings about the records' completeness, and of implicit redistributions."""
    context = make_context(ledger, choose_fabric(ledger.run))
    return sorted({finding.kind for find in _FIND for finding in find(context)})
