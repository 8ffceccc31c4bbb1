"""The ledger of one rank from its trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shardtoll.ledger.errors import TraceError
from shardtoll.ledger.ledger import Ledger
from shardtoll.ledger.record import MOST_RANKS, Notice, Run, Step
from shardtoll.ledger.tables import to_table
from shardtoll.profiler.traces.causes import Stacks, Work
from shardtoll.profiler.traces.causes import causes as causes_of
from shardtoll.profiler.traces.comms import UNKNOWN
from shardtoll.profiler.traces.device_ops import device_ops
from shardtoll.profiler.traces.facts import Facts, work_out
from shardtoll.profiler.traces.groups import ASSUMED, Groups, Placed
from shardtoll.profiler.traces.idle import pieces, reasons
from shardtoll.profiler.traces.kernels import KernelTable
from shardtoll.profiler.traces.leadups import leadups
from shardtoll.profiler.traces.phases import OTHER, Phases
from shardtoll.profiler.traces.rows import collectives
from shardtoll.profiler.traces.split import COMM, COMPUTE, IDLE, LOOKALIKE, MOVE
from shardtoll.profiler.traces.stalls import stalls
from shardtoll.profiler.traces.trace import KERNEL, Trace
from shardtoll.profiler.traces.worlds import least_world


def rank_ledger(trace: Trace, table: KernelTable) -> Ledger:
    """Return the ledger of the trace's rank; TraceError where nothing tells which rank it is.

    `run.epoch_ns` is the trace's first instant; every time in the tables counts from it.
    """
    meta = trace.meta
    rank = meta.rank
    if rank is None:
        raise TraceError(
            f"{meta.address} does not say which rank it is from",
            "put the rank into the file's name, as rank3.json",
        )
    facts = work_out(trace, table)
    world = meta.world_size or least_world(trace, rank, facts.rows)
    if not 0 <= rank < world <= MOST_RANKS:
        raise TraceError(
            f"{meta.address} says it is rank {rank} of {world}",
            "leave the file out, or name its rank in its name",
        )
    epoch_ns = int(facts.split.edges_ns[0])
    told = any(args.group is not None for args in trace.comm_args)
    groups = Groups(meta, world, told=told)
    placed = [groups.place(row.args) for row in facts.rows]
    phases = Phases(facts)
    stacks = Stacks(trace)
    causes = causes_of(facts.rows, phases, stacks)
    work = _work(facts, phases, stacks)
    why = reasons(facts, phases.main)
    parts = pieces(facts, why, phases.turns(trace))
    leads = leadups(
        facts,
        parts,
        [p.name for p in placed],
        [c.phase for c in causes],
        work,
        rank,
        epoch_ns,
    )
    # `to_table` even for what stays empty: `Schema.empty_table` would import pandas.
    tables = {name: to_table(name, ()) for name in ("computes", "counts", "values", "parameters")}
    tables["leadups"] = to_table("leadups", leads)
    tables["stalls"] = to_table("stalls", stalls(facts, phases, stacks, why, parts, work, rank))
    tables["device_ops"] = device_ops(facts, work, rank)
    tables["steps"] = to_table("steps", _steps(facts, rank, epoch_ns))
    tables["collectives"] = collectives(facts, rank, epoch_ns, placed, causes)
    tables["notices"] = to_table("notices", _notices(facts, rank, placed, tables["collectives"]))
    run = Run(
        world_size=world,
        backend=meta.backend,
        device=meta.device or (None if facts.has_device else "cpu"),
        torch=meta.torch,
        hosts=(meta.host,) if meta.host else (),
        mesh={place.mesh_dim: place.size for place in placed if place.mesh_dim and place.size},
        source="trace",
        ranks_seen=(rank,),
        epoch_ns=epoch_ns,
        rank_hosts=(meta.host,) if meta.host else (),
        nccl_version=meta.nccl,
    )
    return Ledger(run, groups.records(), tables)


def _work(facts: Facts, phases: Phases, stacks: Stacks) -> Work:
    """Return phase and module in which each piece of device work was launched."""
    calls = facts.trace.calls
    phase = np.full(len(facts.launch), OTHER, np.int8)
    module = np.full(len(facts.launch), -1, np.int64)
    seen = facts.launch >= 0
    rows = facts.launch[seen]
    phase[seen] = phases.at(calls.thread[rows], calls.start_ns[rows])
    module[seen] = stacks.modules_at(calls.thread[rows], calls.start_ns[rows])
    return Work(phase, module, stacks.module)


def _steps(facts: Facts, rank: int, epoch_ns: int) -> list[Step]:
    split = facts.split
    made = []
    for place, number in enumerate(facts.steps.numbers):
        part = [int(value) for value in split.parts_ns[place]]
        total = sum(part)
        window = np.flatnonzero(facts.steps.place == place)[0]
        first_ns = int(split.first_ns[place]) if total else int(facts.steps.start_ns[window])
        made.append(
            Step(
                step=number,
                rank=rank,
                start_ns=first_ns - epoch_ns,
                duration_ns=total,
                compute_ns=part[COMPUTE],
                exposed_comm_ns=part[COMM],
                exposed_copy_ns=part[MOVE],
                idle_ns=part[IDLE],
                unattributed_ns=part[LOOKALIKE],
            )
        )
    return made


def _notices(facts: Facts, rank: int, placed: Sequence[Placed], table: pa.Table) -> list[Notice]:
    texts = list(facts.trace.notices)
    rows = facts.rows
    if not facts.steps.marked:
        texts.append(("no-steps", "the trace marks no steps: all that was recorded is taken as step 0"))
    if not facts.has_device:
        texts.append(("no-kernels", "the trace holds no device work: operators on the host count as compute"))
    assumed = sum(place.assumed for place in placed)
    if assumed:
        texts.append(
            (
                "groups-unknown",
                f"{assumed} of {len(rows)} collectives name no group: {ASSUMED}",
            )
        )
    unknown = sum(place.name == UNKNOWN for place in placed)
    if unknown:
        texts.append(("groups-unknown", f"the group of {unknown} of {len(rows)} collectives is unknown"))
    sizes = table.column("message_bytes").null_count
    if sizes:
        texts.append(("sizes-unknown", f"the size of {sizes} of {len(rows)} collectives is unknown"))
    unseen = int((facts.launch < 0).sum())
    if unseen:
        kernels = int(((facts.launch < 0) & (facts.trace.device.kind == KERNEL)).sum())
        texts.append(
            (
                "launches-unseen",
                f"{unseen} of {len(facts.launch)} pieces of device work ({kernels} kernels) were launched "
                "outside the recorded window",
            )
        )
    return [Notice(rank, kind, text) for kind, text in texts]
