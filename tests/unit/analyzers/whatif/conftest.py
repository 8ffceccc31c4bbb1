"""Made-up jobs, analysed and replayed.

A test that does not ask for `changed_bills` gets answers without the findings that vanish and appear: two
more reports an answer, two thirds of its time. `make fuzz` sets SHARDTOLL_WHOLE: then every answer has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from shardtoll.analyzers.context.context import Context, make_context
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.analyzers.whatif import answer
from shardtoll.ledger import Ledger, Report, analyze
from shardtoll.profiler.traces import read_traces
from tests.unit.analyzers.of_kinds import WHOLE

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
import synthetic_job
from synthetic.spec import Spec


@dataclass(frozen=True)
class Job:
    """A made-up job; its report is made when a test first asks for it."""

    ledger: Ledger
    context: Context
    recorded: Recorded

    @cached_property
    def report(self) -> Report:
        return analyze(self.ledger)


@pytest.fixture
def changed_bills() -> None:
    """Have answers say which findings vanish and appear."""


@pytest.fixture(autouse=True)
def _bills(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not WHOLE and "changed_bills" not in request.fixturenames:
        monkeypatch.setattr(answer, "changed_bill", lambda *_: ((), ()))


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
            made[key] = Job(read.ledger, context, recorded)
        return made[key]

    return of
