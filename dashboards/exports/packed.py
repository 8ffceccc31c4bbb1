"""Spans of time laid into lanes, so that none overlaps another in its own."""

from __future__ import annotations

import heapq

import numpy as np

from shardtoll.dashboards.facts.row_codes import Ints


def packed(start: Ints, end: Ints) -> Ints:
    """Return each span's lane, from 0; spans stand by start. As few lanes as overlap at one instant.

    Spans that touch do not overlap. A span without length counts as one unit long, so that two of them at one
    instant lie side by side.
    """
    end = np.maximum(end, start + 1)
    lane_of = np.zeros(len(start), dtype=np.int64)
    if len(start) < 2 or bool(np.all(start[1:] >= np.maximum.accumulate(end)[:-1])):
        return lane_of
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    made = 0
    for number, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, made = made, made + 1
        lane_of[number] = lane
        heapq.heappush(busy, (until, lane))
    return lane_of
