"""Runs of which some steps are surveyed and most only watched: every figure over the steps that tell it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from shardtoll.analyzers import ANALYSES, run
from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.needless import implicit_redistribute, latency_bound
from shardtoll.analyzers.findings.needless.redundant_collective import repeats
from shardtoll.analyzers.findings.stages.pipeline_bubble import message_waits
from shardtoll.analyzers.findings.stragglers import late_bills
from shardtoll.analyzers.findings.stragglers.lateness import waits
from shardtoll.analyzers.findings.trust.overlaps import overlaps
from shardtoll.analyzers.headline import sentence
from shardtoll.analyzers.shared.memo import once
from shardtoll.ledger import Count, Leadup, Stall
from tests.unit.analyzers.fabrics import MEASURED
from tests.unit.analyzers.ledgers import MS, US, collective, compute, ledger, on_ranks, run_of, step
from tests.unit.analyzers.of_kinds import running

STEPS = 100
SURVEYED = (0, 2, 52)
EVERY = 200 * MS
"""From one step's start to the next one's."""


def level_of(number):
    return "survey" if number in SURVEYED else "watch"


def steps(ranks=(0, 1), level=level_of, survey=None, watch=None):
    """Steps of 100 ms, 40 of them exposed communication; a watched one leaves the rest unattributed."""
    watched = {"compute_ns": 0, "idle_ns": 0, "unattributed_ns": 60 * MS} | (watch or {})
    given = {"survey": survey or {}, "watch": watched}
    return [
        step(number, rank, start_ns=number * EVERY, level=level(number), **given[level(number)])
        for number in range(STEPS)
        for rank in ranks
    ]


def each_step(**given):
    """One all_reduce of both ranks in each step, 2 ms exposed; `given` may be functions of the step."""
    rows = []
    for number in range(STEPS):
        at = number * EVERY + given.get("after_ns", 0)
        values = {name: value(number) if callable(value) else value for name, value in given.items()}
        values.pop("after_ns", None)
        times = {"seq": None, "step": number, "issue_ns": at, "start_ns": at}
        rows += on_ranks((0, 1), **(times | values))
    # Each rank sends bytes of its own.
    return [
        row if row.input_hash is None else replace(row, input_hash=row.input_hash * 10 + row.rank)
        for row in rows
    ]


def kind(report, name):
    return [finding for finding in report.findings if finding.kind == name]


def only(report, name):
    (finding,) = kind(report, name)
    return finding


def hashed(value):
    """A survey's fingerprint of one memory that nothing wrote to in between."""
    return {
        "input_hash": lambda number: value + number if level_of(number) == "survey" else None,
        "input_content": lambda number: 1 if level_of(number) == "survey" else None,
    }


def test_duplicated_compute_is_billed_per_surveyed_step():
    computes = [
        compute(step=number, rank=rank, duration_ns=2 * MS, replicated_over="tp")
        for number in SURVEYED
        for rank in (0, 1)
    ]
    job = ledger(run=run_of(mesh={"tp": 2}), steps=steps(), computes=computes)
    found = only(running("duplicated-compute")(job), "duplicated-compute")
    assert found.toll_ns == found.saving_ns == MS
    assert found.count == 1


@pytest.mark.parametrize("slower", [1, 2])
def test_recomputation_that_surveyed_steps_alone_know_is_billed_as_in_watched_ones(slower):
    """A survey in which all that computes takes so many times as long tells of the same cost."""
    computes = [
        compute(step=number, rank=rank, duration_ns=slower * 10 * MS, phase="recompute", module="blocks.0")
        for number in SURVEYED
        for rank in (0, 1)
    ]
    survey = {"compute_ns": slower * 50 * MS, "idle_ns": slower * 10 * MS}
    survey["duration_ns"] = sum(survey.values()) + 40 * MS
    found = only(running("recompute")(ledger(steps=steps(survey=survey), computes=computes)), "recompute")
    assert found.toll_ns == 10 * MS
    assert found.ranks == (0, 1)
    assert found.figure("share_of_step") == 0.1


