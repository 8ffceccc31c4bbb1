"""The parts of the step before are those of the report; after edits they change as in replay."""

from __future__ import annotations

import pandas as pd
import pytest

from shardtoll.analyzers.whatif.anatomy import changed_as, of_step
from shardtoll.ledger import Report, analyze
from shardtoll.ledger.answers.what_if import Parts
from shardtoll.profiler.traces import read_traces
from tests.shared_inputs import shared
from tests.unit.analyzers.compare_runs import made
from tests.unit.analyzers.whatif.test_live_steps import made as live_job

NAMES = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns")
TRACES = (
    "hta_nccl_data_rank0of2.json.gz",
    "hta_sampled_rank0of128.json.gz",
    "param_dlrm_v100_8ranks",
    "tracelens_b200_eager_rank0of8.json.gz",
    "tracelens_mi300_resnet_rank0of8.json.gz",
    "outside/rtx4090_tp2",
    "outside/primus_pp8",
)


def assert_same(report: Report, rows: pd.DataFrame) -> None:
    """The answer's parts before any change are the means of these rows, to a rounding."""
    answer = report.whatif(gpu=1.0)
    own = rows["duration_ns"] - rows["capture_ns"]
    means = rows.assign(own=own)[["rank", "own", *NAMES]].astype("float64").groupby("rank").mean()
    assert len(answer.ranks) > 0
    for each in answer.ranks:
        row = means.loc[each.rank]
        wanted = [row["own"], *(row[name] for name in NAMES)]
        assert [each.before.step_ns, *(getattr(each.before, name) for name in NAMES)] == pytest.approx(
            wanted, abs=1
        )
        assert each.after == each.before
    slowest = means.loc[answer.slowest_before]
    assert answer.before.step_ns == pytest.approx(means["own"].max(), abs=1)
    assert answer.before.compute_ns == pytest.approx(slowest["compute_ns"], abs=1)


@pytest.mark.parametrize("name", TRACES)
def test_before_a_change_a_trace_divides_as_its_report_does(name: str) -> None:
    (read,) = read_traces([str(shared("traces", *name.split("/")))], cache=False, jobs=1)
    report = analyze(read.ledger)
    assert_same(report, report.steps)


def test_before_a_change_a_live_run_divides_as_its_report_does() -> None:
    surveyed = made(0)
    assert_same(surveyed, surveyed.steps)
    # Only the surveyed step has parts; the step that is changed is the watched ones'.
    report = analyze(live_job())
    answer = report.whatif(gpu=1.0)
    watched = report.steps[report.steps["level"] == "watch"]
    for each in answer.ranks:
        rows = watched[watched["rank"] == each.rank]
        assert each.before.step_ns == pytest.approx(rows["duration_ns"].mean(), abs=1)
        assert each.before.exposed_comm_ns == pytest.approx(rows["exposed_comm_ns"].mean(), abs=1)


def test_a_part_shrinks_in_proportion_and_grows_by_as_much() -> None:
    on_record, replayed = Parts(100, 40, 30, 10, 20), Parts(100, 20, 40, 10, 30)
    # Half the replayed compute is half the compute on record; copies are gone; 10 more of communication.
    after = changed_as(on_record, replayed, Parts(90, 10, 50, 0, 30))
    assert after == Parts(90, 20, 40, 0, 30)
    assert changed_as(on_record, replayed, replayed) == on_record
    # What replay does not have at first comes in whole.
    assert changed_as(on_record, Parts(100, 0, 0, 0, 100), Parts(150, 10, 0, 0, 140)) == Parts(
        150, 50, 30, 10, 60
    )


def test_parts_that_do_not_fit_shrink_alike_and_none_is_gone() -> None:
    # Both divisions are sound, but the changed compute and the recorded communication exceed the step.
    after = changed_as(Parts(100, 60, 30, 5, 5), Parts(100, 90, 5, 5, 0), Parts(60, 50, 5, 5, 0))
    assert (after.step_ns, after.exposed_copy_ns, after.rest_ns) == (60, 4, 1)
    assert after.compute_ns + after.exposed_comm_ns + after.exposed_copy_ns + after.rest_ns == 60


@pytest.mark.parametrize("step_ns", [80, 90, 100, 120])
def test_parts_add_up_to_the_step_that_is_predicted(step_ns: int) -> None:
    made = of_step(Parts(100, 60, 30, 0, 10), step_ns)
    parts_ns = made.compute_ns + made.exposed_comm_ns + made.exposed_copy_ns + made.rest_ns
    assert (made.step_ns, parts_ns) == (step_ns, step_ns)
    assert made.rest_ns >= 0
