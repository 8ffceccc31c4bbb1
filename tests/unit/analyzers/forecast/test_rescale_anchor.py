"""The run that corrects a forecast: it must say something of the run's own steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.forecast.rescale.other_sizes import scale_run
from shardtoll.analyzers.forecast.rescale.sent_price import Machine
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.dashboards.forecast.scaling_shown import headline, markdown
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.answers.forecast import Scaling
from shardtoll.ledger.report.report import FabricInfo
from tests.unit.analyzers.ledgers import MS, compute, ledger, run_of, step

MACHINE = Machine(load_fabric("loopback-gloo"), None, 8)


def report(took_ms: int, **of_run: object) -> Report:
    """A rank that computes all of its one step."""
    made = ledger(
        run=replace(run_of(1), **of_run),
        steps=[step(0, 0, duration_ns=took_ms * MS, compute_ns=took_ms * MS, exposed_comm_ns=0, idle_ns=0)],
        computes=[compute(duration_ns=took_ms * MS)],
    )
    return Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)


def scaled(run: Report, anchor: Report | None, world: int = 1) -> Scaling:
    return scale_run(run, "a", MACHINE, MACHINE, world, anchor)


def test_a_measured_run_of_the_same_gpu_corrects_a_step() -> None:
    made = scaled(report(100), report(150))
    assert made.weak[0].step_ns.expected == pytest.approx(150 * MS)
    assert made.calibration == "1 rank"
    assert "corrected by the run on 1 rank" in markdown(made)
    assert headline(made).startswith("On 1 rank the step takes 150 ms")
    # A forecast may be corrected by a measurement, and by another forecast.
    for source in ("live", "dry"):
        corrected = scaled(report(100, source="dry"), report(150, source=source))
        assert corrected.weak[0].step_ns.expected == pytest.approx(150 * MS)


def test_a_forecast_corrects_no_measured_step_and_another_gpu_none() -> None:
    with pytest.raises(UsageError, match="a forecast corrects no measured step"):
        scaled(report(100), report(150, source="dry"))
    with pytest.raises(UsageError, match="the run is on cpu, and the one that corrects on h100-sxm"):
        scaled(report(100), report(150, device="NVIDIA H100 80GB HBM3"))


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("device", "other", "whose"),
    [
        ("cuda", H100, "the run was on is unknown: it is taken to be h100-sxm"),
        (H100, "cuda", "the run that corrects was on is unknown: it is taken to be h100-sxm"),
        (H100, None, "the run that corrects was on is unknown: it is taken to be h100-sxm"),
        ("cuda", None, "the runs were on is unknown: both are taken to be the same"),
    ],
)
def test_a_gpu_that_a_record_does_not_name_may_be_the_same(
    device: str | None, other: str | None, whose: str
) -> None:
    made = scaled(report(100, device=device), report(150, device=other))
    assert made.weak[0].step_ns.expected == pytest.approx(150 * MS)
    (note,) = [note for note in made.notes if note.startswith("which GPU ")]
    assert note.startswith(f"which GPU {whose}")


def test_two_named_gpus_are_two_and_one_needs_no_note() -> None:
    with pytest.raises(UsageError, match="the run is on Some GPU, and the one that corrects on h100-sxm"):
        scaled(report(100, device="Some GPU"), report(150, device=H100))
    assert not scaled(report(100, device=H100), report(150, device=H100)).notes
    # A nameless GPU is no CPU.
    with pytest.raises(UsageError, match="the run is on cpu, and the one that corrects on a GPU"):
        scaled(report(100), report(150, device="cuda"))