def test_what_is_sent_again_costs_what_it_does_in_watched_steps():
    """In surveyed steps the ranks wait for each other's recording: five times as long."""
    waits = {"exposed_ns": lambda n: 2 * MS if level_of(n) == "watch" else 10 * MS}
    times = {"duration_ns": waits["exposed_ns"], "source": "train.py:7 (step)", **waits}
    rows = [
        *each_step(seq=lambda n: 2 * n, **times, **hashed(1000)),
        *each_step(seq=lambda n: 2 * n + 1, after_ns=15 * MS, **times, **hashed(1000)),
    ]
    again = only(running("redundant-collective")(ledger(rows, steps=steps())), "redundant-collective")
    assert again.toll_ns == 2 * MS


@pytest.mark.parametrize("source", ["train.py:7 (step)", None])
def test_bytes_sent_again_are_billed_once_in_surveyed_and_watched_steps(source):
    rows = [
        *each_step(seq=lambda n: 2 * n, source=source, **hashed(1000)),
        *each_step(seq=lambda n: 2 * n + 1, source=source, after_ns=5 * MS, **hashed(1000)),
    ]
    report = running("redundant-collective", "exposed-communication")(ledger(rows, steps=steps()))
    again, exposed = only(report, "redundant-collective"), only(report, "exposed-communication")
    assert (again.toll_ns, again.count) == (2 * MS, 1)
    # The first of the pair alone: in watched steps, too, the second one is on the other bill.
    assert (exposed.toll_ns, exposed.count) == (2 * MS, 1)


def test_what_differs_in_a_watched_step_is_not_taken_for_the_same_call():
    rows = [
        *each_step(seq=lambda n: 2 * n, **hashed(1000)),
        *each_step(
            seq=lambda n: 2 * n + 1,
            after_ns=5 * MS,
            message_bytes=lambda n: 1 << (20 if level_of(n) == "survey" else 21),
            **hashed(1000),
        ),
    ]
    report = running("exposed-communication")(ledger(rows, steps=steps()))
    tolls = sorted(finding.toll_ns for finding in kind(report, "exposed-communication"))
    # In watched steps, which the bars show, neither of them was sent again.
    assert sum(tolls) == 4 * MS


def test_small_messages_are_billed_per_surveyed_step_and_nowhere_else():
    small = {"message_bytes": 512, "phase": "optimizer", "duration_ns": 100 * US, "exposed_ns": 100 * US}
    rows = [
        row
        for place in range(40)
        for row in each_step(seq=lambda n, at=place: 40 * n + at, after_ns=place * 150 * US, **small)
    ]
    report = running("latency-bound", "exposed-communication")(ledger(rows, steps=steps()), MEASURED)
    found = only(report, "latency-bound")
    assert (found.toll_ns, found.count) == (40 * 100 * US, 40)
    assert kind(report, "exposed-communication") == []


def test_bytes_that_collectives_alone_tell_are_means_over_all_steps_and_times_over_watched_ones():
    rows = each_step(
        seq=lambda n: n,
        implicit=True,
        exposed_ns=lambda n: 2 * MS if n % 2 else 0,
        message_bytes=lambda n: 2000 if level_of(n) == "survey" else 1000,
    )
    found = only(running("implicit-redistribute")(ledger(rows, steps=steps())), "implicit-redistribute")
    assert found.toll_ns == round(2 * MS * 50 / (STEPS - len(SURVEYED)))
    assert found.bytes == 1000 + 1000 * len(SURVEYED) // STEPS


def test_what_watched_steps_do_not_have_has_no_toll():
    rows = [row for row in each_step(seq=lambda n: n, implicit=True, exposed_ns=40 * MS) if row.step == 0]
    found = only(running("implicit-redistribute")(ledger(rows, steps=steps())), "implicit-redistribute")
    assert (found.toll_ns, found.count) == (0, 1)


