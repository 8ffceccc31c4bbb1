"""`shardtoll verify` on real runs: one training sharded in several ways, and incidents with their twins."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from shardtoll.analyzers.verify import verify
from shardtoll.ledger import Report, analyze, read_run
from shardtoll.ledger.verification import Verification
from shardtoll.samples.incidents import NAMES
from tests.live import verify_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live


def load(folder: Path) -> Report:
    return analyze(read_run(folder))


def verified(before: Report, after: Report, *wanted: str) -> Verification:
    return verify(before, after, ("before", "after"), wanted)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("ddp")
    run_ranks(programs.train, 2, "ddp", str(folder))
    return load(folder)


@pytest.mark.parametrize(("kind", "ranks"), [("fsdp", 2), ("ddp", 4), ("fsdp", 3 + 1), ("fsdp-tp", 4)])
def test_the_same_batch_gives_the_same_gradients_however_it_is_sharded(
    baseline: Report, kind: str, ranks: int, tmp_path: Path
):
    run_ranks(programs.train, ranks, kind, str(tmp_path))
    found = verified(baseline, load(tmp_path)).gradients
    assert found.answer == "equal", found.why
    assert (found.parameters, found.steps) == (4, programs.STEPS)


def test_a_loss_scaled_by_two_gives_other_gradients_and_says_by_how_much(baseline: Report, tmp_path: Path):
    run_ranks(programs.train, 2, "fsdp", str(tmp_path), scale=2.0)
    found = verified(baseline, load(tmp_path)).gradients
    assert found.answer == "differ"
    assert len(found.differences) == 4
    assert {one.step for one in found.differences} == {0}
    assert all(one.factor == pytest.approx(2, rel=1e-4) for one in found.differences)


SAME_GRADIENTS = frozenset(
    {"dit_scatter", "accum_sync", "accum_sync_ddp", "fsdp_ac_regather", "logging_gather", "colwise_allreduce",
     "bmm_gather", "sp_norm_adamw", "clip_many"}
)  # fmt: skip
"""Incidents that cost time and change no number: the twin's gradients are the same."""
THERE = [name for name in NAMES if find_spec(f"shardtoll.samples.incidents.{name}") is not None]


@cache
def _both(name: str, folder: Path) -> tuple[Report, Report]:
    incident = import_module(f"shardtoll.samples.incidents.{name}").INCIDENT
    run_ranks(programs.twins, incident.ranks, name, str(folder), backend=incident.backend)
    return load(folder / "bad"), load(folder / "fixed")


@pytest.mark.parametrize("name", [name for name in THERE if name in SAME_GRADIENTS])
def test_the_mended_twin_of_an_incident_is_verified(name: str, tmp_path: Path):
    incident = import_module(f"shardtoll.samples.incidents.{name}").INCIDENT
    before, after = _both(name, tmp_path)
    kinds = sorted(
        {expected.kind for expected in incident.expected} - {"exposed-communication", "latency-bound"}
    )
    if not kinds:
        pytest.skip("only times are expected of it")
    found = verified(before, after, *kinds)
    assert {one.verdict for one in found.findings} == {"gone"}, [
        (one.finding.title, one.why) for one in found.findings
    ]
    assert found.gradients.answer == "equal", found.gradients.why
    assert found.passed
    against_itself = verified(before, before, *kinds)
    assert {one.verdict for one in against_itself.findings} == {"still there"}
