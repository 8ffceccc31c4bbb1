"""The ledger of one rank from its trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from shardtoll.ledger.records.errors import TraceError
from shardtoll.ledger.records.record import MOST_RANKS, Notice, Run, Step
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.tables import DRY, to_table
from shardtoll.profiler.traces.collectives.group_of import Groups, Placed
from shardtoll.profiler.traces.collectives.kernels import KernelTable
from shardtoll.profiler.traces.collectives.serving import Served, workload
from shardtoll.profiler.traces.file.trace_columns import KERNEL, Trace
from shardtoll.profiler.traces.rank.causes import Stacks, Work
from shardtoll.profiler.traces.rank.causes import causes as causes_of
from shardtoll.profiler.traces.rank.collective_rows import collectives
from shardtoll.profiler.traces.rank.device_ops import device_ops
from shardtoll.profiler.traces.rank.facts import Facts, work_out
from shardtoll.profiler.traces.rank.idle import pieces, reasons
from shardtoll.profiler.traces.rank.leadups import leadups
from shardtoll.profiler.traces.rank.message_phases import with_message_phases
from shardtoll.profiler.traces.rank.phases import OTHER, Phases
from shardtoll.profiler.traces.rank.split import COMM, COMPUTE, IDLE, LOOKALIKE, MOVE
from shardtoll.profiler.traces.rank.stalls import stalls
from shardtoll.profiler.traces.rank.timeline import events, most_events
from shardtoll.profiler.traces.rank.worlds import Unsized, least_world, placing_notices, unsized


class Ranked(Struct, frozen=True):
    """One rank, worked out."""

    ledger: Ledger
    unsized: Unsized | None
    """The ledger's changes for another number of ranks; None if the trace states the number."""


def rank_ledger(trace: Trace, table: KernelTable) -> Ledger:
    """Return the ledger of the trace's rank, as `ranked` does."""
    return ranked(trace, table).ledger


def ranked(trace: Trace, table: KernelTable) -> Ranked:
    """Return the ledger of the trace's rank; TraceError if the rank is unknown.

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
    named = any(args.group is not None for args in trace.comm_args)
    groups = Groups(meta.groups, meta.backend, world, named=named)
    placed = [groups.place(row.args) for row in facts.rows]
    phases = Phases(facts)
    stacks = Stacks(trace)
    causes = causes_of(facts.rows, phases, stacks)
    work = _work(facts, phases, stacks)
    causes = with_message_phases(facts, phases, work, causes)
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
    tables = {name: to_table(name, ()) for name in ("computes", "counts", "values", "parameters", *DRY)}
    tables["leadups"] = to_table("leadups", leads)
    tables["stalls"] = to_table("stalls", stalls(facts, phases, stacks, why, parts, work, rank))
    tables["device_ops"] = device_ops(facts, work, rank)
    tables["events"] = events(facts, phases, work, rank, epoch_ns, most_events(world))
    tables["steps"] = to_table("steps", _steps(facts, rank, epoch_ns))
    tables["collectives"] = collectives(facts, rank, epoch_ns, placed, causes)
    tables["notices"] = to_table("notices", _notices(facts, rank, placed, tables["collectives"]))
    run = Run(
        world_size=world,
        backend=meta.backend,
        device=meta.device or (None if facts.has_device or facts.blind else "cpu"),
        torch=meta.torch,
        hosts=(meta.host,) if meta.host else (),
        mesh={place.mesh_dim: place.size for place in placed if place.mesh_dim and place.size},
        source="trace",
        ranks_seen=(rank,),
        epoch_ns=epoch_ns,
        rank_hosts=(meta.host,) if meta.host else (),
        nccl_version=meta.nccl,
        device_memory_bytes=meta.device_memory_bytes,
        device_sms=meta.device_sms,
        device_capability=meta.device_capability,
        devices_per_host=meta.devices,
        workload=workload(trace),
    )
    ledger = Ledger(run, groups.records(), tables)
    # The other ranks' traces show who is in a communicator.
    members = zip(facts.rows, placed, strict=True)
    open_groups = any(row.args.communicator is not None and not place.ranks for row, place in members)
    settled = meta.world_size is not None and not open_groups
    return Ranked(ledger, None if settled else unsized(meta, named, facts.rows))


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
    nothing = (Served(None, None),) * len(facts.steps.numbers)
    for place, (number, served) in enumerate(
        zip(facts.steps.numbers, facts.steps.served or nothing, strict=True)
    ):
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
                level="watch" if facts.blind else "survey",
                serves=served.kind,
                requests=served.requests,
            )
        )
    return made


def _notices(facts: Facts, rank: int, placed: Sequence[Placed], table: pa.Table) -> list[Notice]:
    texts = list(facts.trace.notices)
    if not facts.steps.marked:
        texts.append(("no-steps", "the trace marks no steps: all that was recorded is taken as step 0"))
    if facts.blind:
        text = "the trace holds no device timeline: what was computed, exposed and idle there is unknown"
        texts.append(("no-device-timeline", text))
    elif not facts.has_device:
        texts.append(("no-kernels", "the trace holds no device work: operators on the host count as compute"))
    untimed = sum(not row.timed for row in facts.rows)
    if untimed and not facts.blind:
        text = f"{untimed} collectives are known by their calls on the host: when they ran is unknown"
        texts.append(("times-unknown", text))
    texts += placing_notices(placed, table.column("message_bytes").null_count)
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
