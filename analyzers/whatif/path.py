"""The critical path of a simulated job: from its last instant back to the first, along what held each up."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.ledger.answers.what_if import Path, PathPart
from shardtoll.ledger.records.record import PHASES

MOST_PARTS: Final = 40
"""The last of them holds all that are smaller."""

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

# Plain numbers: a path has thousands of nodes, and to look up a member of an enum takes as long as the rest.
_WORD: Final = {int(kind): word for kind, word in WORDS.items()}
_UNEXPLAINED: Final = int(Kind.GAP)
_HOST: Final = frozenset(map(int, (Kind.HOST, Kind.SYNC, Kind.DATA)))

SMALL: Final[_Key] = ("several", "smaller parts", "other")
HELD: Final[_Key] = ("gap", "beyond what the findings cost", "other")


def critical_path(
    recorded: Recorded, outcome: Outcome, rank: int, step_ns: float, *, step_factor: float = 1.0
) -> Path:
    """Return the path of the slowest rank's steps, its parts by what and where, the longest first.

    It fills the time of that rank's steps from their last instant to the first, whoever held it up. So its
    length is that of the step, `step_ns` on the scale of the report. If the step is longer than its replay
    (`Draft.step_factor`), as findings save no more than they cost, the difference is a separate part.
    """
    made = _Walk(recorded, outcome)
    for first_ns, last_ns, node in recorded.spans_ns(outcome, rank):
        made.back(first_ns, last_ns, node)
    sums = made.sums
    total = sum(sums.values())
    if step_factor > 1 and total:
        sums[HELD] = total * (step_factor - 1)
        made.ranks[HELD] = {rank}
        total *= step_factor
    parts = sorted(sums, key=lambda key: -sums[key])
    if len(parts) > MOST_PARTS:
        small, parts = parts[MOST_PARTS - 1 :], [*parts[: MOST_PARTS - 1], SMALL]
        sums[SMALL] = sum(sums[key] for key in small)
        made.ranks[SMALL] = set().union(*(made.ranks[key] for key in small))
    return Path(
        step_ns=round(step_ns),
        parts=tuple(
            PathPart(
                *key,
                round(step_ns * sums[key] / total),
                float(sums[key] / total),  # times come out of arrays: a numpy number is no JSON
                tuple(sorted(made.ranks[key])),
            )
            for key in parts
            if total and sums[key] > 0
        ),
        unknown_share=float(min(1.0, made.unknown_ns / total)) if total else 0.0,
        hops=round(made.hops / max(1, len(recorded.steps))),
    )


class _Walk:
    """From the last instant of steps back to the first, along what held each node up."""

    def __init__(self, recorded: Recorded, outcome: Outcome) -> None:
        self.recorded = recorded
        self.outcome = outcome
        self.sums: defaultdict[_Key, float] = defaultdict(float)
        self.ranks: defaultdict[_Key, set[int]] = defaultdict(set)
        self.hops = 0
        self.unknown_ns = 0.0

    def back(self, first_ns: float, now_ns: float, node: int) -> None:
        """Add what the time between these instants consists of; `node` ends at the later one."""
        recorded, outcome = self.recorded, self.outcome
        kind, rank = recorded.graph.kind, recorded.graph.rank
        while node >= 0 and now_ns > first_ns:
            begin_ns = min(now_ns, max(first_ns, float(outcome.start_ns[node])))
            self._add(_key(recorded, node), node, now_ns - begin_ns, unknown=kind[node] == _UNEXPLAINED)
            last = int(outcome.last[node])
            before = int(outcome.held_by[last])
            self.hops += int(rank[last] != rank[node]) + int(before >= 0 and rank[before] != rank[last])
            ended_ns = first_ns if before < 0 else float(outcome.end_ns[before])
            now_ns = min(begin_ns, max(first_ns, ended_ns))
            unknown = before >= 0 and bool(recorded.unknown_ns[last] > 0)
            self._add(self._gap(last, unknown, begins=before < 0), last, begin_ns - now_ns, unknown=unknown)
            node = before

    def _gap(self, node: int, unknown: bool, begins: bool) -> _Key:
        recorded = self.recorded
        phase = PHASES[int(recorded.phase[node])]
        if begins:
            return "gap", "before the rank's first work", phase
        if recorded.graph.kind[node] in _HOST:
            return "host", "between launches", phase
        return "unexplained" if unknown else "gap", "before " + recorded.names[recorded.name[node]], phase

    def _add(self, key: _Key, node: int, lasted_ns: float, *, unknown: bool) -> None:
        if lasted_ns > 0:
            self.sums[key] += lasted_ns
            self.ranks[key].add(self.recorded.ranks[int(self.recorded.graph.rank[node])])
            self.unknown_ns += lasted_ns if unknown else 0.0


def _key(recorded: Recorded, node: int) -> _Key:
    return (
        _WORD[int(recorded.graph.kind[node])],
        recorded.names[recorded.name[node]],
        PHASES[int(recorded.phase[node])],
    )