@pytest.mark.parametrize("of_survey_ms", [2, 30])
def test_findings_overlap_by_what_they_cost_in_watched_steps(of_survey_ms):
    exposed = {"exposed_ns": lambda n: (of_survey_ms if level_of(n) == "survey" else 2) * MS}
    job = ledger(each_step(seq=lambda n: n, implicit=True, **exposed), steps=steps())
    context = make_context(job, MEASURED)
    (found,) = implicit_redistribute.find(context)
    (overlap,) = overlaps(context, [found, replace(found, kind="below-roofline")])
    assert (overlap.findings, overlap.most_ns) == ((1, 2), 2 * MS)


@pytest.mark.parametrize(
    ("kinds", "given"),
    [
        (("exposed-communication",), {}),
        (("implicit-redistribute",), {"implicit": True}),
    ],
)
def test_tolls_are_parts_of_the_bars_whatever_surveyed_steps_took(kinds, given):
    """The bars show the watched steps: nothing that surveyed ones waited longer is in a toll."""
    exposed = {"exposed_ns": lambda n: 30 * MS if level_of(n) == "survey" else 2 * MS}
    rows = each_step(seq=lambda n: n, **exposed, duration_ns=exposed["exposed_ns"], **given)
    report = running(*kinds)(ledger(rows, steps=steps()))
    assert [only(report, name).toll_ns for name in kinds] == [2 * MS]


class TestStepTime:
    def test_watched_steps_are_the_measure(self):
        given = steps(survey={"duration_ns": 130 * MS, "unattributed_ns": 30 * MS, "capture_ns": 10 * MS})
        assert make_context(ledger(steps=given), MEASURED).step_ns == 100 * MS

    def test_their_capture_is_left_out(self):
        given = steps(watch={"capture_ns": 3 * MS})
        assert make_context(ledger(steps=given), MEASURED).step_ns == 97 * MS

    def test_without_any_surveyed_steps_are(self):
        given = steps(level=lambda _: "survey", survey={"unattributed_ns": 0})
        context = make_context(ledger(steps=given), MEASURED)
        assert context.step_ns == 100 * MS
        assert context.surveyed == context.steps
        assert context.in_surveyed is context.in_steps is context.collectives

    def test_a_step_that_one_rank_watched_is_a_watched_one(self):
        given = [
            replace(row, level="survey", compute_ns=60 * MS, unattributed_ns=0)
            if (row.step, row.rank) == (7, 1)
            else row
            for row in steps()
        ]
        context = make_context(ledger(steps=given), MEASURED)
        assert context.surveyed == SURVEYED
        assert len(context.steps) == STEPS
        assert set(context.surveyed_rows["step"]) == set(SURVEYED)
        assert set(context.timed_rows["step"]) == set(range(STEPS)) - {*SURVEYED, 7}


class TestUnattributed:
    def test_watched_steps_are_not_judged(self):
        assert kind(running("unattributed-time")(ledger(steps=steps())), "unattributed-time") == []

    def test_surveyed_ones_are(self):
        given = steps(survey={"compute_ns": 30 * MS, "unattributed_ns": 20 * MS})
        found = only(running("unattributed-time")(ledger(steps=given)), "unattributed-time")
        assert "above 5.0 % in 6 steps" in found.title


@cache
def only_watched():
    """The report of a run without a surveyed step."""
    return run(ledger(each_step(seq=lambda n: n), steps=steps(level=lambda _: "watch")))


class TestNothingSurveyed:
    def test_it_is_said_once_what_cannot_be_told(self):
        found = only(only_watched(), "incomplete-input")
        assert found.title.startswith("every step was only watched: duplicated compute, repeated bytes")
        assert found.severity == "info"
        assert 'audit(level="schedule")' in found.remedy.text

    def test_not_where_a_step_was_surveyed(self):
        assert (
            kind(
                running("incomplete-input")(ledger(each_step(seq=lambda n: n), steps=steps())),
                "incomplete-input",
            )
            == []
        )

    def test_steps_that_no_two_ranks_surveyed_alike(self):
        given = [
            replace(row, level="survey", unattributed_ns=0, idle_ns=60 * MS) if row.rank == 0 else row
            for row in steps(level=lambda _: "watch")
        ]
        found = only(running("incomplete-input")(ledger(steps=given)), "incomplete-input")
        assert found.title.startswith("no step was surveyed on all of its ranks")

    def test_exposed_communication_is_billed_without_a_saving(self):
        # What overlap could hide it behind is not on record.
        found = only(only_watched(), "exposed-communication")
        assert (found.toll_ns, found.saving_ns) == (2 * MS, None)
        assert found.remedy.counterfactual is None

    def test_the_rest_is_silent(self):
        report = only_watched()
        assert {finding.kind for finding in report.findings} == {"incomplete-input", "exposed-communication"}
        assert "idle" not in (report.headline or "")


