"""Made-up jobs, analysed and replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.ledger import Report, analyze
from shardtoll.profiler.traces import read_traces

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
import synthetic_job
from synthetic.spec import Spec

Job = tuple[Report, Context, Recorded]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Return a function that makes a job of four ranks with these knobs, once."""
    made: dict[str, Job] = {}

    def of(**knobs: Any) -> Job:
        key = repr(sorted(knobs.items()))
        if key not in made:
            folder: Path = tmp_path_factory.mktemp("job") / "job"
            synthetic_job.write_job(folder, Spec(**{"ranks": 4, "steps": 2, "layers": 4} | knobs))
            (read,) = read_traces([str(folder)], cache=False, jobs=1)
            context = make_context(read.ledger, choose_fabric(read.ledger.run))
            recorded = recorded_graph(context)
            assert recorded is not None
            made[key] = analyze(read.ledger), context, recorded
        return made[key]

    return of
