"""An order of a step's points in which each comes after those that it depends on."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.replay.points.held_rows import fed_numbers

Ints = npt.NDArray[np.int64]

_NONE: Final = np.zeros(0, dtype=np.int64)


def in_order(
    rank: Ints,
    row: Ints,
    done: npt.NDArray[np.bool_],
    match: Ints,
    feeds: Ints,
    fed_by: Ints = _NONE,
    fed: Ints = _NONE,
) -> Ints:
    """Return the points' places in such an order. `match` and `feeds` are by row, `fed_by` and `fed` give
    further collectives that rows feed, the others are by point.

    Points come rank by rank, each rank's in its own order. A row is complete after all arrivals that feed its
    collective. Contradictory records, as of a rank that seems to wait for itself, would never go on. Then the
    first rank that waits goes on without.
    """
    rows, dones, ranks = row.tolist(), done.tolist(), rank.tolist()
    matches, numbers_of = match.tolist(), fed_numbers(feeds, fed_by, fed)
    most = max(int(match.max()), int(feeds.max()), int(fed.max(initial=-1))) if len(match) else 0
    awaited = np.bincount(np.concatenate([feeds[feeds >= 0], fed]), minlength=most + 1).tolist()
    count = int(rank.max()) + 1 if len(rank) else 0
    next_point = np.searchsorted(rank, np.arange(count)).tolist()
    end_point = np.searchsorted(rank, np.arange(count), "right").tolist()
    waiting: dict[int, list[int]] = {}
    stuck: dict[int, None] = {}
    ready = deque(range(count))
    order: list[int] = []
    while ready or stuck:
        if ready:
            here = ready.popleft()
            forced = False
        else:
            here = next(iter(stuck))
            forced = True
        stuck.pop(here, None)
        while next_point[here] < end_point[here]:
            point = next_point[here]
            number = matches[rows[point]] if rows[point] >= 0 and dones[point] else -1
            if number >= 0 and awaited[number] > 0 and not forced:
                waiting.setdefault(number, []).append(here)
                stuck[here] = None
                break
            forced = False
            order.append(point)
            next_point[here] += 1
            if rows[point] < 0 or dones[point]:
                continue
            for number in numbers_of[rows[point]]:
                awaited[number] -= 1
                if awaited[number] == 0:
                    # A rank that went on without may wait for the same collective twice.
                    free = [other for other in dict.fromkeys(waiting.pop(number, ())) if other in stuck]
                    for other in free:
                        stuck.pop(other)
                    ready.extend(free)
    assert len(order) == len(ranks), "each point comes once"
    return np.array(order, dtype=np.int64)
