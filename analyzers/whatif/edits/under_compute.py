"""Cost of communication and compute to each other once an edit lets them overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.contention import LLM_FOUNDRY, overlap_ns
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit

Floats = npt.NDArray[np.float64]

_ON_GPUS: Final = (
    f"Communication that moves under compute: each takes longer by {LLM_FOUNDRY:g} of the time in which "
    "they overlap. This fits the FSDP step times that MosaicML published for A100 and H100. The band "
    "reaches from none of it to twice as much."
)
_ON_CPUS: Final = (
    "On CPUs the cost of communication under compute is not known: nothing is counted, so the saving is an "
    "upper bound."
)


def cost(context: Context, end: float) -> float:
    """Return the share of an overlap by which each side takes longer, at this end of its band.

    The factor is fitted, and nobody has published its spread: the ends are none of it and twice as much.
    """
    return 0.0 if context.ledger.run.device == "cpu" else LLM_FOUNDRY * (1 - end)


def note(context: Context) -> str:
    """Return what is assumed, and by whose figures."""
    return _ON_CPUS if context.ledger.run.device == "cpu" else _ON_GPUS


def added_ns(recorded: Recorded, before: Outcome, edits: Sequence[Edit], end: float) -> Floats:
    """Return how much longer each node overlaps the other sort of work by these edits alone; [n].

    Overlap on record is in the recorded times already.
    """
    draft = Draft(recorded)
    for edit in edits:
        edit.apply(draft, end)
    after = overlap_ns(recorded.graph, draft.outcome())
    added: Floats = np.maximum(0.0, after - overlap_ns(recorded.graph, before))
    return added


def slow_down(draft: Draft, added: Floats, share: float) -> None:
    """Let nodes take longer by this share of their added overlap.

    Communication that another edit shortens or takes out costs the compute of its rank and step so much less.
    So an edit that shortens work never adds to what the overlap costs.
    """
    recorded = draft.recorded
    plain = Draft(recorded).duration
    left = np.where(plain > 0, np.minimum(1.0, draft.duration / np.where(plain > 0, plain, 1.0)), 0.0)
    collective = recorded.of_kinds((Kind.COLLECTIVE,))
    place, size = recorded.rank_steps()
    moved = np.bincount(place[collective], added[collective], minlength=size)
    stays = np.bincount(place[collective], (added * left)[collective], minlength=size)
    factor = np.where(collective, 1.0, (stays / np.where(moved > 0, moved, 1.0))[place])
    draft.duration *= 1 + share * factor * added / np.where(plain > 0, plain, np.inf)
