"""A recording of torch's profiler read without shardtoll: what computed, and what communication stood bare.

Intervals are taken inside the marks of the program's steps (`ProfilerStep#` or ours), each kernel cut at
them. Communication is what NCCL runs; copies and fills are neither.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

Span = tuple[float, float]


def breakdown(trace: Path) -> dict[str, float] | None:
    """Return ms of compute, exposed communication and all steps; None without a device timeline."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    steps = sorted(
        _span(event) for event in events if event.get("cat") == "user_annotation" and _is_step(event)
    )
    if not kernels or not steps:
        return None
    compute = _union([_span(event) for event in kernels if "nccl" not in event["name"].lower()])
    moving = _union([_span(event) for event in kernels if "nccl" in event["name"].lower()])
    within = _union(steps)
    computed, moved = _both(compute, within), _both(moving, within)
    return {
        "compute": _length(computed) / 1e3,
        "exposed": (_length(moved) - _length(_both(moved, computed))) / 1e3,
        "took": _length(within) / 1e3,
    }


def hta_compute(trace: Path) -> dict[str, float] | None:
    """Return what HTA says the device computed, in ms; None where HTA is not installed.

    `rounded` is the union of the kernels here, both ends of each moved to whole microseconds inside it, as
    HTA 0.5 reads them (`round_down_time_stamps`): of short kernels little is left. `exact` is without that.
    HTA's temporal breakdown is not asked: it fails where these sums leave less than nothing for the rest.
    """
    try:
        from hta.trace_analysis import TraceAnalysis
    except ImportError:
        return None
    analysis: Any = TraceAnalysis(
        trace_files={0: str(trace)}, trace_dir=str(trace.parent), include_last_profiler_step=True
    )
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    # What overlaps copies is a kind of its own.
    computes = kinds["kernel_type"].str.contains("COMPUTATION")
    compute_us = float(kinds.loc[computes, "sum"].sum())
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "kernel"]
    spans = [_span(event) for event in events if "nccl" not in event["name"].lower()]
    inside = [(float(math.ceil(begin)), float(math.floor(end))) for begin, end in spans]
    return {
        "compute": compute_us / 1e3,
        "rounded": _length(_union([(begin, end) for begin, end in inside if begin < end])) / 1e3,
        "exact": _length(_union(spans)) / 1e3,
    }


def _is_step(event: dict[str, Any]) -> bool:
    name = str(event["name"])
    return name.startswith("ProfilerStep#") or ("shardtoll" in name.lower() and "step" in name.lower())


def _span(event: dict[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _union(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _both(left: list[Span], right: list[Span]) -> list[Span]:
    found: list[Span] = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            found.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in spans)
