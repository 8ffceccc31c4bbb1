"""What verify says of two made-up runs, where everything is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardtoll.analyzers.two_runs.pair import TwoRuns
from shardtoll.analyzers.verify.verify import _left, verify
from shardtoll.dashboards.verify import verdict
from shardtoll.dashboards.verify.verdict import figures as verdict_lines
from shardtoll.dashboards.words.text import answer
from shardtoll.ledger import KINDS, Count, Figure, Finding, Notice, Report, UsageError, Where
from shardtoll.ledger.answers.overlap import Overlap
from shardtoll.ledger.answers.verification import Quantity, Verification, verification_to_json
from shardtoll.ledger.report.report import FabricInfo
from shardtoll.ledger.report.scores import score_of
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.compare_runs import noisy
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step
from tests.unit.analyzers.sketched import parameter, replicated

G = np.random.default_rng(0).normal(size=(8, 4))
NOISE = np.random.default_rng(3).normal(size=400)


def finding(kind: str = "redundant-collective", **given: Any) -> Finding:
    values: dict[str, Any] = {
        "kind": kind,
        "severity": "warning",
        "title": f"a {kind}",
        "toll_ns": 10 * MS,
        "floor_ns": None,
        "saving_ns": 8 * MS,
        "bytes": 1000,
        "count": 2,
        "ranks": (0, 1),
        "where": Where(parameter="weight", phase="backward"),
    }
    return Finding(**{**values, **given})


def report(
    findings: Sequence[Finding] = (),
    *,
    took_ms: float = 100,
    steps: int = 20,
    noise_ms: float = 1,
    gradient: Any = G,
    run: Any = None,
    seed: int = 0,
    level: str = "survey",
    **given: Any,
) -> Report:
    """Two ranks whose steps take about `took_ms`; of rank 1 by 10 ms more."""
    job = run or run_of(2)
    rows = [
        _step(number, rank, took_ms + 10 * rank + noise_ms * NOISE[number + 31 * seed], level)
        for number in range(steps)
        for rank in job.ranks_seen
    ]
    values: Iterable[Any] = () if gradient is None else replicated(gradient, job.ranks_seen)
    made = ledger(run=job, steps=rows, values=values, parameters=[parameter("weight", G.shape)], **given)
    return Report(made.run, FabricInfo("none", "none"), made.groups, made.tables, tuple(findings))


def _step(number: int, rank: int, took_ms: float, level: str) -> Any:
    took = round(took_ms * MS)
    return step(number, rank, start_ns=number * 200 * MS, duration_ns=took, compute_ns=took - 2 * MS,
                exposed_comm_ns=0, idle_ns=0, unattributed_ns=2 * MS, capture_ns=2 * MS,
                level=level)  # fmt: skip


def verified(before: Report, after: Report, *wanted: str) -> Verification:
    return verify(before, after, ("a", "b"), wanted)


def test_a_finding_that_is_gone_passes():
    found = verified(report([finding()]), report(took_ms=95, seed=1))
    (one,) = found.findings
    assert (one.verdict, found.gradients.answer, found.passed) == ("gone", "equal", True)
    assert found.saving.kept == "kept"
    assert found.saving.measured_ns == pytest.approx(5 * MS, abs=MS)
    assert found.saving.predicted_ns == 8 * MS


def test_a_finding_that_is_still_there_does_not():
    found = verified(report([finding()]), report([finding()]))
    assert [one.verdict for one in found.findings] == ["still there"]
    assert not found.passed


@pytest.mark.parametrize(("kind", "before", "after", "verdict"), [
    ("redundant-collective", {"bytes": 1000}, {"bytes": 500}, "smaller"),
    ("redundant-collective", {"bytes": 1000}, {"bytes": 1000, "toll_ns": 8 * MS}, "still there"),
    ("latency-bound", {"count": 100}, {"count": 40}, "smaller"),
    ("straggler", {"toll_ns": 10 * MS}, {"toll_ns": 9 * MS}, "still there"),
    ("straggler", {"toll_ns": 10 * MS}, {"toll_ns": 2 * MS, "saving_ns": 1 * MS}, "smaller"),
    ("duplicated-compute", {"figures": (Figure("flops_too_many", 100, "flops"),)},
     {"figures": (Figure("flops_too_many", 50, "flops"),)}, "smaller"),
])  # fmt: skip
def test_what_is_left_is_told_by_the_figure_that_the_remedy_changes(
    kind: str, before: dict[str, Any], after: dict[str, Any], verdict: str
):
    (one,) = verified(
        report([finding(kind, **before)]), report([finding(kind, **{**before, **after})]), kind
    ).findings
    assert one.verdict == verdict
    assert not one.why.endswith("larger") or verdict == "still there"


def test_all_that_promised_a_saving_is_looked_at_unless_findings_are_named():
    bill = [
        finding("straggler", where=Where()),
        finding("below-roofline", saving_ns=None),
        finding("wide-dtype", severity="info"),
        finding("unattributed-time", where=Where(), toll_ns=None, saving_ns=None, bytes=None),
        finding("unsynced-parameter", severity="error"),
    ]
    before, after = report(bill), report()
    unasked = verified(before, after)
    assert [one.finding.kind for one in unasked.findings] == ["unsynced-parameter"]
    # No figure stands for what a fix of a roofline would save, so the step's time is not held to it.
    assert [(one.finding.kind, one.promised) for one in unasked.also] == [
        ("straggler", True), ("below-roofline", False), ("wide-dtype", True)
    ]  # fmt: skip
    assert unasked.saving.predicted_ns == 24 * MS
    assert verified(before, after, "unsynced-parameter").also == ()
    assert [one.number for one in verified(before, after, "3").findings] == [3]
    assert [one.finding.kind for one in verified(before, after, "wide-dtype", "2").findings] == [
        "straggler",
        "wide-dtype",
    ]
    only = verified(report([bill[2]]), report([bill[2]]))
    assert (only.findings, [one.verdict for one in only.also], only.passed) == ((), ["still there"], True)
    assert not verified(report([bill[2]]), report([bill[2]]), "wide-dtype").passed, "a named one decides"


LATE, BOUND, SYNCED = (
    finding(kind, where=Where(phase="forward"), saving_ns=saving)
    for kind, saving in (("straggler", 8 * MS), ("exposed-communication", 8 * MS), ("host-sync", None))
)


@pytest.mark.parametrize(
    ("bill", "left", "wanted", "said"),
    [
        ([finding()], [], (), "1 of 1 finding gone"),
        ([finding(), finding("wide-dtype")], [finding()], (), "1 of 2 findings gone"),
        ([finding(), LATE, BOUND, SYNCED], [BOUND], (), "1 of 1 finding gone, 2 others gone"),
        (
            [finding(), LATE, BOUND],
            [replace(BOUND, toll_ns=3 * MS, saving_ns=MS)],
            (),
            "1 of 1 finding gone, 1 other gone, 1 smaller",
        ),
        (
            [finding(), LATE],
            [finding(), replace(LATE, toll_ns=3 * MS, saving_ns=MS)],
            (),
            "0 of 1 finding gone, 1 other smaller",
        ),
        ([finding(), LATE, BOUND], [LATE, BOUND], (), "1 of 1 finding gone"),
        (
            [LATE, BOUND],
            [replace(BOUND, toll_ns=3 * MS, saving_ns=MS)],
            (),
            "no finding decides, 1 gone, 1 smaller",
        ),
        ([LATE, BOUND], [LATE, BOUND], (), "nothing to judge"),
        ([], [LATE], (), "nothing to judge"),
        ([finding(), LATE, BOUND], [], ("straggler",), "1 of 1 finding gone"),
    ],
)
def test_the_headline_counts_findings_that_decide_and_names_the_others_apart(
    bill: list[Finding], left: list[Finding], wanted: tuple[str, ...], said: str
):
    found = verified(report(bill), report(left), *wanted)
    passed = "passed" if found.passed else "not passed"
    assert verdict.headline(found) == f"{passed}: {said}, gradients equal, saving {answer(found.saving.kept)}"


def test_savings_of_the_same_time_count_once_as_on_the_bill():
    late = finding("straggler", where=Where())
    before = replace(
        report([finding(), late]), overlaps=(Overlap((1, 2), 9 * MS), Overlap((1, 2, 3), 99 * MS))
    )
    whole = verified(before, report(took_ms=85, seed=1)).saving
    assert (whole.predicted_ns, whole.kept) == (9 * MS, "exceeded")
    named = verified(before, report(took_ms=85, seed=1), "1").saving
    assert (named.predicted_ns, named.besides_ns) == (8 * MS, 1 * MS)
    assert verified(replace(before, overlaps=()), report(took_ms=85, seed=1)).saving.predicted_ns == 16 * MS


@pytest.mark.parametrize("kind", [
    "straggler", "below-roofline", "exposed-communication", "serialized-collectives", "data-stall",
    "host-sync", "pipeline-bubble", "transfer-stall",
])  # fmt: skip
def test_times_that_are_merely_smaller_or_still_there_do_not_fail(kind: str):
    bill = [finding(), finding(kind, where=Where(phase="forward"))]
    for left in ({"toll_ns": 2 * MS, "saving_ns": MS}, {}):
        after = report([finding(kind, where=Where(phase="forward"), **left)])
        found = verified(report(bill), after)
        assert found.passed
        became = "smaller" if left else "still there"
        assert [one.verdict for one in found.findings] == ["gone"]
        assert [one.verdict for one in found.also] == [became]
        plain = json.loads(json.dumps(verification_to_json(found)))
        # A script may hold each of `findings` to its verdict, as version 1 always had it.
        assert plain["passed"]
        assert all(each["verdict"] == "gone" for each in plain["findings"])
        (other,) = plain["also"]
        assert (other["finding"]["kind"], other["verdict"]) == (kind, became)
        assert other["quantity"]["before"] == 10 * MS
        assert other["finding"]["saving_ns"] == 8 * MS
        places = ("a", "b") if left else ("a",)
        assert [each.place for each in score_of(found, places).findings] == [*places]
        assert not verified(report(bill), after, kind).passed


def test_with_nothing_to_judge_gradients_are_still_compared():
    assert verified(report([finding("recompute", severity="info")]), report()).passed
    assert not verified(report([finding("recompute", severity="info")]), report(gradient=2 * G)).passed


@pytest.mark.parametrize("wanted", ["0", "2", "straggler", "nonsense", "-1"])
def test_a_finding_that_is_not_on_the_bill(wanted: str):
    with pytest.raises(UsageError, match=f"a has no finding '{wanted}': give 1 to 1, or one of redundant"):
        verified(report([finding()]), report(), wanted)


def test_new_findings_are_listed_and_a_new_error_of_correctness_fails():
    new = finding("latency-bound", where=Where(phase="optimizer"))
    found = verified(report([finding()]), report([new, finding("unattributed-time", where=Where())]))
    assert found.new == (new,)
    assert found.passed
    broken = finding("replica-drift", severity="error", where=Where(parameter="bias"))
    assert not verified(report([finding()]), report([broken])).passed


def test_gradients_that_differ_fail_unless_they_were_wrong():
    assert not verified(report([finding()]), report(gradient=2 * G)).passed
    notices = [Notice(0, "gradients-checked", "all equal")]
    wrong = finding("wrong-gradient", severity="error", toll_ns=None, saving_ns=None, bytes=None)
    found = verified(report([wrong], notices=notices), report(gradient=2 * G, notices=notices))
    assert found.passed
    assert found.gradients.change_expected


@pytest.mark.parametrize(("kind", "how"), [
    ("wrong-gradient", "check_gradients"),
    ("duplicated-data", 'checks=("data",)'),
    ("replica-drift", "replicas"),
])  # fmt: skip
def test_absence_proves_nothing_where_nobody_looked(kind: str, how: str):
    extra: dict[str, Any] = {"notices": [Notice(0, "gradients-checked", "looked")]}
    before = report([finding(kind, severity="error")], **extra)
    rows = [
        *replicated(G, (0, 1)),
        *replicated(G, (0, 1), kind="input"),
        *replicated(G, (0, 1), kind="buffer"),
    ]
    before = replace(before, tables={**before.tables, "values": to_table("values", rows)})
    found = verified(before, report())
    (one,) = found.findings
    assert one.verdict == "cannot be told"
    assert how in one.why
    assert not found.passed
    assert verified(before, replace(before, findings=())).findings[0].verdict == "gone"


def test_a_run_that_only_watched_does_not_prove_that_operators_are_shared():
    watched = [step(number, rank, level="watch") for number in range(4) for rank in (0, 1)]
    made = ledger(run=run_of(2), steps=watched)
    after = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    (one,) = verified(report([finding("duplicated-compute")]), after).findings
    assert one.verdict == "cannot be told"
    assert "surveyed" in one.why


NEEDS_NO_SURVEY = {
    *("duplicated-data", "wrong-gradient", "replica-drift", "unsynced-parameter"),
    *("unmatched-collectives", "incomplete-input", "clock-skew", "hang"),
}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - NEEDS_NO_SURVEY))
def test_a_run_that_only_watched_proves_no_finding_gone(kind: str):
    watched = [step(number, rank, level="watch") for number in range(4) for rank in (0, 1)]
    made = ledger(run=run_of(2), steps=watched)
    after = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    found = verified(report([finding(kind)]), after, kind)
    assert [one.verdict for one in found.findings] == ["cannot be told"]
    assert not found.passed


@pytest.mark.parametrize(("steps", "verdict"), [(5, "gone"), (4, "cannot be told"), (0, "cannot be told")])
@pytest.mark.parametrize("level", ["watch", "survey"])
def test_a_hang_is_gone_once_every_rank_has_finished_the_step_that_it_was_in(
    level: str, steps: int, verdict: str
):
    before = report([finding("hang", severity="error", toll_ns=None, saving_ns=None)], steps=4)
    rows = [_step(number, rank, 100, level) for rank in (0, 1) for number in range(6 if rank == 0 else steps)]
    made = ledger(run=run_of(2), steps=rows)
    after = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    (one,) = verified(before, after, "hang").findings
    assert one.verdict == verdict
    if steps == 4:
        assert one.why.startswith("the run after ends with step 3 on some rank")
        assert one.why.endswith("the one before hung in step 4: run more steps")


@pytest.mark.parametrize(("batches", "verdict"), [(8, "gone"), (7, "cannot be told")])
def test_the_order_of_epochs_needs_as_many_batches(batches: int, verdict: str):
    def looked(count: int, *found: Finding) -> Report:
        rows = [row for n in range(count) for row in replicated(G, (0, 1), kind="input", step=n)]
        one = report(found)
        return replace(one, tables={**one.tables, "values": to_table("values", rows)})

    order = finding("duplicated-data", where=Where(op="epoch order"))
    (one,) = verified(looked(8, order), looked(batches)).findings
    assert one.verdict == verdict


def test_a_surveyed_run_and_a_watched_one_compare_no_times():
    saved = verified(report([finding()], level="survey"), report(level="watch")).saving
    assert saved.kept == "cannot be told"
    assert "surveyed" in saved.why


def test_a_lost_rank_proves_nothing():
    after = report(run=run_of(2, ranks_seen=(0,), ranks_per_host=None))
    (one,) = verified(report([finding()]), after).findings
    assert one.verdict == "cannot be told"


@pytest.mark.parametrize(
    ("after_ms", "kept"), [(95, "kept"), (80, "exceeded"), (100, "not seen"), (110, "longer")]
)
def test_the_saving_is_a_bound(after_ms: float, kept: str):
    found = verified(report([finding()]), report(took_ms=after_ms, seed=1)).saving
    assert found.kept == kept, found.why
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.measured_ns is not None
    assert found.low_ns <= found.measured_ns <= found.high_ns


def test_what_else_is_gone_may_have_saved_the_rest():
    # It saves more at the same toll, so that it is the first of the bill.
    more = finding("latency-bound", saving_ns=10 * MS)
    found = verified(report([finding(), more]), report(took_ms=85, seed=1), "2").saving
    assert (found.kept, found.predicted_ns) == ("kept", 8 * MS)
    assert "by other findings that are gone too" in found.why


def test_what_is_smaller_is_not_called_gone():
    late = finding("straggler", saving_ns=10 * MS, where=Where())
    left = replace(late, toll_ns=MS, saving_ns=MS)
    found = verified(
        report([finding(), late]), report([left], took_ms=85, seed=1), "redundant-collective"
    ).saving
    assert (found.kept, found.predicted_ns) == ("kept", 8 * MS)
    assert "by other findings that are gone or smaller too" in found.why


def test_no_more_than_the_step_is_predicted():
    found = verified(report([finding(toll_ns=900 * MS, saving_ns=900 * MS)]), report(took_ms=90, seed=1))
    assert found.saving.before_ns is not None
    assert found.saving.predicted_ns == found.saving.before_ns < 900 * MS


def test_figures_say_which_steps_they_are_of():
    rows = [
        _step(n, rank, 50 if n in (0, 2, 3) else 20, "survey" if n in (0, 2, 3) else "watch")
        for n in range(8)
        for rank in (0, 1)
    ]
    many = {0: 9, 2: 8, 3: 8, 1: 2, 4: 2, 5: 2, 6: 3, 7: 3}
    calls = [
        collective(rank=rank, step=step, seq=at)
        for rank in (0, 1)
        for step, count in many.items()
        for at in range(count)
    ]
    made = ledger(calls, run=run_of(2), steps=rows)
    one = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    lines = {name: was for name, was, _, _ in verdict_lines(verified(one, one))}
    assert lines["step, own work of the slowest rank (watched steps)"] == "18.0 ms"
    assert lines["step, own work (surveyed steps)"] == "48.0 ms"
    # The first step sets things up; a mean is no count.
    assert lines["collectives (mean over ranks, watched steps)"] == "2.4"


def test_the_parts_of_a_step_add_up_to_the_slowest_ranks_step():
    # Each rank has the most of some part; only the parts of one rank are a step.
    parts = {
        0: {"compute_ns": 60 * MS, "exposed_comm_ns": 10 * MS, "idle_ns": 5 * MS, "unattributed_ns": 5 * MS},
        1: {"compute_ns": 20 * MS, "exposed_comm_ns": 50 * MS, "idle_ns": 8 * MS, "unattributed_ns": 4 * MS},
    }
    rows = [
        step(number, rank, duration_ns=sum(of.values()), capture_ns=(2 + 3 * (rank == 0)) * MS, **of)
        for number in range(3)
        for rank, of in parts.items()
    ]
    made = ledger(run=run_of(2), steps=rows)
    one = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    found = verified(one, one)
    whole, *shares = (figure.before for figure in found.quantities if figure.unit == "ns")
    assert (whole, sum(shares)) == (80 * MS, 80 * MS)
    assert "step, own work (surveyed steps)" not in [name for name, *_ in verdict_lines(found)]


def test_parts_are_of_the_watched_steps_if_the_report_divides_them():
    rows = [
        replace(_step(n, rank, 50 if n == 2 else 20, "survey" if n == 2 else "watch"),
                parts_error_ns=None if n == 2 else 0)
        for n in range(14)
        for rank in (0, 1)
    ]  # fmt: skip
    made = ledger(run=run_of(2), steps=rows)
    one = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    found = verified(one, one)
    lines = {name: was for name, was, _, _ in verdict_lines(found)}
    assert lines["step, own work of the slowest rank (watched steps)"] == "18.0 ms"
    assert lines["computing (watched steps)"] == "18.0 ms"
    assert not any(name.startswith("computing (surveyed") for name in lines)
    # The report's own figures hold the first two steps.
    assert verdict.timed_steps(found.saving) == (
        "11 steps before, 11 after; without steps 0-1 of both, to warm up"
    )
    other = replace(found.saving, left_out_after=(0,))
    assert verdict.timed_steps(other).endswith("; without steps 0-1 before and step 0 after, to warm up")


def test_a_rank_that_lacks_a_step_is_as_slow_as_its_own_steps():
    took = {0: 10 * MS, 1: 15 * MS}
    none = dict.fromkeys(("exposed_comm_ns", "idle_ns", "unattributed_ns", "capture_ns"), 0)
    rows = [
        step(number, rank, duration_ns=ns, compute_ns=ns, **none)
        for number in range(3)
        for rank, ns in took.items()
        if (number, rank) != (2, 1)
    ]
    made = ledger(run=run_of(2), steps=rows)
    one = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    verification = verified(one, one)
    whole, computing = (figure.before for figure in verification.quantities[:2])
    assert whole == computing == verification.saving.before_ns == 15 * MS


def test_work_is_told_in_its_own_units():
    evidence = {"figures": (Figure("flops_too_many", 65536, "flops"),)}
    left = {"figures": (Figure("flops_too_many", 32768, "flops"),)}
    (one,) = verified(
        report([finding("duplicated-compute", **evidence)]), report([finding("duplicated-compute", **left)])
    ).findings
    assert one.why == "needless FLOPs per step 65.5 kFLOP before, 32.8 kFLOP after (50% less)"


def test_what_is_smaller_predicts_only_what_it_lost():
    left = finding(bytes=500, toll_ns=7 * MS, saving_ns=5 * MS)
    assert verified(report([finding()]), report([left], took_ms=97)).saving.predicted_ns == 3 * MS


def test_few_steps_have_no_interval():
    found = verified(report([finding()], steps=1), report(steps=1))
    assert found.saving.kept == "cannot be told"
    assert any("only 1 timed step" in words for words in found.warnings)


@pytest.mark.parametrize("after_ms", [95, 80, 110])
def test_fewer_steps_than_eight_prove_no_saving(after_ms: float):
    # The first step is left out.
    few, enough = (
        verified(report([finding()], steps=steps), report(took_ms=after_ms, steps=steps)).saving
        for steps in (8, 9)
    )
    assert (few.steps_before, few.kept) == (7, "cannot be told")
    assert few.why.endswith("; of 7 steps only, which say little of how much they vary: 8 are needed")
    assert few.low_ns is not None
    assert enough.kept in ("kept", "exceeded", "longer")
    assert "steps only" not in enough.why


def test_capture_and_the_first_step_are_left_out_of_times():
    both = [report(noise_ms=0, steps=5), report(steps=2)]
    times, few = TwoRuns.of(*both).slowest
    assert times.tolist() == [108 * MS] * 4, "rank 1, less 2 ms of capture, without the first step"
    assert len(few) == 2


@pytest.mark.parametrize("steps", [3, 4, 12])
def test_the_interval_holds_the_true_difference_as_often_as_it_says(steps: int):
    random = np.random.default_rng(5)
    held = 0
    for _ in range(40):
        seeds = random.integers(0, 300, 2)
        runs = []
        for seed, took in zip(seeds, (100, 90), strict=True):
            rows = [
                _step(n, r, took + NOISE[(seed + n) % 400], "survey") for n in range(steps) for r in (0, 1)
            ]
            made = ledger(run=run_of(2), steps=rows)
            runs.append(Report(made.run, FabricInfo("none", "none"), made.groups, made.tables))
        found = TwoRuns.of(*runs).slowest_change()
        assert found.low is not None
        assert found.high is not None
        held += found.low <= -10 * MS <= found.high
    assert held >= 34


# Few steps hardly tell how much they vary; drawn one by one, 51, 43 and 47 pairs of 60 hold.
@pytest.mark.parametrize(("steps", "least"), [(4, 54), (10, 57), (30, 57)])
def test_a_saving_is_not_seen_in_two_runs_of_one_program_whose_steps_hang_together(steps: int, least: int):
    random = np.random.default_rng(11)

    def recorded() -> Report:
        took = 100 * noisy(steps, random)
        rows = [_step(n, rank, float(took[n]), "watch") for n in range(steps) for rank in (0, 1)]
        made = ledger(run=run_of(2), steps=rows)
        return Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)

    pairs = [TwoRuns.of(recorded(), recorded()).slowest_change() for _ in range(60)]
    assert sum(one.low <= 0 <= one.high for one in pairs) >= least  # type: ignore[operator]
    # And a change of a tenth is seen nevertheless.
    slower = [
        TwoRuns.of(
            report(took_ms=110, steps=steps, seed=seed), report(steps=steps, seed=seed + 1)
        ).slowest_change()
        for seed in range(5)
    ]
    assert all(one.high < 0 for one in slower)  # type: ignore[operator]


@pytest.mark.parametrize(("changes", "words"), [
    ({"run": run_of(4)}, "world size 2 before, 4 after"),
    ({"run": run_of(2, torch="2.6.0")}, "torch 2.13.0 before, 2.6.0 after"),
    ({"run": run_of(2, device="H100")}, "device cpu before, H100 after"),
    ({"steps": 10}, "steps 20 before, 10 after"),
])  # fmt: skip
def test_runs_that_are_not_alike_are_pointed_out(changes: dict[str, Any], words: str):
    assert words in verified(report([finding()]), report(**changes)).warnings
    assert verified(report([finding()]), report(seed=1)).warnings == ()


def test_another_model_is_pointed_out():
    after = report(seed=1)
    tables = {**after.tables, "parameters": to_table("parameters", [parameter("other", (2, 2))])}
    warnings = verified(report([finding()]), replace(after, tables=tables)).warnings
    assert any("in one model only (other, weight)" in words for words in warnings)


def test_a_run_against_itself_is_pointed_out():
    assert verified(report([finding()]), report([finding()])).warnings == ("both are the same recording",)


def test_two_empty_runs():
    made = ledger(steps=())
    empty = Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)
    found = verified(empty, empty)
    assert (found.findings, found.saving.kept, found.gradients.answer) == ((), "cannot be told", "unknown")


def test_as_json_everything_is_plain():
    found = verified(report([finding()]), report([finding(bytes=500)]))
    document = json.loads(json.dumps(verification_to_json(found), allow_nan=False))
    assert document["findings"][0]["finding"]["kind"] == "redundant-collective"
    assert (document["schema_version"], document["passed"]) == (1, False)


@pytest.mark.parametrize(
    ("after", "told"),
    [(1_000_006, "under +0.1 %"), (999_994, "under -0.1 %"), (1_002_000, "+0.2 %"), (1_000_000, "none")],
)
def test_a_change_too_small_to_read_is_a_bound(after: int, told: str) -> None:
    assert verdict.change(1_000_000, after) == told


def watched(exposed_ms: Sequence[Sequence[int]], **given: Any) -> Report:
    """Steps of two ranks that were only watched; of each step and rank the exposed communication."""
    rows = [
        step(number, rank, compute_ns=0, exposed_comm_ns=ms * MS, idle_ns=0, unattributed_ns=(100 - ms) * MS,
             level="watch")
        for number, each in enumerate(exposed_ms)
        for rank, ms in enumerate(each)
    ]  # fmt: skip
    made = ledger(run=run_of(2), steps=rows, **given)
    return Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)


def exposed_figure(report: Report) -> tuple[str, str, str]:
    lines = {name: (was, now, by) for name, was, now, by in verdict_lines(verified(report, report))}
    return lines.get("exposed communication (all steps)", ("", "", ""))


@pytest.mark.parametrize(
    ("exposed_ms", "untold", "said"),
    [
        ([(0, 10), (0, 30), (0, 50)], (), "40.0 ms"),
        # The first step, which sets things up, is left out.
        ([(0, 10), (0, 30), (0, 0)], ((2, 1),), "30.0 ms"),
        ([(0, 10), (0, 30), (0, 0)], ((2, 1), (1, 0), (2, 0)), "at least 30.0 ms"),
        ([(0, 10), (0, 30), (0, 50)], ((2, 1),), "at least 40.0 ms"),
    ],
)
def test_untold_exposed_communication_is_no_zero(
    exposed_ms: list[tuple[int, int]], untold: tuple[tuple[int, int], ...], said: str
):
    calls = [collective(step=number, rank=rank, exposed_ns=None) for number, rank in untold]
    found = exposed_figure(watched(exposed_ms, collectives=calls))
    assert found[0] == found[1] == said
    assert found[2] == ("unknown" if "least" in said else "none"), "two lower bounds tell no change"


def test_no_exposed_communication_is_made_up_where_nothing_tells():
    calls = [collective(step=number, rank=rank, exposed_ns=None) for number in range(3) for rank in (0, 1)]
    silent = watched([(0, 0)] * 3, collectives=calls)
    assert exposed_figure(silent) == ("", "", "")
    one = verified(watched([(0, 20)] * 3), silent)
    (line,) = [line for line in verdict_lines(one) if line[0].startswith("exposed communication")]
    assert line[1:] == ("20.0 ms", "unknown", "unknown")


def test_bytes_and_counts_of_a_record_that_lacks_some_are_lower_bounds():
    def lines(**given: Any) -> dict[str, str]:
        rows = [collective(step=number, rank=rank, seq=1) for number in range(3) for rank in (0, 1)]
        one = report(steps=3, collectives=[*rows, *given.pop("more", ())], **given)
        return {name.partition(" (")[0]: was for name, was, _, _ in verdict_lines(verified(one, one))}

    whole = lines()
    assert (whole["message bytes"], whole["collectives"]) == ("1.05 MB", "1")
    more = [collective(step=1, rank=rank, seq=2, message_bytes=None, wire_bytes=None) for rank in (0, 1)]
    unsized = lines(more=more)
    assert (unsized["message bytes"], unsized["collectives"]) == ("at least 1.05 MB", "1.5")
    lacking = lines(counts=[Count(2, 0, "pg", 3, 1)])
    assert (lacking["message bytes"], lacking["collectives"]) == ("at least 1.05 MB", "at least 1")


def test_a_band_is_not_held_by_what_else_is_gone_or_by_too_few_steps() -> None:
    replayed = finding(saving_low_ns=2 * MS, saving_high_ns=8 * MS, replayed="without these collectives")
    more = finding("latency-bound", saving_ns=10 * MS)

    def saving(*bill: Finding, steps: int = 20) -> Any:
        before, after = report(bill, steps=steps), report(took_ms=95, seed=1, steps=steps)
        return verified(before, after, "redundant-collective").saving

    alone, together, few = saving(replayed), saving(replayed, more), saving(replayed, steps=5)
    assert (alone.held, alone.besides_ns) == (True, None)
    assert (together.held, together.besides_ns) == (None, 10 * MS)
    assert (few.held, few.kept) == (None, "cannot be told")


def test_what_is_left_within_the_noise_of_the_two_runs_is_gone():
    """Steps of about 100 ms vary by 6 ms: nobody can say of 3 ms that anything causes them."""
    before = finding("straggler", toll_ns=52 * MS, saving_ns=52 * MS, ranks=(1,))
    after = replace(before, toll_ns=3 * MS, saving_ns=3 * MS)
    loud = verified(
        report([before], took_ms=150, noise_ms=6), report([after], noise_ms=6, seed=1), "straggler"
    )
    (one,) = loud.findings
    assert one.verdict == "gone"
    assert one.why.startswith("3.00 ms of 52.0 ms are left, within the noise of the two runs (")
    assert loud.passed
    # The same is more than the noise of quiet runs, and nothing is known of few steps.
    quiet = verified(report([before], noise_ms=0.1), report([after], noise_ms=0.1, seed=1), "straggler")
    few = verified(report([before], steps=4, noise_ms=6), report([after], steps=4, noise_ms=6), "straggler")
    for found in (quiet, few):
        assert [one.verdict for one in found.findings] == ["smaller"]
    # Noise that would hide the finding itself proves nothing.
    small = replace(before, toll_ns=4 * MS, saving_ns=4 * MS)
    left = replace(after, toll_ns=MS, saving_ns=MS)
    blind = verified(report([small], noise_ms=20), report([left], noise_ms=20), "straggler")
    assert all(one.verdict != "gone" for one in blind.findings)


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "noise_ms", "verdict"),
    [
        (52.0, 5.0, 5.5, "gone"),
        (52.0, 5.0, 20.0, "gone"),
        (52.0, 5.0, 4.0, "smaller"),
        # Half of it stands, however noisy the runs are.
        (10.0, 4.9, 5.0, "smaller"),
        (10.0, 1.7, 5.0, "smaller"),
        (10.0, 4.9, 5.2, "cannot be told"),
        (10.0, 1.0, 20.0, "cannot be told"),
        (10.0, 9.0, 5.0, "still there"),
    ],
)
def test_a_noisier_run_does_not_hide_half_of_a_finding(
    before_ms: float, after_ms: float, noise_ms: float, verdict: str
):
    toll = Quantity("toll", "ns", before_ms * MS, after_ms * MS)
    said, why = _left(toll, finding("straggler"), noise_ms * MS)
    assert said == verdict
    assert ("noise of the two runs (" in why) == (verdict in ("gone", "cannot be told"))


def test_a_late_rank_is_gone_where_another_or_no_single_one_is_late_then():
    before = finding("straggler", ranks=(1,), where=Where())
    for ranks in ((0,), (0, 1)):
        other = replace(before, severity="info", ranks=ranks)
        found = verified(report([before]), report([other], seed=1), "straggler")
        assert [one.verdict for one in found.findings] == ["gone"], ranks
        assert [each.ranks for each in found.new] == [ranks]
    same = verified(report([before]), report([before], seed=1), "straggler")
    assert [one.verdict for one in same.findings] == ["still there"]


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        pytest.param(False, False, True, id="found and looked for by structure"),
        pytest.param(True, True, True, id="by values"),
        pytest.param(None, None, True, id="older records"),
        pytest.param(True, False, False, id="by values, and then only by structure"),
        pytest.param(False, True, True, id="by structure, and then by values too"),
    ],
)
def test_a_parameter_that_values_showed_is_looked_for_by_values(
    before: bool | None, after: bool | None, gone: bool
):
    def looked(at: Report, checked: bool | None) -> Report:
        rows = to_table("parameters", [parameter("weight", G.shape, checked=checked)])
        return replace(at, tables={**at.tables, "parameters": rows})

    found = looked(report([finding("unsynced-parameter")]), before)
    (one,) = verified(found, looked(report(), after)).findings
    assert (one.verdict == "gone") is gone
    if not gone:
        assert "the run after checked no parameters" in one.why