def test_the_saving_of_overlap_is_bounded_by_the_compute_of_surveyed_steps():
    given = steps(survey={"compute_ns": MS, "idle_ns": 59 * MS})
    found = only(
        running("exposed-communication")(ledger(each_step(seq=lambda n: n), steps=given)),
        "exposed-communication",
    )
    assert (found.toll_ns, found.saving_ns) == (2 * MS, MS)


class TestStraggler:
    def late(self, late=lambda _: 4, **given):
        """Rank 1 comes so many ms late to the collective of each step, and rank 0 waits."""
        rows = []
        for number in range(STEPS):
            at = number * EVERY
            for rank, span in ((0, (1 + late(number)) * MS), (1, MS)):
                start = at + 50 * MS - span
                times = {"issue_ns": start, "start_ns": start, "duration_ns": span, "exposed_ns": span}
                rows.append(collective(step=number, rank=rank, seq=number, **times))
        return only(running("straggler")(ledger(rows, **given)), "straggler")

    def test_waiting_in_surveyed_steps_tells_who_is_late_and_costs_nothing(self):
        late = {number: 4 if level_of(number) == "watch" else 40 for number in range(STEPS)}
        found = self.late(steps=steps(), late=late.__getitem__)
        assert found.toll_ns == 4 * MS
        assert found.remedy.measures, "nothing tells why: the remedy is to record more"
        assert "the other rank waits 4.00 ms per step (4.0 %)" in found.title
        assert found.title.startswith("rank 1 is last in 100 of 100 collectives")

    def test_the_cause_of_waiting_is_as_long_as_it_is_in_watched_steps(self):
        # In surveyed steps rank 1 computes 40 ms longer, and others wait 40 ms; in watched ones they wait 4.
        late = {number: 4 if level_of(number) == "watch" else 40 for number in range(STEPS)}
        given = [
            replace(row, compute_ns=58 * MS, idle_ns=2 * MS)
            if row.level == "survey" and row.rank == 1
            else replace(row, compute_ns=18 * MS, idle_ns=42 * MS)
            if row.level == "survey"
            else row
            for row in steps()
        ]
        found = self.late(steps=given, late=late.__getitem__)
        assert "it spends 4.00 ms longer computing" in found.title
        # Watched steps wait ten times as long: the reason for that is not on record, and this one no longer.
        late = {number: 40 if level_of(number) == "watch" else 4 for number in range(STEPS)}
        longer = self.late(steps=given, late=late.__getitem__)
        assert "the other rank waits 40.0 ms per step" in longer.title
        assert "it spends 40.0 ms longer computing" in longer.title
        assert not longer.remedy.measures

    def test_waiting_in_the_first_step_is_no_late_start_if_the_bars_do_not_show_it(self, monkeypatch):
        # The first step is a surveyed one, and most of all waiting is there: 48 of 76 ms.
        monkeypatch.setitem(globals(), "STEPS", 8)
        found = self.late(steps=steps(), late=lambda number: 48 if number == 0 else 4)
        assert found.toll_ns == 4 * MS
        assert "began recording later" not in found.title

    def test_who_is_late_in_watched_steps_is_named_whoever_is_in_surveyed_ones(self):
        rows = []
        for number in range(STEPS):
            culprit, late = (1, 45) if level_of(number) == "survey" else (0, 8)
            for rank in range(4):
                span = (1 + (0 if rank == culprit else late)) * MS
                start = number * EVERY + 50 * MS - span
                times = {"issue_ns": start, "start_ns": start, "duration_ns": span, "exposed_ns": span}
                rows.append(collective(step=number, rank=rank, seq=number, group_size=4, **times))
        # So many surveyed steps that their waiting is most of all.
        few = [row for row in rows if row.step in (*SURVEYED, 3, 4, 5, 6)]
        given = [row for row in steps(ranks=range(4)) if row.step in (*SURVEYED, 3, 4, 5, 6)]
        report = run(ledger(few, run=run_of(4), steps=given))
        found = next(each for each in report.findings if each.kind == "straggler")
        assert (found.ranks, found.toll_ns) == ((0,), 8 * MS)
        assert (report.headline or "").startswith("Rank 0 is late")

    def test_waiting_is_over_watched_steps_and_its_cause_over_surveyed_ones(self):
        given = [
            replace(row, compute_ns=55 * MS, idle_ns=5 * MS)
            if row.level == "survey" and row.rank == 1
            else row
            for row in steps()
        ]
        found = self.late(steps=given)
        assert found.toll_ns == 4 * MS
        assert found.title.startswith("rank 1 is last in 100 of 100 collectives")
        assert "it spends 5.00 ms longer computing" in found.title

    def test_without_surveyed_steps_the_cause_is_not_on_record(self):
        found = self.late(steps=steps(level=lambda _: "watch"))
        assert found.toll_ns == 4 * MS
        assert "spends" not in found.title


