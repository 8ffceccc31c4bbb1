"""The critical path of a simulated job: from its last instant back to the first, along what held each up."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.event_graph import Kind
from shardtoll.analyzers.replay.outcome import Outcome
from shardtoll.ledger.answers.what_if import Path, PathPart
from shardtoll.ledger.records.record import PHASES

MOST_PARTS: Final = 40

WORDS: Final = {
    Kind.POINT: "gap",
    Kind.HOST: "host",
    Kind.COMPUTE: "compute",
    Kind.COLLECTIVE: "collective",
    Kind.COPY: "copy",
    Kind.GAP: "unexplained",
    Kind.DATA: "data",
    Kind.OPTIMIZER: "optimizer",
    Kind.SYNC: "host-sync",
    Kind.CHECKPOINT: "checkpoint",
    Kind.CAPTURE: "capture",
}

_Key = tuple[str, str, str]


def critical_path(recorded: Recorded, outcome: Outcome, anchor: float = 1.0) -> Path:
    """Return the path, its parts by what and where, the longest first; `anchor`: see `Replayer`."""
    sums: defaultdict[_Key, float] = defaultdict(float)
    ranks: defaultdict[_Key, set[int]] = defaultdict(set)
    hops = 0
    unknown = 0.0
    for end in _ends(recorded, outcome):
        node = end
        while node >= 0:
            lasted = float(outcome.end_ns[node] - outcome.start_ns[node])
            _add(recorded, sums, ranks, _key(recorded, node), node, lasted)
            if recorded.graph.kind[node] == Kind.GAP:
                unknown += lasted
            last = int(outcome.last[node])
            hops += int(recorded.graph.rank[last] != recorded.graph.rank[node])
            before = int(outcome.held_by[last])
            gap = float(outcome.arrival_ns[last] - (outcome.end_ns[before] if before >= 0 else 0.0))
            if before >= 0 and gap > 0:
                explained = recorded.unknown_ns[last] <= 0
                on_host = recorded.graph.kind[last] in (Kind.HOST, Kind.SYNC, Kind.DATA)
                what = "host" if on_host else "gap" if explained else "unexplained"
                unknown += 0.0 if explained else gap
                name = "between launches" if on_host else "before " + recorded.names[recorded.name[last]]
                _add(recorded, sums, ranks, (what, name, PHASES[int(recorded.phase[last])]), last, gap)
            hops += int(before >= 0 and recorded.graph.rank[before] != recorded.graph.rank[last])
            node = before
    total = sum(sums.values())
    count = max(1, len(recorded.steps)) / anchor
    parts = sorted(sums, key=lambda key: -sums[key])[:MOST_PARTS]
    return Path(
        step_ns=round(total / count),
        parts=tuple(
            PathPart(*key, round(sums[key] / count), sums[key] / total, tuple(sorted(ranks[key])))
            for key in parts
            if total and sums[key] > 0
        ),
        unknown_share=min(1.0, unknown / total) if total else 0.0,
        hops=round(hops / max(1, len(recorded.steps))),
    )


def _ends(recorded: Recorded, outcome: Outcome) -> list[int]:
    """Return where paths end: the job's last node, or that of each step that begins anew."""
    if not len(recorded.graph):
        return []
    if recorded.source == "events":
        inside = np.flatnonzero(recorded.step >= 0)
        return [int(inside[np.argmax(outcome.end_ns[inside])])]
    ends = []
    for step in recorded.steps:
        here = np.flatnonzero(recorded.step == step)
        ends.append(int(here[np.argmax(outcome.end_ns[here])]))
    return ends


def _key(recorded: Recorded, node: int) -> _Key:
    kind = Kind(int(recorded.graph.kind[node]))
    return WORDS[kind], recorded.names[recorded.name[node]], PHASES[int(recorded.phase[node])]


def _add(
    recorded: Recorded,
    sums: dict[_Key, float],
    ranks: dict[_Key, set[int]],
    key: _Key,
    node: int,
    lasted: float,
) -> None:
    if lasted > 0:
        sums[key] += lasted
        ranks[key].add(recorded.ranks[int(recorded.graph.rank[node])])
