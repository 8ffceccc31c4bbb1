"""Ledgers of jobs whose ranks run small programs of own work, collectives and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardtoll.ledger import Collective, Group, Leadup, Ledger, Step
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of


@dataclass(frozen=True)
class Own:
    """Work of the rank's own, or idle time where `idle`."""

    ns: int
    idle: bool = False


@dataclass(frozen=True)
class Meet:
    """A collective of all ranks of a group."""

    group: str
    op: str = "all_reduce"
    ns: int = MS // 10


@dataclass(frozen=True)
class Send:
    """A message; the sender goes on as soon as it has left."""

    to: int
    group: str
    phase: str = "forward"
    ns: int = MS // 100


@dataclass(frozen=True)
class Recv:
    """Waits for the next message of a rank."""

    of: int
    group: str
    phase: str = "forward"


Program = Sequence[Own | Meet | Send | Recv]


def job(
    programs: Mapping[int, Program], groups: Mapping[str, tuple[int, ...]], steps: int = 3, **run: Any
) -> Ledger:
    """Return the ledger of a traced job whose ranks run their program in each step, all begun together."""
    rows: dict[int, list[dict[str, Any]]] = {rank: [] for rank in programs}
    leads: dict[int, list[Leadup]] = {rank: [] for rank in programs}
    step_rows: list[Step] = []
    begin = 0
    for step in range(steps):
        ends = _step(step, begin, programs, groups, rows, leads, step_rows)
        begin = max(ends.values()) + MS
    everything: list[Collective] = [collective(**row) for rank in rows for row in rows[rank]]
    about = {"source": "trace", "device": "NVIDIA H100", "backend": "nccl"} | run
    return ledger(
        everything,
        run=run_of(len(programs), **about),
        groups=[
            Group(name, ranks, mesh_dim="pp" if name.startswith("pp") else None)
            for name, ranks in groups.items()
        ],
        steps=step_rows,
        leadups=[lead for rank in leads for lead in leads[rank]],
    )


def _step(
    step: int,
    begin: int,
    programs: Mapping[int, Program],
    groups: Mapping[str, tuple[int, ...]],
    rows: dict[int, list[dict[str, Any]]],
    leads: dict[int, list[Leadup]],
    step_rows: list[Step],
) -> dict[int, int]:
    now = dict.fromkeys(programs, begin)
    place = dict.fromkeys(programs, 0)
    own = {rank: {False: 0, True: 0} for rank in programs}
    of_group: dict[tuple[int, str], dict[bool, int]] = {}
    since: dict[tuple[int, str], int] = {}
    first = {rank: len(rows[rank]) for rank in programs}
    mail: dict[tuple[int, int, str], list[tuple[int, int]]] = {}
    arrived: dict[str, dict[int, int]] = {}

    def done(rank: int, group: str, op: str, start: int, end: int, **more: Any) -> None:
        before = of_group.get((rank, group), {False: 0, True: 0})
        row = {
            "step": step,
            "rank": rank,
            "group": group,
            "group_size": len(groups[group]),
            "mesh_dim": "pp" if group.startswith("pp") else None,
            "seq": None,
            "op": op,
            "issue_ns": start,
            "start_ns": start,
            "duration_ns": end - start,
            "exposed_ns": end - start,
        }
        leads[rank].append(
            Leadup(
                step=step,
                rank=rank,
                index=len(rows[rank]),
                since_ns=since.get((rank, group), begin),
                compute_ns=own[rank][False] - before[False],
                comm_ns=0,
                copy_ns=0,
                data_ns=0,
                sync_ns=0,
                host_ns=own[rank][True] - before[True],
                phase="forward",
            )
        )
        rows[rank].append(row | more)
        of_group[rank, group] = dict(own[rank])
        since[rank, group] = end
        now[rank] = end
        place[rank] += 1

    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            while place[rank] < len(program):
                match program[place[rank]]:
                    case Own(ns, idle):
                        now[rank] += ns
                        own[rank][idle] += ns
                        place[rank] += 1
                    case Send(to, group, phase, ns):
                        mail.setdefault((rank, to, phase), []).append((now[rank], now[rank] + ns))
                        done(rank, group, "send", now[rank], now[rank] + ns, root=to, phase=phase)
                    case Recv(of, group, phase):
                        if not mail.get((of, rank, phase)):
                            break
                        _, sent = mail[of, rank, phase].pop(0)
                        end = max(now[rank], sent) + MS // 1000
                        done(rank, group, "recv", now[rank], end, root=of, phase=phase)
                    case Meet(group, op, ns):
                        there = arrived.setdefault(group, {})
                        there.setdefault(rank, now[rank])
                        if len(there) < len(groups[group]):
                            break
                        for other, at in arrived.pop(group).items():
                            done(other, group, op, at, max(there.values()) + ns)
                moved = True
    assert all(place[rank] == len(program) for rank, program in programs.items()), "a program is stuck"
    last = max(now.values())
    for rank in programs:
        exposed = sum(row["duration_ns"] for row in rows[rank][first[rank] :])
        tail = last - now[rank]
        step_rows.append(
            Step(
                step=step,
                rank=rank,
                start_ns=begin,
                duration_ns=last - begin,
                compute_ns=own[rank][False],
                exposed_comm_ns=exposed,
                exposed_copy_ns=0,
                idle_ns=own[rank][True] + tail,
                unattributed_ns=0,
            )
        )
    return dict.fromkeys(programs, last)


