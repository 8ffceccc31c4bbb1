"""Collectives of different groups that run one after the other while nothing computes."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.shared import remedy_code
from shardtoll.analyzers.shared.tally import Line, keep, tally, with_columns
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Where
from shardtoll.ledger.words.human import percent, some_time
from shardtoll.ledger.words.human import plural as times

LEAST_SHARE: Final = 0.02
"""Share of the step that running them side by side must be able to save. The claim is a guess, so twice what
others need."""

GAP_NS: Final = 50_000
"""A second collective that starts later than this after the first had some other reason."""

MOSTLY: Final = 0.9
"""Part of a collective that must be exposed, or else compute and not the first one may have held it up."""


def pairs(context: Context) -> pd.DataFrame:
    """Return the second collectives of pairs that could perhaps have run side by side.

    Both on a device, of different groups, mostly exposed, the second asked for before the first ended and
    started right after it. Messages of which one is the other, or its shard, are left out: as in
    hierarchical reductions the second needs the first. Each row has `after` (first's op and group) and
    `hidden_ns`, the shorter exposed transfer of the two.
    """
    frame = context.in_steps
    complete = frame["start_ns"].notna() & frame["duration_ns"].notna() & frame["exposed_ns"].notna()
    complete &= frame["stream"].notna() & frame["issue_ns"].notna() & frame["message_bytes"].notna()
    frame = keep(frame, complete & ~frame["op"].isin((*PEER_OPS, "barrier", "unknown")))
    frame = frame.sort_values(["rank", "step", "start_ns"], kind="stable")
    columns = [
        "rank",
        "step",
        "start_ns",
        "duration_ns",
        "issue_ns",
        "message_bytes",
        "exposed_ns",
        "group_size",
    ]
    number = {name: frame[name].to_numpy(dtype=np.int64) for name in columns}
    end = number["start_ns"] + number["duration_ns"]
    first, second = np.arange(max(0, len(frame) - 1)), np.arange(1, max(1, len(frame)))
    gap = number["start_ns"][second] - end[first]
    exposed = number["exposed_ns"] >= MOSTLY * number["duration_ns"]
    group = frame["group_id"].to_numpy(dtype=np.int64, na_value=-1)
    size, ranks = number["message_bytes"], number["group_size"]
    needs = np.zeros(len(second), dtype=bool)
    for this, other in ((first, second), (second, first)):
        # Padding makes shards a little larger than the exact part.
        for whole in (
            size[this],
            size[this] / np.maximum(1, ranks[this]),
            size[this] / np.maximum(1, ranks[other]),
        ):
            needs |= np.abs(size[other] - whole) <= 0.01 * np.maximum(whole, 1)
    fit = (
        (number["rank"][first] == number["rank"][second])
        & (number["step"][first] == number["step"][second])
        & (group[first] != group[second])
        & (group[first] >= 0)
        & (group[second] >= 0)
        & exposed[first]
        & exposed[second]
        & (gap >= 0)
        & (gap <= GAP_NS)
        & (number["issue_ns"][second] < end[first])
        & ~needs
    )
    moving = np.minimum(
        number["exposed_ns"], frame["transfer_ns"].to_numpy(dtype=np.int64, na_value=np.iinfo(np.int64).max)
    )
    chosen = frame.iloc[second[fit]]
    before = frame.iloc[first[fit]]
    result: pd.DataFrame = with_columns(
        chosen,
        after=(before["op"] + " on " + before["net"]).to_numpy(),
        hidden_ns=np.minimum(moving[first[fit]], moving[second[fit]]),
    )
    return result


def find(context: Context) -> list[Finding]:
    """Return one finding a pair of ops and groups.

    Toll: the shorter of each pair, per step on the rank where that is most. It is a bound on what running
    them side by side saves where they use different links. Whether the second needs the first's result no
    record tells, so the finding is never more than possible.
    """
    if context.on_cpu or not context.step_ns:
        return []
    rows = pairs(context)
    if rows.empty:
        return []
    result = tally(rows, ("after", "op", "net"), ("hidden_ns", "message_bytes"), context.steps)
    shares = [context.share(line.figures["hidden_ns"], context.steps) or 0.0 for line in result.lines]
    return [
        _finding(line, share, Rows.of(collectives=result.places(line)))
        for line, share in zip(result.lines, shares, strict=True)
        if share >= LEAST_SHARE
    ]


def _finding(line: Line, share: float, rows: Rows) -> Finding:
    toll, op = line.figures["hidden_ns"], str(line.first["op"])
    return Finding(
        kind="serialized-collectives",
        severity="info",
        title=f"{op} on {line.first['net']} runs right after {line.first['after']}, "
        f"{times(line.each, 'time')} per step, with nothing computed meanwhile: side by side they could "
        f"save {some_time(toll)} ({percent(share)})",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=toll,
        bytes=line.figures["message_bytes"],
        count=line.count,
        ranks=line.ranks,
        where=Where(op=op, group=line.text("group"), mesh_dim=line.text("mesh_dim")),
        rows=rows,
        evidence=(
            Evidence("pairs in all", line.total),
            Evidence("longest gap between the two that counts", GAP_NS, "ns"),
        ),
        remedy=Remedy(
            "Issue both with async_op=True before waiting for either, if the second does not need the "
            "first's result. CUDA_DEVICE_MAX_CONNECTIONS=1 puts all launches in one queue: raise it where "
            "the framework allows.",
            _code(op, line.text("after"), line.text("mesh_dim")),
            "both at once on links they do not share",
        ),
        confidence="possible",
    )


def _code(op: str, after: str | None, mesh_dim: str | None) -> str:
    """Return both calls; `after`: the first one's op and group, as `all_reduce on mesh dim dp`."""
    before, _, net = (after or "").partition(" on ")
    dim = net.removeprefix("mesh dim ") if net.startswith("mesh dim ") else None
    return (
        f"first = {remedy_code.call(before, dim, 'a', asynchronous=True)}\n"
        f"second = {remedy_code.call(op, mesh_dim, 'b', asynchronous=True)}\n"
        "first.wait()\n"
        "second.wait()"
    )
