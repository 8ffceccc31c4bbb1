"""`shardtoll verify` on real runs: one training sharded in several ways, and incidents with their twins."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from shardtoll.analyzers.two_runs.same_finding import numbered
from shardtoll.analyzers.verify.verify import verify
from shardtoll.ledger import Finding, Report, analyze, read_run
from shardtoll.ledger.answers.verification import Verification
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


def test_flat_shards_compare_with_each_other_and_with_nothing_else(baseline: Report, tmp_path: Path):
    for ranks in (2, 4):
        run_ranks(programs.train, ranks, "fsdp1", str(tmp_path / str(ranks)))
    two, four = (load(tmp_path / str(ranks)) for ranks in (2, 4))
    assert verified(two, four).gradients.answer == "equal"
    found = verified(baseline, four).gradients
    assert found.answer == "unknown"
    assert "flat shards, as FSDP1's, in one run only" in found.why


def test_a_loss_scaled_by_two_gives_other_gradients_and_says_by_how_much(baseline: Report, tmp_path: Path):
    run_ranks(programs.train, 2, "fsdp", str(tmp_path), scale=2.0)
    found = verified(baseline, load(tmp_path)).gradients
    assert found.answer == "differ"
    assert len(found.differences) == 4
    assert {one.step for one in found.differences} == {0}
    assert all(one.factor == pytest.approx(2, rel=1e-4) for one in found.differences)


SAME: Final = (
    "dit_scatter", "dit_dtensor", "accum_sync", "accum_sync_ddp", "fsdp_ac_regather", "colwise_allreduce",
    "sp_norm_adamw", "fp32_reduce",
)  # fmt: skip
"""Incidents that waste time or bytes: the mended twin makes the same gradients."""
CHANGED: Final = ("dit_chunk", "router_drift", "late_param", "ddp_no_sampler", "epoch_order")
"""Incidents that train wrongly: the mended twin makes other gradients, as it must."""


def both(name: str, folder: Path) -> tuple[Report, Report, list[str]]:
    """Run an incident and its twin; their reports, and the expected findings' numbers on the first bill."""
    incident = import_module(f"shardtoll.samples.incidents.{name}").INCIDENT
    run_ranks(programs.twins, incident.ranks, name, str(folder), backend=incident.backend)
    before, after = load(folder / "bad"), load(folder / "fixed")
    wanted = [
        str(number)
        for number, finding in numbered(before)
        for expected in incident.expected
        if finding.kind == expected.kind and expected.place in _places(finding)
    ]
    assert wanted, [(finding.kind, finding.where) for finding in before.findings]
    return before, after, wanted


def _places(finding: Finding) -> str:
    where = finding.where
    parts = (where.parameter, where.module, where.source, where.op, where.mesh_dim)
    return "\n".join(part for part in parts if part)


@pytest.mark.parametrize("name", SAME)
def test_a_twin_that_wastes_nothing_makes_the_same_gradients(name: str, tmp_path: Path):
    before, after, wanted = both(name, tmp_path)
    found = verified(before, after, *wanted)
    assert {one.verdict for one in found.findings} == {"gone"}, [one.why for one in found.findings]
    assert found.gradients.answer == "equal", found.gradients.why
    assert found.passed
    itself = verified(before, before, *wanted)
    assert {one.verdict for one in itself.findings} == {"still there"}
    assert not itself.passed


@pytest.mark.parametrize("name", CHANGED)
def test_a_twin_that_trains_rightly_makes_other_gradients(name: str, tmp_path: Path):
    before, after, wanted = both(name, tmp_path)
    found = verified(before, after, *wanted)
    assert {one.verdict for one in found.findings} == {"gone"}, [one.why for one in found.findings]
    assert (found.gradients.answer, found.gradients.change_expected) == ("differ", True)
    assert found.passed
    backwards = verified(after, before)
    assert {finding.kind for finding in backwards.new} >= {one.finding.kind for one in found.findings}
    assert not backwards.passed, "the other way round the change breaks the training"