class TestStepsOneRankSurveyed:
    """Rank 1 surveys every tenth step alone, which delays it by 50 ms there; otherwise both come together."""

    ALONE = range(5, STEPS, 10)

    def report(self, alone=ALONE, every=range(STEPS)):
        rows, given, even = [], [], steps()
        for number in every:
            for rank in (0, 1):
                level = "survey" if number in alone and rank == 1 else level_of(number)
                given.append(replace(even[2 * number + rank], level=level))
                late = 50 * MS if number in alone and rank == 0 else 0
                at = number * EVERY + (0 if late or number not in alone else 50 * MS)
                times = {"issue_ns": at, "start_ns": at, "duration_ns": 2 * MS + late}
                rows.append(collective(step=number, rank=rank, seq=number, exposed_ns=2 * MS + late, **times))
        return run(ledger(rows, steps=given))

    def test_its_capture_makes_it_no_straggler(self):
        report = self.report()
        assert kind(report, "straggler") == []
        assert not (report.headline or "").startswith(("Rank", "A late", "Late"))

    def test_what_others_wait_for_is_not_exposed_communication(self):
        assert only(self.report(), "exposed-communication").toll_ns == 2 * MS

    def test_where_all_steps_are_like_that_they_are_looked_at(self):
        found = only(self.report(alone=range(STEPS), every=(7, 9, 11, 13)), "straggler")
        assert found.toll_ns == 50 * MS


