"""Matches collectives between, before and after those that end times matched, by their order.

Ranks issue a group's collectives in one order. Between two matched collectives, the others match one by one
if each rank has as many, and of the same kinds. Before the first and after the last matched one they are so
for as long as kinds agree.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.match import OVERLAP_NS
from shardtoll.analyzers.context.peers import SYNCHRONISING
from shardtoll.ledger import Run

Ints = npt.NDArray[np.int64]

LEAST_ANCHORS: Final = 2
"""Matched collectives of a group from which order is trusted: one may have ended together by chance."""


def completed(run: Run, frame: pd.DataFrame, rows: pd.DataFrame, start_ns: Ints) -> list[list[int]]:
    """Return the collectives that order adds, each as its rows on all seen ranks of its group.

    `rows` has group_id, match_id and open of each of the frame's rows; `start_ns` is on one clock.
    """
    seen = set(run.ranks_seen)
    fit = (rows["open"] | rows["match_id"].notna()) & rows["group_id"].notna()
    group_of = rows["group_id"].to_numpy(dtype=np.int64, na_value=-1)
    match_of = rows["match_id"].to_numpy(dtype=np.int64, na_value=-1)
    rank_of = frame["rank"].to_numpy(dtype=np.int64)
    facts = ["op", "dtype", "message_bytes"]
    kind_of = frame.groupby(facts, sort=False, dropna=False).ngroup().to_numpy(dtype=np.int64)
    length = frame["duration_ns"].to_numpy(dtype=np.int64, na_value=-1)
    asked = frame["issue_ns"].fillna(frame["start_ns"]).to_numpy(dtype=np.int64, na_value=0)
    synchronising = frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool) & (length >= 0)
    places = np.flatnonzero(fit.to_numpy(dtype=bool) & synchronising)
    added: list[list[int]] = []
    for group in np.unique(group_of[places[rows["open"].to_numpy(dtype=bool)[places]]]):
        here = places[group_of[places] == group]
        ranks = sorted(seen.intersection(np.unique(rank_of[here]).tolist()))
        lines = []
        for rank in ranks:
            of_rank = here[rank_of[here] == rank]
            lines.append(of_rank[np.argsort(asked[of_rank], kind="stable")])
        for several in _segments(lines, match_of):
            for each in several:
                kinds = {int(kind_of[row]) for row in each}
                begin = max(int(start_ns[row]) for row in each)
                end = min(int(start_ns[row] + length[row]) for row in each)
                if len(kinds) > 1 or begin > end + OVERLAP_NS:
                    # Beyond what does not agree order says nothing.
                    break
                added.append(each)
    return added


def _segments(lines: list[Ints], match_of: Ints) -> list[list[list[int]]]:
    """Return what lies between neighbouring anchors, and before and after all of them, from the anchor on."""
    places = [{int(match_of[row]): at for at, row in enumerate(line) if match_of[row] >= 0} for line in lines]
    if len(places) < 2:
        return []
    anchors = [match for match in places[0] if all(match in place for place in places)]
    at = np.array([[place[match] for match in anchors] for place in places], dtype=np.int64)
    if len(anchors) < LEAST_ANCHORS or (np.diff(at, axis=1) <= 0).any():
        return []
    head = [line[: first[0]][::-1] for line, first in zip(lines, at, strict=True)]
    tail = [line[last[-1] + 1 :] for line, last in zip(lines, at, strict=True)]
    segments = [_in_step(head), _in_step(tail)]
    for nth in range(len(anchors) - 1):
        between = [line[each[nth] + 1 : each[nth + 1]] for line, each in zip(lines, at, strict=True)]
        if len({len(part) for part in between}) == 1:
            segments.append(_in_step(between))
    return [
        [each for each in segment if all(match_of[row] < 0 for row in each)]
        for segment in segments
        if segment
    ]


def _in_step(parts: list[Ints]) -> list[list[int]]:
    return [[int(row) for row in each] for each in zip(*parts, strict=False)]
