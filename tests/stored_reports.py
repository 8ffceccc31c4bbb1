"""Renews tests/data/first_screens, reports of jobs that are too slow for a test.

    shardtoll demo --out out/demo
    python benchmarks/synthetic_job.py out/job --ranks 1000 --hosts 125 --steps 3 --layers 4 \\
        --straggler 417 --cause forward
    shardtoll report out/job -o out/job.json
    python -m tests.stored_reports out/demo out/job.json

Then run tests/unit/dashboards/terminal/test_first_screens_of_jobs.py with `--renew-golden`, and read it.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Final

STORED: Final = Path(__file__).resolve().parent / "data" / "first_screens"
ATTEMPTS: Final = ("dit-chunk", "dit-scatter", "dit-partial", "dit-dtensor")
LEFT_OUT: Final = (
    "groups",
    "collectives",
    "computes",
    "counts",
    "notices",
    "leadups",
    "stalls",
    "values",
    "parameters",
    "device_ops",
)
"""Lists of a report that its first screen does not need."""


def kept(report: Path) -> bytes:
    """Return a saved report without what its first screen does not need, the same bytes each time."""
    whole = json.loads(report.read_text(encoding="utf-8"))
    small = {name: [] if name in LEFT_OUT else value for name, value in whole.items()}
    return gzip.compress(json.dumps(small, separators=(",", ":")).encode(), mtime=0)


def main(demo: str, synthetic: str) -> None:
    """Write every stored report."""
    for name in ATTEMPTS:
        (STORED / f"demo-{name}.json.gz").write_bytes(kept(Path(demo) / name / "report.json"))
    (STORED / "synthetic-1000-ranks.json.gz").write_bytes(kept(Path(synthetic)))


if __name__ == "__main__":
    main(*sys.argv[1:])
