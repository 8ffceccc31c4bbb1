"""Each rank's exposed communication split into waiting for late ranks and moving bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardtoll.dashboards.step_times import PARTS, RankTime, told_rows
from shardtoll.ledger import Report
from shardtoll.ledger.levels import in_steps, surveyed_steps, watched_steps
from shardtoll.ledger.tables import to_frame

EXPOSED = [name for name, _ in PARTS].index("exposed_comm_ns")


@dataclass(frozen=True, slots=True)
class ExposedParts:
    """A rank's mean step in ns; the three add up to its exposed communication."""

    waiting_ns: float
    """What is exposed beyond the transfer, as `exposed-communication` and `straggler` count it."""
    moving_ns: float
    unsplit_ns: float
    """Of collectives whose wait is unknown, or on no record."""


def exposed_parts(report: Report, times: Sequence[RankTime]) -> list[ExposedParts | None]:
    """Return the parts of each of these mean steps, folded ones too; None where exposed time is unknown."""
    steps = report.tables["steps"]
    surveyed, watched = surveyed_steps(steps), watched_steps(steps)
    in_survey = _sums(report, surveyed)
    in_watch = _sums(report, watched)
    counts = {
        "survey": Counter(in_steps(steps, surveyed).column("rank").to_pylist()),
        "watch": Counter(told_rows(report).column("rank").to_pylist()),
    }
    found: list[ExposedParts | None] = []
    for time in times:
        exposed = time.parts_ns[EXPOSED]
        if exposed is None:
            found.append(None)
            continue
        waiting = moving = 0.0
        for rank in time.ranks:
            # As `rank_times`: the surveyed steps, and the watched ones of a rank that has no others.
            kind, sums = ("survey", in_survey) if rank in counts["survey"] else ("watch", in_watch)
            waited, moved = sums.get(rank, (0, 0))
            waiting += waited / counts[kind][rank] / len(time.ranks)
            moving += moved / counts[kind][rank] / len(time.ranks)
        # Shares of collectives that overlap may add up to more than the step was exposed.
        scale = min(1.0, exposed / (waiting + moving)) if waiting + moving > 0 else 1.0
        parts = ExposedParts(waiting * scale, moving * scale, 0.0)
        found.append(replace(parts, unsplit_ns=max(0.0, exposed - parts.waiting_ns - parts.moving_ns)))
    return found


def _sums(report: Report, steps: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return rank -> exposed waiting and moving over all these steps, of collectives that tell both."""
    table = report.tables["collectives"].select(["step", "rank", "exposed_ns", "transfer_ns"])
    frame = to_frame(in_steps(table, tuple(steps))).dropna()
    exposed = frame["exposed_ns"].to_numpy(dtype=np.int64)
    waited = np.maximum(exposed - frame["transfer_ns"].to_numpy(dtype=np.int64), 0)
    by_rank = frame.assign(waited=waited, moved=exposed - waited).groupby("rank")[["waited", "moved"]].sum()
    return {int(rank): (int(row["waited"]), int(row["moved"])) for rank, row in by_rank.iterrows()}
