"""The parts of a step as bars draw them: waiting for other ranks apart from moving data."""

from __future__ import annotations

from typing import Final

from shardtoll.dashboards.facts.step_times import RankTime

DRAWN: Final = (
    ("compute", "compute"),
    ("waiting", "waiting for ranks"),
    ("moving data", "moving data"),
    ("exposed comm", "exposed comm"),
    ("exposed copies", "exposed copies"),
    ("idle", "idle"),
    ("unattributed", "unattributed"),
)
"""The word at a bar and the words in the legend. Exposed communication is three parts: the one of its own
name holds collectives whose waiting is unknown."""

REST: Final = ("other exposed comm", "exposed comm, waiting or moving")
"""The words for exposed communication of unknown waiting, if waiting or moving is drawn too."""

EXPOSED: Final = 3
IDLE: Final = 5
UNATTRIBUTED: Final = 6
"""Places in `DRAWN`."""


def words(place: int, *, split: bool) -> tuple[str, str]:
    """Return the word at a bar and the words in the legend; `split`: waiting or moving is drawn too."""
    return REST if split and place == EXPOSED else DRAWN[place]


def drawn_ns(time: RankTime) -> tuple[float | None, ...]:
    """Return the step in the parts of `DRAWN`; they add up to its total if all are known.

    Exposed communication is one part if its division is unknown.
    """
    compute, exposed, copies, idle, unattributed = time.parts_ns
    divided = (time.waiting_ns, time.moving_ns, time.unsplit_ns)
    if exposed is None:
        divided = (None, None, None)
    elif None in divided:
        divided = (0.0, 0.0, exposed)
    return (compute, *divided, copies, idle, unattributed)
