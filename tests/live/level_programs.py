"""Every strategy's sample under the default schedule: what watched steps say, against a surveyed one."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist

STEPS = 6
FOLLOWED = (
    *("input_content", "output_hash", "output_content", "used_bytes", "used_by"),
    *("cut_from_hash", "cut_from_content", "cut_by_placement"),
    *("read_hash", "read_dimension", "read_carries_gradient"),
    *("optimizer_steps", "gradients_begun", "uncleared_steps", "loss_classes"),
)
"""What only surveyed steps tell; of watched ones it is unknown."""
MEASURED = ("step", "issue_ns", "start_ns", "duration_ns", "exposed_ns", "input_hash", *FOLLOWED)


def watched_like_surveyed(variants: list[list[str]]) -> dict[str, Any]:
    """Per `strategy:variant`: levels, what differs from the last surveyed step, what is off."""
    from shardtoll.profiler import audit
    from shardtoll.samples.strategies import common

    options, device = common.Options(device="cpu"), torch.device("cpu")
    found = {}
    for strategy, variant in variants:
        build = importlib.import_module(f"shardtoll.samples.strategies.{strategy}").VARIANTS[variant]
        torch._dynamo.reset()
        job = build(options, device)
        job.step(0)
        with audit(job.model) as session:
            for number in range(1, STEPS + 1):
                with session.step():
                    job.step(number)
        dist.barrier()
        if session.ledger is not None:
            found[f"{strategy}:{variant}"] = _compared(session.ledger.tables)
    return found


def _compared(tables: Any) -> dict[str, Any]:
    steps = tables["steps"].to_pylist()
    rows = tables["collectives"].to_pylist()
    counts = tables["counts"].to_pylist()
    levels = [s["level"] for s in steps if s["rank"] == 0]
    by_level: dict[str, set[tuple[int, int]]] = {"survey": set(), "watch": set()}
    for step in steps:
        by_level[step["level"]].add((step["step"], step["rank"]))
    differences = []
    for rank in sorted({s["rank"] for s in steps}):
        surveyed = max(s["step"] for s in steps if s["rank"] == rank and s["level"] == "survey")
        for number in [s["step"] for s in steps if s["rank"] == rank and s["step"] > surveyed]:
            differences += _differences(_of(rows, surveyed, rank), _of(rows, number, rank), number, rank)
    return {
        "levels": levels,
        "rows": len(_of(rows, max(s["step"] for s in steps), 0)),
        "differences": differences,
        "incomplete": [c for c in counts if c["issued"] != c["recorded"]],
        "parts": [_off(s, rows) for s in steps],
        "times_missing": {
            # What was in flight when a recording ended may have been cut off; what always is, is not known.
            level: sorted(
                {_name(c) for c in rows if (c["step"], c["rank"]) in of}
                - {_name(c) for c in rows if (c["step"], c["rank"]) in of and c["duration_ns"] is not None}
            )
            for level, of in by_level.items()
        },
        "exposed_ns": sum(s["exposed_comm_ns"] for s in steps if s["level"] == "watch"),
        "notices": [n["text"] for n in tables["notices"].to_pylist()],
    }


def _name(row: dict[str, Any]) -> str:
    return f"{row['op']} of {row['caused_by_op']}"


def _of(rows: list[dict[str, Any]], step: int, rank: int) -> list[dict[str, Any]]:
    """The rows of a step in their order, numbers counted from the first of each group."""
    mine = [dict(c) for c in rows if c["step"] == step and c["rank"] == rank]
    first: dict[str, int] = {}
    for row in mine:
        if row["seq"] is not None:
            row["seq"] -= first.setdefault(row["group"], row["seq"])
    return mine


def _differences(
    surveyed: list[dict[str, Any]], watched: list[dict[str, Any]], step: int, rank: int
) -> list[str]:
    if len(surveyed) != len(watched):
        return [f"step {step} rank {rank}: {len(watched)} rows, not {len(surveyed)}"]
    return [
        f"step {step} rank {rank} row {at} {name}: {b[name]!r}, not {a[name]!r}"
        for at, (a, b) in enumerate(zip(surveyed, watched, strict=True))
        for name in a
        if (b[name] is not None if name in FOLLOWED else name not in MEASURED and a[name] != b[name])
    ]


def _off(step: dict[str, Any], rows: list[dict[str, Any]]) -> int:
    """By how many ns the step's parts, and its rows' exposed times, are off."""
    parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
    mine = [c["exposed_ns"] for c in rows if c["step"] == step["step"] and c["rank"] == step["rank"]]
    return abs(sum(step[part] for part in parts) - step["duration_ns"]) + abs(
        sum(mine) - step["exposed_comm_ns"]
    )
