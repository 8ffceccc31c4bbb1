"""Measuring this machine: a job of ranks times collectives, and a fabric is fitted to the times."""

from __future__ import annotations

import json
from pathlib import Path

from shardtoll.analyzers.roofline import Fabric, MeasuredPoint, fit_fabric, load_fabric
from shardtoll.cli.ranks import run_job


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
    points = [MeasuredPoint(**point) for point in json.loads(points_file.read_text())["points"]]
    provenance = f"measured on this machine: {len(points)} timed collectives between {ranks} gloo ranks"
    return fit_fabric(points, load_fabric("loopback-gloo"), provenance)
