"""A run's whole ledger in memory, and how the ledgers of its ranks become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.records.columns import column, literal
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.record import Group, Run, Workload
from shardtoll.ledger.tables.tables import SCHEMAS, check, check_ranks, empty_table, to_frame

if TYPE_CHECKING:
    import pandas as pd

EPOCH_COLUMNS = {
    "steps": ("start_ns",),
    "collectives": ("issue_ns", "start_ns"),
    "computes": ("start_ns",),
    "leadups": ("since_ns",),
    "events": ("start_ns",),
}
"""Columns that count from the run's epoch."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Run, groups and tables of one rank or of all; `tables` has every name in `SCHEMAS`."""

    run: Run
    groups: tuple[Group, ...]
    tables: Mapping[str, pa.Table]
    findings: tuple[Finding, ...] = field(default=())
    """Findings made while the job ran, as those of the gradient check."""

    def __post_init__(self) -> None:
        for name in SCHEMAS:
            check(name, self.tables[name])
            check_ranks(name, self.tables[name], self.run)

    def frame(self, table: str) -> pd.DataFrame:
        """Return one table (`steps`, `collectives`, `computes`, `counts`, `notices`) as a frame."""
        return to_frame(self.tables[table])

    def group(self, name: str) -> Group | None:
        """Return the group of that name that has the most ranks; None if it is not known."""
        named = [group for group in self.groups if group.name == name]
        return max(named, key=lambda group: group.size, default=None)


def empty_tables() -> dict[str, pa.Table]:
    """Return every table of the ledger with no rows."""
    return {name: empty_table(name) for name in SCHEMAS}


def shifted_by(tables: Mapping[str, pa.Table], by_ns: int) -> dict[str, pa.Table]:
    """Return the tables with every time later by `by_ns`, as if the run's epoch were earlier by that."""
    shifted = dict(tables)
    if by_ns == 0:
        return shifted
    for name, columns in EPOCH_COLUMNS.items():
        table = shifted[name]
        for field_name in columns:
            index = table.schema.get_field_index(field_name)
            moved = pc.add(table.column(index), literal(by_ns))
            table = table.set_column(index, table.schema.field(index), moved)
        shifted[name] = table
    return shifted


def merge(parts: Sequence[Ledger]) -> Ledger:
    """Return one ledger of all ranks: times count from the earliest epoch, rows stand by rank.

    Raises ValueError if there is no part, if two parts hold the same rank, or if their jobs differ in size.
    """
    if not parts:
        raise ValueError("no ledgers to merge")
    ordered = sorted(parts, key=lambda part: part.run.ranks_seen)
    seen = [rank for part in ordered for rank in part.run.ranks_seen]
    if len(seen) != len(set(seen)):
        raise ValueError(f"a rank comes twice among {sorted(seen)}")
    sizes = {part.run.world_size for part in ordered}
    if len(sizes) > 1:
        raise ValueError(f"jobs of different world sizes {sorted(sizes)}")
    epoch_ns = min(part.run.epoch_ns for part in ordered)
    moved = [shifted_by(part.tables, part.run.epoch_ns - epoch_ns) for part in ordered]
    tables = {name: pa.concat_tables([tables[name] for tables in moved]) for name in SCHEMAS}
    first = ordered[0].run
    run = replace(
        first,
        epoch_ns=epoch_ns,
        **_of_the_job(ordered),
        cores=_cores(ordered),
        core_ids=first.core_ids if len(ordered) == 1 else (),
        ranks_seen=tuple(sorted(seen)),
        hosts=tuple(dict.fromkeys(host for part in ordered for host in part.run.hosts)),
        rank_hosts=_rank_hosts(ordered),
        ranks_per_host=_ranks_per_host(ordered, len(seen)),
    )
    findings = tuple(dict.fromkeys(finding for part in ordered for finding in part.findings))
    return Ledger(run, _merged_groups(ordered), tables, findings)


def concatenated(parts: Sequence[Ledger]) -> Ledger:
    """Return one ledger of several recordings of the same ranks, given in order of time.

    Steps must differ between the parts; times count from the earliest epoch. Raises ValueError if the parts
    are of different ranks or jobs.
    """
    if not parts:
        raise ValueError("no ledgers to put together")
    first = parts[0].run
    for part in parts[1:]:
        if (part.run.ranks_seen, part.run.world_size) != (first.ranks_seen, first.world_size):
            raise ValueError(f"recordings of ranks {first.ranks_seen} and {part.run.ranks_seen}")
    epoch_ns = min(part.run.epoch_ns for part in parts)
    rows: dict[int, int] = {}
    moved: list[dict[str, pa.Table]] = []
    for part in parts:
        tables = shifted_by(part.tables, part.run.epoch_ns - epoch_ns)
        tables["leadups"] = _reindexed(tables["leadups"], rows)
        if moved:
            # Events name rows of their own recording, and one recording is enough to replay.
            tables["events"] = empty_table("events")
        for rank in tables["collectives"].column("rank").to_pylist():
            rows[rank] = rows.get(rank, 0) + 1
        moved.append(tables)
    return Ledger(
        run=replace(
            first,
            epoch_ns=epoch_ns,
            **_of_the_job(parts),
            cores=min((part.run.cores for part in parts if part.run.cores is not None), default=None),
        ),
        groups=_merged_groups(parts),
        tables={name: pa.concat_tables([tables[name] for tables in moved]) for name in SCHEMAS},
        findings=tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
    )