class TestHeadline:
    def test_idle_time_is_that_of_watched_steps_divided_as_surveyed_ones(self):
        idle = {"compute_ns": 30 * MS, "exposed_comm_ns": 0, "idle_ns": 70 * MS}
        watched = {"exposed_comm_ns": 10 * MS, "unattributed_ns": 90 * MS}
        report = run(ledger(steps=steps(survey=idle, watch=watched)))
        assert report.headline is not None
        # 70 % of the 90 ms that are no exposed communication.
        assert "both ranks run no operator for 63.0 ms (63 %) of the 100 ms step (mean)" in report.headline
        assert report.headline.endswith("exposed communication takes 10 % of the step (mean of 2 ranks).")

    def test_exposed_communication_is_that_of_watched_steps(self):
        watched = {"exposed_comm_ns": 2 * MS, "unattributed_ns": 98 * MS}
        report = run(ledger(steps=steps(watch=watched)))
        assert report.headline is not None
        assert "exposed communication takes 2.0 % of the step (mean of 2 ranks)" in report.headline

    def test_the_step_is_the_table_s(self):
        """Of a watched step, capture is left out; one without times is in no share."""
        watched = {"exposed_comm_ns": 20 * MS, "unattributed_ns": 80 * MS, "capture_ns": 20 * MS}
        given = steps(watch=watched)
        last = replace(given[-1], exposed_comm_ns=0, unattributed_ns=100 * MS)
        rows = each_step(seq=lambda n: n)
        rows[-1] = replace(rows[-1], exposed_ns=None)
        assert (rows[-1].step, rows[-1].rank) == (last.step, last.rank)
        report = run(ledger(rows, steps=[*given[:-1], last]))
        assert "25 % of the step (mean of 2 ranks)" in report.headline

    def test_where_no_step_has_times_nothing_is_told(self):
        rows = each_step(seq=lambda n: n, exposed_ns=lambda _: None)
        quiet = {"exposed_comm_ns": 0, "unattributed_ns": 100 * MS}
        said = run(ledger(rows, steps=steps(level=lambda _: "watch", watch=quiet))).headline
        assert said == (
            "Cannot tell whether the network or a late rank is at fault, as no step records exposed "
            "communication."
        )

    @pytest.mark.parametrize(
        ("untold", "each_ns", "said"),
        [
            (0, MS, "Neither the network nor a late rank is at fault: waiting for ranks and moving "
             "data take 0.001 % of the step (mean of 2 ranks)."),
            # One of twenty, or too short all together to be 5 % of the step: no matter, and it is said.
            (1, 9 * MS, "Neither the network nor a late rank is at fault: waiting for ranks and moving "
             "data take at least 0.001 % of the step (mean of 2 ranks)."),
            (19, MS // 10, "Neither the network nor a late rank is at fault: waiting for ranks and moving "
             "data take at least 0.001 % of the step (mean of 2 ranks)."),
            (19, 9 * MS, "Cannot tell whether the network or a late rank is at fault, as 152 of 160 "
             "collectives have no known exposed time: waiting for ranks and moving data take at least "
             "0.001 % of the step (mean of 2 ranks)."),
        ],
    )  # fmt: skip
    def test_a_lower_bound_clears_nobody(self, untold, each_ns, said):
        rows, calls = [], []
        for number in range(4):
            for rank in (0, 1):
                parts = {"compute_ns": 0, "idle_ns": 0, "exposed_comm_ns": US, "level": "watch"}
                rows.append(step(number, rank, start_ns=number * EVERY,
                                 unattributed_ns=100 * MS - US, **parts))  # fmt: skip
                for at in range(20):
                    exposed = US if at == 0 else None if at <= untold else 0
                    calls.append(collective(step=number, rank=rank, seq=20 * number + at,
                                            exposed_ns=exposed, duration_ns=each_ns))  # fmt: skip
        report = run(ledger(run=run_of(2), steps=rows, collectives=calls))
        assert report.headline.split(" First on")[0].splitlines()[0] == said


