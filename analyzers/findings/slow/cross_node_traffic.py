"""A mesh dimension that spans nodes although another order of the mesh would keep it inside one.

The advice puts another dimension across nodes, so what that one sends has to be known. A dimension without a
collective on record is more likely unseen than unused. User buffers, symmetric memory and libraries with
communicators of their own leave no records. To move such a dimension out of its node would cost far more than
it spares. It stays where it is, and there is no finding. If its collectives are on record but have no bytes
in these steps, the finding is possible and says so.
"""

from __future__ import annotations

from itertools import permutations
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.mesh_layouts import (
    Dim,
    Ops,
    Projected,
    crossing_bytes,
    dim_of,
    groups_of,
    mesh_of,
    projected,
    spans,
)
from shardtoll.analyzers.findings.slow.nodes import Nodes, nodes_of
from shardtoll.analyzers.shared.tally import begins_with, keep, tally, with_columns
from shardtoll.analyzers.shared.wrapper_causes import WRAPPER_CAUSES
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Where
from shardtoll.ledger.words.human import duration, size, some_time

WORTH: Final = 0.9
"""Another order has to bring the bytes that cross nodes, or the projected time, below this part. Neither may
grow if both are known and it is the bytes that shrink."""

COLUMNS: Final = (
    *("step", "rank", "group", "group_id", "mesh_dim"),
    *("op", "message_bytes", "caused_by_op", "exposed_ns"),
)
"""Columns of a collective that are read: copies of all columns of millions of rows would cost."""

LEAST_SHARE: Final = 0.01
"""Share of the step that another order must be able to save; a mesh is not turned round for less."""

MOST_DIMS: Final = 6
"""Orders of more dimensions are not tried: 720 is enough, and no mesh has more."""


class _Traffic(Struct, frozen=True):
    """Bytes moved along one dimension, on the rank that moves most."""

    name: str | None
    ops: Ops
    bytes: int
    hideable: bool
    """Most of its bytes are asked for by a wrapper that overlaps them."""
    rows: pd.DataFrame
    seen: bool
    """Any record of the run holds a collective of it, in these steps or not."""


class _Order(Struct, frozen=True):
    """One order of the mesh's dimensions, and what it costs a step."""

    order: tuple[int, ...]
    inside: frozenset[int]
    """Places in the mesh of the dimensions whose groups each lie inside a node."""
    crossing: float
    """Bytes from node to node, of all ranks."""
    projected: Projected | None
    """Sum over all collectives; None if the fabric has no rates between nodes."""

    @property
    def time_ns(self) -> float | None:
        """The expected time; None if there is no projection."""
        return None if self.projected is None else self.projected.time_ns


def find(context: Context) -> list[Finding]:
    """Return one finding a dimension that should change places with one that lies inside nodes.

    Times and bytes are per step. The counterfactual is the same collectives with the mesh in the best other
    order, as the fabric's model expects them. If that is unknown, only the bytes that cross nodes are
    compared. A saving below a hundredth of the step gives no finding.
    """
    nodes = nodes_of(context)
    world = context.ledger.run.world_size
    if nodes is None or nodes.count < 2:
        return []
    traffic = _traffic(context)
    mesh = mesh_of({dim: each.bytes for dim, each in traffic.items()}, world)
    if not 2 <= len(mesh) <= MOST_DIMS:
        return []
    moving = {dim: each for dim, each in traffic.items() if each.bytes}
    orders = [_order(context, moving, mesh, order, nodes) for order in permutations(range(len(mesh)))]
    now = orders[0]
    findings = []
    for index, dim in enumerate(mesh):
        if index in now.inside or dim not in moving:
            continue
        better = [other for other in orders[1:] if _is_better(other, now, index, mesh, traffic)]
        if better:
            best = min(better, key=lambda other: _cost(other))
            finding = _finding(context, mesh, traffic, index, now, best, nodes)
            if _is_worth_telling(context, finding, now, best):
                findings.append(finding)
    return findings


def _is_worth_telling(context: Context, finding: Finding, now: _Order, best: _Order) -> bool:
    """Whether what is projected to be spared is enough, in time or as a part of what is exposed.

    The part, so that a job which does not reach its fabric's rates is judged by its own times.
    """
    share = context.share(finding.toll_ns, context.timed)
    if share is None:
        return True
    part = 1.0 if best.time_ns is None or not now.time_ns else 1 - best.time_ns / now.time_ns
    projected_share = context.share(finding.saving_ns, context.timed) or 0.0
    return max(share * part, projected_share) >= LEAST_SHARE