def _reindexed(leadups: pa.Table, rows: Mapping[int, int]) -> pa.Table:
    """Return the lead-ups of collectives that come after `rows` others of their rank."""
    if not leadups.num_rows or not any(rows.values()):
        return leadups
    place = leadups.schema.get_field_index("index")
    field = leadups.schema.field(place)
    pairs = zip(leadups.column("index").to_pylist(), leadups.column("rank").to_pylist(), strict=True)
    moved = [index + rows.get(rank, 0) for index, rank in pairs]
    return leadups.set_column(place, field, column(moved, field.type))


def _said(values: Sequence[str | None]) -> str | None:
    """Return what most parts say, the first of equals; None if none says anything."""
    given = [value for value in values if value is not None]
    return max(given, key=given.count, default=None)


def _of_the_job(parts: Sequence[Ledger]) -> dict[str, Any]:
    """Return the fields of a run that are the same for all its parts.

    A rank whose file breaks off may say nothing of what all others know.
    """
    return {
        "backend": _said([part.run.backend for part in parts]),
        "device": _said([part.run.device for part in parts]),
        "torch": _said([part.run.torch for part in parts]),
        "nccl_version": _said([part.run.nccl_version for part in parts]),
        "machine": _said([part.run.machine for part in parts]),
        "workload": _workload(parts),
        "mesh": max((part.run.mesh for part in parts), key=len),
        **_devices(parts),
    }


def _workload(parts: Sequence[Ledger]) -> Workload | None:
    """Return what the job does. A rank of a pipeline may show no backward in its window, so one with a
    backward decides for all."""
    said = {part.run.workload for part in parts}
    return "training" if "training" in said else "inference" if "inference" in said else None


def _devices(parts: Sequence[Ledger]) -> dict[str, Any]:
    """Return the parts' facts about their devices: all of one device is from one part."""
    telling = [part.run for part in parts if part.run.device_memory_bytes is not None]
    first = telling[0] if telling else parts[0].run
    counts = (part.run.devices_per_host for part in parts)
    return {
        "device_memory_bytes": first.device_memory_bytes,
        "device_sms": first.device_sms,
        "device_capability": first.device_capability,
        "devices_per_host": max((count for count in counts if count is not None), default=None),
    }


def _cores(parts: Sequence[Ledger]) -> int | None:
    """Return the cores of the host with fewest: ranks that are bound to cores of their own share none."""
    of_host: dict[tuple[str, ...], list[Run]] = {}
    for part in parts:
        if part.run.cores is not None:
            of_host.setdefault(part.run.hosts, []).append(part.run)
    counts = []
    for runs in of_host.values():
        bound = {core for run in runs for core in run.core_ids}
        fewest = min(run.cores for run in runs if run.cores is not None)
        counts.append(len(bound) if all(run.core_ids for run in runs) else fewest)
    return min(counts, default=None)


def _rank_hosts(parts: Sequence[Ledger]) -> tuple[str | None, ...]:
    """The host of each rank: as the parts say, or the one host of a part that has one."""
    if len(parts) == 1:
        return parts[0].run.rank_hosts
    hosts: dict[int, str | None] = {}
    for part in parts:
        run = part.run
        part_hosts = run.rank_hosts or (run.hosts if len(run.hosts) == 1 else (None,)) * len(run.ranks_seen)
        hosts.update(zip(run.ranks_seen, part_hosts, strict=True))
    in_order = tuple(hosts[rank] for rank in sorted(hosts))
    return in_order if any(host is not None for host in in_order) else ()


def _ranks_per_host(parts: Sequence[Ledger], seen: int) -> int | None:
    """The number the ranks state, if they agree; else counted, which takes every rank to be here."""
    said = {part.run.ranks_per_host for part in parts}
    if len(said) == 1 and None not in said:
        return said.pop()
    if seen < parts[0].run.world_size:
        return None
    by_host: dict[str, int] = {}
    for part in parts:
        for host in part.run.hosts:
            by_host[host] = by_host.get(host, 0) + 1
    counts = set(by_host.values())
    return counts.pop() if len(counts) == 1 else None


def _merged_groups(parts: Iterable[Ledger]) -> tuple[Group, ...]:
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    for part in parts:
        for group in part.groups:
            key = (group.name, group.ranks)
            before = groups.get(key)
            if before is None or (before.mesh_dim is None and group.mesh_dim is not None):
                groups[key] = group
    return tuple(groups.values())