class TestCountedOnly:
    """Collectives of which a watched step has only the group's own number."""

    UNSEEN = (
        "Cannot tell whether the network or a late rank is at fault, "
        "as {} collectives are counted, not listed"
    )

    def counts(self, recorded, numbers=range(STEPS), issued=10):
        return [Count(number, rank, "pg", issued, recorded) for number in numbers for rank in (0, 1)]

    def found(self, counts, level=lambda _: "watch"):
        report = run(ledger(counts=counts, steps=steps(level=level)))
        return only(report, "unmatched-collectives"), report.headline

    def test_watching_does_not_see_what_cpp_issues_which_is_no_defect(self):
        found, said = self.found(self.counts(1))
        assert (found.severity, found.count, found.ranks) == ("warning", 1800, (0, 1))
        assert found.title == (
            "watching does not see what C++ issues, as DDP's reducer does: 1,800 of 2,000 collectives of "
            "group pg are counted, not listed, on ranks 0-1"
        )
        assert found.remedy.text.startswith('Use level="schedule" (the default)')
        assert said == self.UNSEEN.format("1,800 of 2,000") + "."

    def test_few_of_them_are_told_and_forbid_no_headline(self):
        found, said = self.found(self.counts(9))
        assert (found.severity, found.count) == ("info", 200)
        assert said.startswith("Cannot tell whether the network or a late rank is at fault, as collectives")

    def test_a_few_steps_of_another_shape_are_no_warning(self):
        """As Trainer's, that gather a loss to log it: a twentieth of the job's collectives."""
        numbers = [number for number in range(STEPS) if number % 20 != 10]
        found, _ = self.found([*self.counts(10, numbers), *self.counts(2, range(10, STEPS, 20))])
        assert found.severity == "info"
        assert "80 of 100 collectives" in found.title

    def test_among_surveyed_steps_the_advice_is_to_survey_more(self):
        counts = [*self.counts(10, SURVEYED), *self.counts(1, [7, 8])]
        found, said = self.found(counts, level_of)
        assert (found.severity, found.count) == ("warning", 36)
        assert "36 of 40 collectives of group pg" in found.title
        assert found.remedy.text.startswith("Survey more of the steps")
        assert said.startswith(self.UNSEEN.format("36 of 40"))

    @pytest.mark.parametrize(("number", "recorded"), [(2, 1), (7, 12)])
    def test_a_surveyed_step_that_lacks_or_a_surplus_is_a_defect(self, number, recorded):
        found, _ = self.found([*self.counts(1, [8]), *self.counts(recorded, [number])], level_of)
        assert found.severity == "error"
        assert "as a defect of the capture" in found.remedy.text

    def test_idle_time_is_told_before_it(self):
        idle = {"compute_ns": 30 * MS, "exposed_comm_ns": 0, "idle_ns": 70 * MS}
        counts = self.counts(1, range(3, 50))
        watched = {"exposed_comm_ns": 0, "unattributed_ns": 100 * MS}
        report = run(ledger(steps=steps(survey=idle, watch=watched), counts=counts))
        assert report.headline.startswith("Idle time costs most")
        assert report.headline.endswith(
            "; cannot tell whether the network or a late rank is at fault, as 846 of 940 collectives are "
            "counted, not listed."
        )


def test_what_a_trace_tells_of_a_watched_step_is_billed_per_traced_step():
    stalls = [
        Stall(
            step=7, rank=rank, kind="data", name="next", phase="other", count=1, total_ns=MS, lost_ns=5 * MS
        )
        for rank in (0, 1)
    ]
    none = dict.fromkeys(("compute_ns", "comm_ns", "copy_ns", "data_ns", "sync_ns", "host_ns"), 0)
    traced = [Leadup(7, rank, 7, since_ns=7 * EVERY, phase="forward", **none) for rank in (0, 1)]
    rows = each_step(seq=lambda n: n)
    report = running("data-stall")(ledger(rows, steps=steps(), stalls=stalls, leadups=traced))
    assert only(report, "data-stall").toll_ns == 5 * MS


class TestOnce:
    def test_a_function_runs_once_a_context(self):
        seen = []

        @once
        def made(context):
            seen.append(context)
            return object()

        one, two = (make_context(ledger(), MEASURED) for _ in range(2))
        assert made(one) is made(one)
        assert made(one) is not made(two)
        assert seen == [one, two]

    def test_what_several_analyses_need_is_made_once_a_report(self):
        class Counting(dict):
            def __init__(self):
                self.made = []

            def __setitem__(self, key, value):
                self.made.append(key if isinstance(key, tuple) else (key.__module__, key.__name__))
                super().__setitem__(key, value)

        rows = each_step(seq=lambda n: n)
        context = replace(make_context(ledger(rows, steps=steps()), MEASURED), memo=Counting())
        for analysis in ANALYSES:
            analysis.find(context)
        sentence.sentence(context)
        shared = (waits, late_bills.bills, message_waits, repeats, latency_bound.claimed)
        for function in shared:
            assert context.memo.made.count((function.__module__, function.__name__)) == 1
        assert len(context.memo.made) == len(set(context.memo.made))