def _is_better(
    other: _Order, now: _Order, index: int, mesh: tuple[Dim, ...], traffic: dict[Dim, _Traffic]
) -> bool:
    if index not in other.inside:
        return False
    moving = {dim: each for dim, each in traffic.items() if each.bytes}
    load = moving[mesh[index]]
    out = [mesh[place] for place in now.inside - other.inside]
    if not all(dim in traffic and traffic[dim].seen for dim in out):
        return False
    left = [moving[dim] for dim in out if dim in moving]
    # A dimension that hides behind computing never goes first. If two are equal in this, the one
    # that moves more goes first.
    if any(load.hideable and not each.hideable for each in left):
        return False
    if any(load.hideable == each.hideable and load.bytes <= each.bytes for each in left):
        return False
    fewer = other.crossing < WORTH * now.crossing
    if other.time_ns is None or now.time_ns is None:
        return fewer
    return other.time_ns < (now.time_ns if fewer else WORTH * now.time_ns)


def _cost(order: _Order) -> tuple[float, float]:
    return (order.crossing if order.time_ns is None else order.time_ns, order.crossing)


def _traffic(context: Context) -> dict[Dim, _Traffic]:
    """Return what moves along each dimension that the job's groups are of, those that move nothing too."""
    frame = context.in_steps
    names: dict[Dim, list[str]] = {}
    for group in context.ledger.groups:
        dim = dim_of(group.ranks)
        if dim is not None:
            names.setdefault(dim, []).extend([group.mesh_dim] if group.mesh_dim else [])
    numbers = {dim: number for number, dim in enumerate(names)}
    dims = [dim_of(ranks) for ranks in context.matches.members]
    of_group = np.array(
        [-1 if dim is None else numbers.setdefault(dim, len(numbers)) for dim in dims] or [-1]
    )
    seen = {int(group) for group in context.collectives["group_id"].dropna().unique()}
    seen_dims = {dims[group] for group in seen}
    frame = keep(frame[list(COLUMNS)], frame["group_id"].notna() & frame["message_bytes"].notna())
    frame = with_columns(frame, dim=of_group[frame["group_id"].to_numpy(dtype=np.int64)])
    frame["hideable"] = begins_with(frame["caused_by_op"], WRAPPER_CAUSES)
    traffic = {}
    for dim, number in numbers.items():
        rows = keep(frame, frame["dim"] == number)
        by_rank = rows.groupby("rank")["message_bytes"].sum()
        busiest = keep(rows, rows["rank"] == by_rank.idxmax()) if len(by_rank) else rows
        counts = busiest.groupby(["op", "message_bytes"]).size() / max(1, len(context.steps))
        kinds = [(str(op), int(moved)) for op, moved in counts.index.to_list()]
        moved = int(by_rank.max()) if len(by_rank) else 0
        wrapped = int(keep(busiest, busiest["hideable"])["message_bytes"].sum())
        called = rows["mesh_dim"].dropna()
        called_names = [str(name) for name in called.mode()] or names.get(dim, [])
        traffic[dim] = _Traffic(
            name=called_names[0] if called_names else None,
            ops=dict(zip(kinds, counts.to_numpy(dtype=np.float64).tolist(), strict=True)),
            bytes=round(moved / max(1, len(context.steps))),
            hideable=2 * wrapped > moved,
            rows=rows,
            seen=dim in seen_dims,
        )
    return traffic


def _order(
    context: Context,
    moving: dict[Dim, _Traffic],
    mesh: tuple[Dim, ...],
    order: tuple[int, ...],
    nodes: Nodes,
) -> _Order:
    groups_of_dims = [groups_of(dim, mesh, order) for dim in mesh]
    inside = {
        index
        for index, groups in enumerate(groups_of_dims)
        if groups is not None and not spans(groups, nodes.of)
    }
    crossing = 0.0
    whole: Projected | None = Projected()
    for dim, each in moving.items():
        groups = groups_of(dim, mesh, order)
        if groups is None:
            continue
        crossing += crossing_bytes(each.ops, groups, nodes.of)
        projection = projected(context.fabric, each.ops, groups, nodes.of)
        whole = None if whole is None or projection is None else whole.plus(projection)
    return _Order(order, frozenset(inside), crossing, whole)


