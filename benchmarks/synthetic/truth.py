"""The truth of a made-up job, counted instant by instant from its simulation and from nothing else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from synthetic.rank import COMM, COMPUTE, COPY, LOOKALIKE, Work
from synthetic.spec import Spec

Key = tuple[str, ...]


@dataclass(slots=True)
class Meeting:
    """One collective: who arrived when and when all left."""

    op: str
    dtype: str
    message_bytes: int
    ranks: tuple[int, ...]
    step: int
    transfer_ns: int
    start_ns: dict[int, int] = field(default_factory=dict)
    end_ns: int = 0
    exposed_ns: dict[int, int] = field(default_factory=dict)
    exposed_wait_ns: dict[int, int] = field(default_factory=dict)


def account(work: Work, rank: int, meetings: dict[Key, Meeting]) -> list[dict[str, Any]]:
    """Return a rank's steps with their parts; writes the exposed times of its collectives."""
    steps: dict[int, dict[str, int]] = {step: defaultdict(int) for step, _, _ in work.steps}
    rows = range(len(work.start_ns))
    edges = [(work.start_ns[row], 1, row) for row in rows] + [(work.end_ns[row], 0, row) for row in rows]
    edges += [(at, 2, -1) for span in work.steps for at in span[1:]]
    edges += [(at, 2, -1) for span in work.pauses for at in span[:2]]
    exposed: dict[Key, float] = defaultdict(float)
    waited: dict[Key, float] = defaultdict(float)
    arrivals = {key: max(meetings[key].start_ns.values()) for key in set(work.key.values())}
    edges += [(at, 2, -1) for at in arrivals.values()]
    edges.sort()
    comms: dict[int, float] = defaultdict(float)
    running: list[set[int]] = [set(), set(), set(), set()]
    pauses = _apart(work)
    span_at = pause_at = 0
    before = edges[0][0] if edges else 0
    for at, what, row in edges:
        length = at - before
        if length:
            layer = next((layer for layer in (COMPUTE, COMM, LOOKALIKE, COPY) if running[layer]), None)
            if layer is None:
                while span_at < len(work.steps) and work.steps[span_at][2] <= before:
                    span_at += 1
                while pause_at < len(pauses) and pauses[pause_at][1] <= before:
                    pause_at += 1
                if span_at < len(work.steps) and work.steps[span_at][1] <= before:
                    paused = pause_at < len(pauses) and pauses[pause_at][0] <= before
                    parts = steps[work.steps[span_at][0]]
                    parts["idle_ns"] += length
                    parts[f"idle_{pauses[pause_at][2] if paused else 'host'}_ns"] += length
            elif layer == COMM:
                for comm in running[COMM]:
                    share = length / len(running[COMM])
                    exposed[work.key[comm]] += share
                    waited[work.key[comm]] += share if at <= arrivals[work.key[comm]] else 0
                    comms[work.step[comm]] += share
            else:
                name = {COMPUTE: "compute_ns", LOOKALIKE: "unattributed_ns", COPY: "exposed_copy_ns"}[layer]
                steps[min(work.step[other] for other in running[layer])][name] += length
        before = at
        if what == 1:
            running[work.layer[row]].add(row)
        elif what == 0:
            running[work.layer[row]].discard(row)
    for key, ns in exposed.items():
        meetings[key].exposed_ns[rank] = round(ns)
        meetings[key].exposed_wait_ns[rank] = round(waited[key])
    for step, share in comms.items():
        steps[step]["exposed_comm_ns"] = round(share)
    return [_step(step, rank, parts, work) for step, parts in sorted(steps.items())]


def _apart(work: Work) -> list[tuple[int, int, str]]:
    """Return the host's pauses in order; those inside a pipeline's schedule are part of its bubble."""
    schedules = [pause for pause in work.pauses if pause[2] == "bubble"]
    alone = [
        pause
        for pause in work.pauses
        if not any(start <= pause[0] and pause[1] <= end for start, end, _ in schedules)
    ]
    return sorted(schedules + alone)


def _step(step: int, rank: int, parts: dict[str, int], work: Work) -> dict[str, Any]:
    names = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "unattributed_ns", "idle_ns")
    row: dict[str, Any] = {"step": step, "rank": rank, "duration_ns": sum(parts[name] for name in names)}
    row |= {name: parts[name] for name in names}
    row |= {f"idle_{kind}_ns": parts[f"idle_{kind}_ns"] for kind in ("bubble", "data", "sync", "host")}
    return row | {"recompute_ns": work.recompute_ns.get(step, 0)}


def collective(key: Key, meeting: Meeting) -> dict[str, Any]:
    """Return one collective as truth.json shows it."""
    last = max(meeting.start_ns.values())
    return {
        "group": key[0],
        "key": "/".join(key),
        "op": meeting.op,
        "dtype": meeting.dtype,
        "message_bytes": meeting.message_bytes,
        "ranks": meeting.ranks,
        "step": meeting.step,
        "start_ns": meeting.start_ns,
        "end_ns": meeting.end_ns,
        "transfer_ns": meeting.end_ns - last,
        "wait_ns": {rank: last - start for rank, start in meeting.start_ns.items()},
        "late_rank": max(meeting.start_ns, key=lambda rank: meeting.start_ns[rank]),
        "exposed_ns": meeting.exposed_ns,
        "exposed_wait_ns": meeting.exposed_wait_ns,
    }


def clocks(spec: Spec) -> list[dict[str, Any]]:
    """Return host, offset and drift of each rank."""
    rows = []
    for rank in range(spec.ranks):
        offset, drift = spec.clock(rank)
        rows.append({"rank": rank, "host": spec.host_of(rank), "offset_ns": offset, "drift_ppm": drift})
    return rows


def plain(spec: Spec) -> dict[str, Any]:
    """Return the spec as JSON holds it."""
    return asdict(spec)
