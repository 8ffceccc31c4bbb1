"""Made-up jobs for tests: what is true of one, and what we read from its traces. Each is made once."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from synthetic.spec import Spec
from synthetic_job import write_job

from shardtoll.ledger import Finding, Report, analyze
from shardtoll.profiler.traces.job.job import Job, read_traces

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@dataclass(frozen=True)
class Told:
    """One made-up job."""

    spec: Spec
    truth: dict[str, Any]
    job: Job

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The collectives' rows as they were read, before any analysis."""
        return self.job.ledger.tables["collectives"].to_pylist()

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.job.ledger.tables["steps"].to_pylist()

    def step(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the truth of a row of the steps' table."""
        found = [s for s in self.truth["steps"] if (s["step"], s["rank"]) == (row["step"], row["rank"])]
        assert len(found) == 1
        return found[0]

    def notices(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.job.ledger.tables["notices"].to_pylist() if row["kind"] == kind]


def write(folder: Path, **knobs: Any) -> tuple[Spec, dict[str, Any]]:
    """Write a job of four ranks, or as the knobs say."""
    spec = Spec(**({"ranks": 4} | knobs))
    return spec, write_job(folder, spec)


@cache
def tell(**knobs: Any) -> Told:
    """Write a job and read it again."""
    folder = tempfile.TemporaryDirectory(prefix="truth-")
    _FOLDERS.append(folder)
    out = Path(folder.name) / "job"
    spec, truth = write(out, **knobs)
    (job,) = read_traces([str(out)], jobs=1, cache=False)
    return Told(spec, truth, job)


@cache
def report(**knobs: Any) -> Report:
    """Return the report of a made-up job."""
    return analyze(tell(**knobs).job.ledger)


def found(kind: str, **knobs: Any) -> list[Finding]:
    """Return the findings of one kind in the report of a made-up job."""
    return [finding for finding in report(**knobs).findings if finding.kind == kind]