def pipelines(
    stages: int,
    replicas: int,
    micro_batches: int,
    *,
    chunks: int = 1,
    slow: Mapping[int, float] | None = None,
    forward_ns: int = 2 * MS,
    told_phases: bool = True,
    as_v: bool = False,
) -> Ledger:
    """Return a job of pipelines with one data-parallel group a stage; rank = stage * replicas + replica.

    All micro-batches go forward, then all backward, chunk by chunk. `slow`: rank -> times as long. Without
    `told_phases` the messages are of the phase `other`, as in most traces. `as_v`: the
    second of two chunks goes back along the ranks.
    """
    slow = slow or {}
    programs: dict[int, list[Own | Meet | Send | Recv]] = {}
    groups: dict[str, tuple[int, ...]] = {}
    for replica in range(replicas):
        line = tuple(stage * replicas + replica for stage in range(stages))
        groups[f"pp{replica}"] = line
        for stage, rank in enumerate(line):
            groups[f"dp{stage}"] = tuple(stage * replicas + other for other in range(replicas))
            work = round(forward_ns * slow.get(rank, 1.0))
            program: list[Own | Meet | Send | Recv] = []
            homes = [(chunk, place) for chunk in range(chunks) for place in range(stages)]
            order = [place if not as_v or chunk % 2 == 0 else stages - 1 - place for chunk, place in homes]
            for phase, chunk_order in (("forward", range(chunks)), ("backward", range(chunks)[::-1])):
                ahead = 1 if phase == "forward" else -1
                for chunk in chunk_order:
                    place = [nth for nth, home in enumerate(order) if home == stage][chunk]
                    before, after = place - ahead, place + ahead
                    for _ in range(micro_batches):
                        if 0 <= before < len(order) and order[before] != stage:
                            program.append(Recv(line[order[before]], f"pp{replica}", phase))
                        program.append(Own(work * (1 if ahead > 0 else 2)))
                        if 0 <= after < len(order) and order[after] != stage:
                            program.append(Send(line[order[after]], f"pp{replica}", phase))
            if replicas > 1:
                program.append(Meet(f"dp{stage}", "reduce_scatter"))
            program.append(Own(MS // 2))
            programs[rank] = program
    if replicas == 1:
        groups = {name: ranks for name, ranks in groups.items() if name.startswith("pp")}
    made = job(programs, groups)
    if not told_phases:
        table = made.tables["collectives"]
        place = table.schema.get_field_index("phase")
        phases = pa.array(["other"] * table.num_rows).cast(table.schema.field(place).type)
        made.tables["collectives"] = table.set_column(place, table.schema.field(place), phases)
    return made
