"""Incomplete records, or ranks that did not do the same: rules 2 and 4 of the accounting."""

from __future__ import annotations

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.trust.counted import (
    blurred,
    by_two_threads,
    numbers,
    off,
    two_threads,
    unseen,
    where_of,
)
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Where
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks

EXAMPLES = 5
"""Disagreements shown as evidence; all are counted."""


def find(context: Context) -> list[Finding]:
    """Return one finding a group whose count is off, and one a group whose ranks disagree.

    Steps that a seen rank of the group did not finish, and rows outside every step, prove nothing:
    `incomplete-input` has them. A group that two threads use proves nothing either. These findings have no
    toll: they say what not to trust. Watching lists fewer than were issued by design: this is not an error.
    """
    return [*_incomplete(context), *_disagreeing(context)]


def _incomplete(context: Context) -> list[Finding]:
    counts, unsure = off(context), blurred(context)
    findings = []
    for name in sorted(set(unsure["group"])):
        rows = keep(unsure, unsure["group"] == name)
        findings.append((unseen if rows["unseen"].all() else by_two_threads)(context, name, rows))
    for name in sorted(set(counts["group"])):
        rows = keep(counts, counts["group"] == name)
        if rows["unseen"].all():
            findings.append(unseen(context, name, rows))
            continue
        issued, recorded = int(rows["issued"].sum()), int(rows["recorded"].sum())
        where = where_of(context, name)
        seen = tuple(sorted({int(rank) for rank in rows["rank"]}))
        # A surplus in one step must not hide a deficit in another.
        wrong = int((rows["issued"] - rows["recorded"]).abs().sum())
        findings.append(
            Finding(
                kind="unmatched-collectives",
                severity="error",
                title=f"group {where.mesh_dim or name} issued {times(issued, 'collective')}, {recorded} "
                f"are on record, on {ranks(seen)}: the bill misses or doubles {wrong}",
                toll_ns=None,
                floor_ns=None,
                saving_ns=None,
                bytes=None,
                count=wrong,
                ranks=seen,
                where=where,
                evidence=numbers(rows),
                remedy=Remedy(
                    "Report the program as a defect of the capture: some collectives bypassed it, or were "
                    "counted twice. Times and bytes of this group are incomplete."
                ),
            )
        )
    return findings


def _finished(context: Context) -> dict[int, set[int]]:
    """Return step -> ranks that finished it."""
    finished: dict[int, set[int]] = {}
    for step, rank in zip(context.step_rows["step"], context.step_rows["rank"], strict=True):
        finished.setdefault(int(step), set()).add(int(rank))
    return finished


def _suspects(context: Context) -> pd.DataFrame:
    """Return the records of slots that disagree, in steps that every seen rank of the group finished."""
    marks = context.matches.rows
    frame = context.collectives.assign(
        **{name: marks[name].to_numpy() for name in ("slot_id", "suspect", "by_order")}
    )
    frame = keep(frame, frame["suspect"] & frame["step"].notna())
    seen = set(context.ledger.run.ranks_seen)
    finished = _finished(context)
    pairs = frame[["group_id", "step"]].drop_duplicates()
    sound = {
        (int(group), int(step))
        for group, step in pairs.itertuples(index=False)
        if seen.intersection(context.matches.members[int(group)]) <= finished.get(int(step), set())
    }
    kept = [pair in sound for pair in zip(frame["group_id"], frame["step"], strict=True)]
    return keep(frame, np.array(kept, dtype=bool))


def _disagreeing(context: Context) -> list[Finding]:
    frame = _suspects(context)
    # Which of two threads comes first may differ from rank to rank without any harm to their calls.
    frame = keep(frame, ~frame["group"].isin(two_threads(context)))
    off_counts = off(context)
    lacking = set(zip(off_counts["group"], off_counts["step"], strict=True))
    seen = set(context.ledger.run.ranks_seen)
    findings = []
    group_ids = frame["group_id"].to_numpy(dtype=np.int64)
    for group_id in np.unique(group_ids):
        rows = keep(frame, group_ids == group_id)
        wanted = seen.intersection(context.matches.members[group_id])
        group, mesh_dim = str(rows["group"].iloc[0]), rows["mesh_dim"].iloc[0]
        slots = rows.groupby("slot_id")
        differ = (slots["op"].nunique() > 1) | (slots["message_bytes"].nunique() > 1)
        # A record that the count already misses is one defect, not two.
        is_lacking = np.array([(group, step) in lacking for step in slots["step"].first()], dtype=bool)
        wrong = list(differ.index[differ.to_numpy(dtype=bool) | ~is_lacking])
        if not wrong:
            continue
        by_order = bool(rows["by_order"].iloc[0])
        where = Where(group=group, mesh_dim=None if pd.isna(mesh_dim) else str(mesh_dim))
        examples = [_example(keep(rows, rows["slot_id"] == slot), wanted) for slot in wrong[:EXAMPLES]]
        findings.append(
            Finding(
                kind="unmatched-collectives",
                severity="warning" if by_order else "error",
                title=f"{ranks(wanted)} of group {where.mesh_dim or group} issued different collectives: "
                f"{times(len(wrong), 'disagreement')}, first at {examples[0].label}: {examples[0].value}",
                toll_ns=None,
                floor_ns=None,
                saving_ns=None,
                bytes=None,
                count=len(wrong),
                ranks=tuple(sorted(wanted)),
                where=where,
                rows=Rows.of(collectives=keep(rows, rows["slot_id"].isin(wrong)).index),
                evidence=tuple(examples),
                remedy=Remedy(
                    "Look for a branch that depends on the rank or its data. Every rank of a group must "
                    "call the same collectives with the same sizes in the same order."
                ),
                confidence="possible" if by_order else "certain",
            )
        )
    return findings


def _example(rows: pd.DataFrame, wanted: set[int]) -> Evidence:
    """Return what each rank did in one slot: `all_reduce of 4096 bytes on rank 0, nothing on rank 1`."""
    first = rows.iloc[0]
    label = f"step {first['step']}" + ("" if pd.isna(first["seq"]) else f" seq {first['seq']}")
    said: dict[str, list[int]] = {}
    for row in rows.to_dict("records"):
        size = "an unknown size" if pd.isna(row["message_bytes"]) else f"{row['message_bytes']} bytes"
        said.setdefault(f"{row['op']} of {size}", []).append(int(row["rank"]))
    absent = wanted - {int(rank) for rank in rows["rank"]}
    if absent:
        said["nothing"] = sorted(absent)
    return Evidence(label, ", ".join(f"{what} on {ranks(who)}" for what, who in said.items()))
