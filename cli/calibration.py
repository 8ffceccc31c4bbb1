"""Measuring this machine: a job of ranks times collectives, and a fabric is fitted to the times."""

from __future__ import annotations

import json
from pathlib import Path

from shardtoll.analyzers.roofline import Fabric, load_fabric
from shardtoll.analyzers.roofline.measured import calibrated
from shardtoll.cli.ranks import run_job
from shardtoll.ledger.measured import Timings


def measure_fabric(ranks: int, *, seconds: float, folder: Path, limit_s: float) -> Fabric:
    """Return the fabric of `ranks` gloo processes on this machine; points and output stay in `folder`.

    Measures for about `seconds` after the job has started. Raises JobError when a rank fails.
    """
    points_file = folder / "calibration.json"
    run_job(
        "shardtoll.profiler.calibrate",
        ["-o", str(points_file), "--limit-s", str(seconds)],
        ranks=ranks,
        limit_s=limit_s,
        log=folder / "calibration.log",
    )
    points = json.loads(points_file.read_text())["points"]
    provenance = f"measured on this machine: {len(points)} timed collectives between {ranks} gloo ranks"
    samples: dict[tuple[str, int], dict[int, list[int]]] = {}
    for point in points:
        of_group = samples.setdefault((point["op"], point["group_size"]), {})
        of_group.setdefault(point["message_bytes"], []).append(point["time_ns"])
    timings = [Timings(op, size, 1, times, "this machine") for (op, size), times in samples.items()]
    return calibrated(load_fabric("loopback-gloo"), timings, provenance)
