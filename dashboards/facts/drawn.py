"""The parts of a step as bars draw them: waiting for other ranks apart from moving data."""

from __future__ import annotations

from collections.abc import Sequence
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
"""The word beside a bar and the words in the legend. Exposed communication is three parts: the one of its own
name holds collectives whose waiting is unknown."""

REST: Final = ("other exposed comm", "exposed comm, waiting or moving")
"""The words for exposed communication of unknown waiting, beside waiting or moving that is known."""

EXPOSED: Final = 3
IDLE: Final = 5
UNATTRIBUTED: Final = 6
"""Places in `DRAWN`."""


def words(place: int, *, split: bool) -> tuple[str, str]:
    """Return the word beside a bar and the words in the legend; `split`: waiting or moving is drawn too."""
    return REST if split and place == EXPOSED else DRAWN[place]


def drawn_ns(time: RankTime) -> tuple[float | None, ...]:
    """Return the step in the parts of `DRAWN`; they add up to the same as its `parts_ns`."""
    compute, exposed, copies, idle, unattributed = time.parts_ns
    return (compute, *_split(time, exposed), copies, idle, unattributed)


def _split(time: RankTime, exposed: float | None) -> Sequence[float | None]:
    if exposed is None:
        return (None, None, None)
    waiting = min(exposed, time.waiting_ns or 0.0)
    moving = min(time.moving_ns or 0.0, exposed - waiting)
    return (waiting, moving, exposed - waiting - moving)