def _finding(
    context: Context,
    mesh: tuple[Dim, ...],
    traffic: dict[Dim, _Traffic],
    index: int,
    now: _Order,
    best: _Order,
    nodes: Nodes,
) -> Finding:
    load = traffic[mesh[index]]
    swapped = [mesh[place] for place in now.inside - best.inside]
    called = _called(mesh[index], traffic)
    rivals = ", ".join(_called(dim, traffic) for dim in swapped) or "another"
    rival_bytes = sum(traffic[dim].bytes for dim in swapped if dim in traffic)
    silent = [_called(dim, traffic) for dim in swapped if dim not in traffic or not traffic[dim].bytes]
    unrecorded = f"; no bytes of {', '.join(silent)} are on record, its collectives may be unrecorded"
    (line,) = tally(
        load.rows.assign(all=0), ("all",), ("exposed_ns",), context.steps, times_in=context.timed
    ).lines
    toll = line.figures["exposed_ns"]
    groups = groups_of(mesh[index], mesh, now.order)
    assert groups is not None
    own_crossing = round(crossing_bytes(load.ops, groups, nodes.of))
    shape = " x ".join(f"{_called(mesh[place], traffic)}={mesh[place].size}" for place in best.order)
    gain = None if best.time_ns is None or now.time_ns is None else now.time_ns - best.time_ns
    saving = None if gain is None or toll is None else min(toll, int(gain))
    outlook = (
        f"; the mesh {shape} is projected to take {some_time(best.time_ns)} instead of "
        f"{some_time(now.time_ns)}"
        if gain is not None
        else f"; the mesh {shape} sends {size(round(best.crossing))} between nodes instead of "
        f"{size(round(now.crossing))}"
    )
    return Finding(
        kind="cross-node-traffic",
        severity="warning",
        title=f"mesh dim {called} spans {nodes.count} nodes and moves {size(load.bytes)} per step and rank, "
        f"while {rivals} with {size(rival_bytes)} lies inside a node{outlook}"
        f"{unrecorded if silent else ''}",
        toll_ns=toll,
        floor_ns=None if best.projected is None else round(best.projected.floor_ns),
        saving_ns=saving,
        bytes=load.bytes,
        count=line.count,
        ranks=line.ranks,
        rows=Rows.of(collectives=load.rows.index),
        where=Where(mesh_dim=load.name, group=str(line.first["group"])),
        evidence=(
            Evidence("mesh dim", called),
            Evidence("bytes between nodes per step, of this dim, all ranks", own_crossing, "bytes"),
            Evidence("bytes between nodes per step, whole mesh", round(now.crossing), "bytes"),
            Evidence("bytes between nodes per step, swapped mesh", round(best.crossing), "bytes"),
            Evidence("projected time of all collectives now", _rounded(now.time_ns), "ns"),
            Evidence("band of sound runs, now", _band(now.projected)),
            Evidence("projected time with the swapped mesh", _rounded(best.time_ns), "ns"),
            Evidence("band of sound runs, swapped mesh", _band(best.projected)),
            Evidence("nodes", nodes.count),
            Evidence("ranks of a group", ", ".join(map(str, groups[0]))),
            Evidence("mesh now", " x ".join(f"{_called(dim, traffic)}={dim.size}" for dim in mesh)),
            Evidence("swapped mesh", shape),
        ),
        remedy=Remedy(
            text=(f"First see what {', '.join(silent)} sends. " if silent else "")
            + f"Make {called} the innermost dimension of the mesh, so that its ranks share a node, and "
            f"let {rivals} span nodes.",
            code=_code(context, mesh, traffic, best),
            counterfactual=None
            if saving is None
            else f"the same collectives on the mesh {shape}, as fabric {context.fabric.name} allows",
        ),
        confidence="possible" if silent else "certain" if nodes.certain else "likely",
    )


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _band(spared: Projected | None) -> str | None:
    return None if spared is None else f"{duration(spared.low_ns)} to {duration(spared.high_ns)}"


def _called(dim: Dim, traffic: dict[Dim, _Traffic]) -> str:
    """Return the dimension's name, or what its groups look like."""
    name = traffic[dim].name if dim in traffic else None
    return name or f"of {dim.size} ranks {dim.stride} apart"


def _code(context: Context, mesh: tuple[Dim, ...], traffic: dict[Dim, _Traffic], best: _Order) -> str:
    device = "cpu" if context.ledger.run.device == "cpu" else "cuda"
    shape = ", ".join(str(mesh[place].size) for place in best.order)
    names = [traffic[dim].name if (dim := mesh[place]) in traffic else None for place in best.order]
    if None in names:
        return f'mesh = init_device_mesh("{device}", ({shape}))'
    quoted = ", ".join(f'"{name}"' for name in names)
    return f'mesh = init_device_mesh("{device}", ({shape}), mesh_dim_names=({quoted}))'
