"""Whether the record can be believed: each trust analysis with its sound twin."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Count, Group, Notice, Report, Rows, Stall
from shardtoll.ledger.answers.unbilled import Unbilled
from shardtoll.ledger.records.stall import GRAPH_CAPTURE
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, on_ranks, run_of, step
from tests.unit.analyzers.of_kinds import running

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def found(kind, rows=(), **given):
    return [f for f in running(kind)(ledger(rows, **given)).findings if f.kind == kind]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


class TestUnmatched:
    def test_a_count_that_is_off_is_an_error(self):
        counts = [Count(0, 0, "pg", 12, 10), Count(0, 1, "pg", 12, 12), Count(1, 0, "pg", 10, 12)]
        (finding,) = found("unmatched-collectives", counts=counts)
        assert finding.severity == "error"
        # 2 missing in one step and 2 too many in another do not cancel out.
        assert finding.count == 4
        assert finding.ranks == (0,)
        assert evidence(finding)["step 0 rank 0"] == "12 issued, 10 recorded"

    def test_what_two_threads_issue_is_no_error(self):
        """A call of the other thread, counted in step 0 and recorded in step 1, and their orders crossed."""
        counts = [
            Count(0, 0, "pg", 3, 2, True),
            Count(1, 0, "pg", 2, 3, True),
            Count(0, 1, "pg", 2, 2, False),
        ]
        rows = [*on_ranks((0, 1)), collective(rank=0, seq=2), collective(rank=1, seq=2, op="all_gather")]
        (finding,) = found("unmatched-collectives", rows, counts=counts)
        assert (finding.severity, finding.count, finding.ranks) == ("info", 2, (0,))
        assert finding.title.startswith("two threads use group pg")
        agreeing = [Count(0, rank, "pg", 2, 2, True) for rank in (0, 1)]
        assert found("unmatched-collectives", rows, counts=agreeing) == []

    def test_what_watching_does_not_see_is_told_of_groups_of_two_threads_too(self):
        counts = [Count(number, 0, "pg", 5, 1, True) for number in (0, 1)]
        watched = [step(number, 0, level="watch", start_ns=number * 100 * MS) for number in (0, 1)]
        (finding,) = found("unmatched-collectives", counts=counts, steps=watched)
        assert "watching does not see" in finding.title

    def test_equal_and_unknown_counts_are_no_finding(self):
        counts = [Count(0, 0, "pg", 12, 12), Count(0, 1, "pg", None, 3)]
        assert found("unmatched-collectives", counts=counts) == []

    def test_each_group_is_a_finding(self):
        counts = [Count(0, 0, "pg", 2, 1), Count(0, 0, "tp", 2, 1)]
        groups = (Group("pg", (0, 1)), Group("tp", (0, 1), "tp"))
        findings = found("unmatched-collectives", counts=counts, groups=groups)
        assert [finding.where.mesh_dim for finding in findings] == [None, "tp"]

    @pytest.mark.parametrize(
        ("other", "said"),
        [
            ({"op": "all_gather"}, "all_gather of 1048576 bytes on rank 1"),
            ({"message_bytes": 8}, "all_reduce of 8 bytes on rank 1"),
        ],
    )
    def test_ranks_that_differ_are_an_error(self, other, said):
        rows = [*on_ranks((0, 1)), collective(rank=0, seq=2), collective(rank=1, seq=2, **other)]
        (finding,) = found("unmatched-collectives", rows)
        assert (finding.severity, finding.confidence, finding.count) == ("error", "certain", 1)
        assert evidence(finding) == {"step 0 seq 2": f"all_reduce of 1048576 bytes on rank 0, {said}"}

    def test_a_rank_without_the_collective_is_an_error(self):
        rows = [*on_ranks((0, 1)), collective(rank=0, seq=2)]
        (finding,) = found("unmatched-collectives", rows)
        assert evidence(finding)["step 0 seq 2"].endswith("nothing on rank 1")

    def test_what_the_count_already_misses_is_told_once(self):
        rows = [*on_ranks((0, 1)), collective(rank=0, seq=2)]
        counts = [Count(0, 0, "pg", 2, 2), Count(0, 1, "pg", 2, 1)]
        (finding,) = found("unmatched-collectives", rows, counts=counts)
        assert "on record" in finding.title

    def test_by_order_alone_it_is_only_possible(self):
        rows = [collective(rank=0, seq=None), collective(rank=0, seq=None), collective(rank=1, seq=None)]
        (finding,) = found("unmatched-collectives", rows)
        assert (finding.severity, finding.confidence) == ("warning", "possible")

    def test_unseen_ranks_and_sound_twins_are_no_finding(self):
        assert found("unmatched-collectives", on_ranks((0, 1))) == []
        assert (
            found("unmatched-collectives", on_ranks((0,), group_size=2), run=run_of(2, ranks_seen=(0,))) == []
        )
        # Sizes that are not known do not disagree.
        unsized = [collective(rank=0, message_bytes=None), collective(rank=1)]
        assert found("unmatched-collectives", unsized) == []

    def test_many_disagreements_are_counted_and_few_shown(self):
        rows = [
            collective(rank=rank, seq=seq, message_bytes=8 + rank) for rank in (0, 1) for seq in range(50)
        ]
        (finding,) = found("unmatched-collectives", rows)
        assert finding.count == 50
        assert len(finding.evidence) == 5


def unexplained(share, **given):
    rest = int(100 * MS * share)
    return step(
        duration_ns=100 * MS,
        compute_ns=100 * MS - rest,
        exposed_comm_ns=0,
        idle_ns=0,
        unattributed_ns=rest,
        **given,
    )


class TestUnattributed:
    def test_above_the_limit_is_a_finding(self):
        (finding,) = found("unattributed-time", steps=[unexplained(0.2), step(rank=1)])
        assert finding.severity == "warning"
        assert finding.toll_ns is None
        assert finding.ranks == (0,)
        assert "20 % of a step is unexplained: 20.0 ms of step 0 on rank 0" in finding.title

    def test_below_the_limit_and_the_captures_own_are_none(self):
        assert found("unattributed-time", steps=[unexplained(0.05)]) == []
        assert found("unattributed-time", steps=[unexplained(0.2, capture_ns=16 * MS)]) == []
        assert len(found("unattributed-time", steps=[unexplained(0.2, capture_ns=14 * MS)])) == 1

    def test_kernels_that_nothing_classifies_are_named_with_the_lines_that_do(self):
        name = "void my_lib::push<float, 4>(float*, int)"
        stalls = [
            Stall(0, 0, "unclassified", name, "backward", 2, 19 * MS, 19 * MS),
            Stall(0, 0, "unclassified", "other's_kernel", "backward", 1, 1 * MS, 1 * MS),
            Stall(7, 0, "unclassified", "outside", "backward", 1, 1 * MS, 1 * MS),
        ]
        (finding,) = found("unattributed-time", steps=[unexplained(0.2)], stalls=stalls)
        assert "my_lib::push and 1 more ran in it, which may be communication" in finding.title
        assert evidence(finding)[f"not classified: {name}"] == 19 * MS
        assert "--kernels own.toml" in finding.remedy.text
        rules = tomllib.loads(finding.remedy.code)["kernel"]
        assert [rule["library"] for rule in rules] == ["own", "own"]
        assert re.search(rules[0]["pattern"], name)
        assert re.search(rules[1]["pattern"], "other's_kernel")
        # Time that is small, or a step without such a kernel, is told as before.
        assert found("unattributed-time", steps=[unexplained(0.01)], stalls=stalls) == []
        (plain,) = found("unattributed-time", steps=[unexplained(0.2)])
        assert plain.remedy.code is None

    def test_a_step_of_no_time_is_no_share(self):
        nothing = step(duration_ns=0, compute_ns=0, exposed_comm_ns=0, idle_ns=0)
        assert found("unattributed-time", steps=[nothing]) == []

    def test_a_step_in_which_the_capture_stopped_is_named(self):
        notices = [Notice(1, "capture-stopped", "KeyError in the mode", 0)]
        (finding,) = found("unattributed-time", notices=notices)
        assert evidence(finding) == {"step 0 rank 1: capture stopped": "KeyError in the mode"}
        assert finding.ranks == (1,)
        outside = [Notice(1, "capture-stopped", "before the first step")]
        assert found("unattributed-time", notices=outside) == []


class TestIncomplete:
    @pytest.mark.parametrize(
        "text",
        [
            "the group of 73 of 74 collectives is unknown",
            "2 of 2 collectives name no group: assumed the default group",
        ],
    )
    def test_unknown_groups_are_told_as_the_notice_tells_them(self, text):
        (finding,) = found("incomplete-input", notices=[Notice(0, "groups-unknown", text)])
        assert finding.title == f"rank 0 did not name every group: {text}"
        both = [Notice(0, "groups-unknown", text), Notice(1, "groups-unknown", "another text")]
        (finding,) = found("incomplete-input", notices=both)
        assert finding.title.startswith("ranks 0-1 did not name the group of every collective")
        assert [item.value for item in finding.evidence] == [text, "another text"]

    def test_missing_ranks_are_named(self):
        book = run_of(4, ranks_seen=(0, 2))
        (finding,) = found("incomplete-input", run=book)
        assert finding.ranks == (1, 3)
        assert finding.title.startswith("ranks 1, 3 of 4 left no records: the bill covers ranks 0, 2")

    def test_a_fake_group_has_no_other_ranks(self):
        assert found("incomplete-input", run=run_of(4, ranks_seen=(0,), backend="fake")) == []

    @pytest.mark.parametrize(
        "kind", ["rank-incomplete", "gather-incomplete", "capture-stopped", "times-unknown"]
    )
    def test_notices_are_told_once_a_kind_with_their_ranks(self, kind):
        notices = [Notice(1, kind, "why", 0), Notice(0, kind, "why", 0), Notice(0, "something-else", "no")]
        (finding,) = found("incomplete-input", notices=notices)
        assert finding.ranks == (0, 1)
        assert evidence(finding) == {kind: "why"}

    def test_ranks_with_fewer_steps_are_named_unless_a_notice_did(self):
        steps = [step(0, 0), step(1, 0), step(0, 1)]
        (finding,) = found("incomplete-input", steps=steps)
        assert finding.ranks == (1,)
        assert evidence(finding) == {"steps of rank 1": 1}
        notices = [Notice(1, "rank-incomplete", "killed")]
        (finding,) = found("incomplete-input", steps=steps, notices=notices)
        assert evidence(finding) == {"rank-incomplete": "killed"}

    def test_what_a_reader_of_traces_says_is_told_in_one_finding_a_kind(self):
        kinds = ["no-kernels", "world-size-unknown", "groups-unknown"]
        kinds += ["file-unreadable", "file-cut", "file-left-out", "steps-differ", "clock-unknown"]
        # What leaves the bill as good as it was comes last.
        kinds += ["no-steps", "sizes-unknown", "launches-unseen", "rank-from-name"]
        notices = [Notice(rank, kind, f"{kind} of {rank}") for kind in kinds for rank in (0, 1)]
        findings = found("incomplete-input", notices=notices, run=run_of(backend="nccl"))
        assert [finding.evidence[0].label for finding in findings] == kinds
        on_cpus = found("incomplete-input", notices=notices, run=run_of(backend="gloo"))
        assert [finding.evidence[0].label for finding in on_cpus] == [k for k in kinds if k != "no-kernels"]
        on_gpus = found("incomplete-input", notices=notices, run=run_of(backend="gloo", device="NVIDIA H100"))
        assert [finding.evidence[0].label for finding in on_gpus] == kinds
        for kind, finding in zip(kinds, findings, strict=True):
            of_files = kind in ("file-unreadable", "file-left-out")
            assert finding.title.startswith("2 " if of_files else "ranks 0-1 ")
        assert len({finding.remedy.text for finding in findings}) == len(kinds)

    def test_of_many_texts_few_are_shown_and_all_counted(self):
        notices = [Notice(0, "file-unreadable", f"file {number}") for number in range(25)]
        (finding,) = found("incomplete-input", notices=notices)
        assert len(finding.evidence) == 11
        assert evidence(finding)["texts more"] == 15

    def test_a_notice_about_differing_steps_is_not_said_twice(self):
        steps = [step(0, 0), step(1, 0), step(1, 1), step(2, 1)]
        assert "finished fewer" in found("incomplete-input", steps=steps)[0].title
        notices = [Notice(rank, "steps-differ", "0-1 against 1-2") for rank in (0, 1)]
        (finding,) = found("incomplete-input", steps=steps, notices=notices)
        assert "recorded other steps" in finding.title

    def test_rows_outside_steps_are_counted(self):
        rows = [*on_ranks((0, 1)), *on_ranks((0, 1), seq=2, step=None, message_bytes=1000)]
        (finding,) = found("incomplete-input", rows)
        assert finding.severity == "info"
        assert finding.title.startswith("2 collectives (2.00 kB over all ranks) ran outside every step")

    def test_what_is_sent_before_the_first_step_is_set_up_and_not_said(self):
        steps = [step(rank=rank, start_ns=50 * MS) for rank in (0, 1)]
        during = on_ranks((0, 1), issue_ns=60 * MS, start_ns=60 * MS)
        before = on_ranks((0, 1), seq=2, step=None, issue_ns=1 * MS)
        assert found("incomplete-input", [*during, *before], steps=steps) == []
        after = on_ranks((0, 1), seq=3, step=None, issue_ns=400 * MS, start_ns=400 * MS)
        (finding,) = found("incomplete-input", [*during, *before, *after], steps=steps)
        assert finding.title.startswith("2 collectives")

    def test_rows_of_a_step_that_nobody_finished_are_listed_and_not_billed(self):
        rows = on_ranks((0, 1), step=7)
        (finding,) = found("incomplete-input", rows)
        assert "outside every step" in finding.title
        assert found("exposed-communication", rows) == []

    def test_no_step_at_all_is_said(self):
        (finding,) = found("incomplete-input", on_ranks((0, 1), step=None), steps=[])
        assert "no rank finished a step" in finding.title

    def test_unknown_times_are_counted_once(self):
        rows = [*on_ranks((0, 1)), *on_ranks((0, 1), seq=2, exposed_ns=None)]
        (finding,) = found("incomplete-input", rows)
        assert finding.title == "2 of 4 collectives have no known time and no toll"
        (finding,) = found("incomplete-input", rows, notices=[Notice(0, "times-unknown", "fake")])
        assert evidence(finding) == {"times-unknown": "fake"}

    def test_unknown_times_of_steps_that_no_figure_rests_on_are_no_warning(self):
        steps = [
            step(number, rank, level="survey" if number == 0 else "watch")
            for number in (0, 1, 2)
            for rank in (0, 1)
        ]
        (finding,) = found(
            "incomplete-input",
            steps=steps,
            notices=[Notice(rank, "times-unknown", "why", 0) for rank in (0, 1)],
        )
        assert finding.severity == "info"
        assert "of their times in step 0; the step's times come from other steps" in finding.title
        watched_too = [Notice(0, "times-unknown", "why", number) for number in (0, 1)]
        (finding,) = found("incomplete-input", steps=steps, notices=watched_too)
        assert finding.severity == "warning"
        assert "lower bounds" in finding.remedy.text

    def test_a_whole_run_is_no_finding(self):
        assert found("incomplete-input", on_ranks((0, 1)), computes=[compute()]) == []


def test_what_no_finding_prices_is_in_the_report():
    data = Stall(0, 1, "data", "next", "other", 1, 60 * MS, 60 * MS)
    slow = step(rank=1, duration_ns=160 * MS, exposed_comm_ns=0, idle_ns=70 * MS, unattributed_ns=40 * MS)
    idle = run(ledger(steps=[step(), slow]))
    assert idle.unbilled == Unbilled(1, 70 * MS, 160 * MS, idle=True)
    assert Report.from_json(idle.to_json()).unbilled == idle.unbilled
    # The stall is billed, and what is left of idle time is less than what is unattributed.
    billed = run(ledger(steps=[step(), slow], stalls=[data]))
    assert "data-stall" in [finding.kind for finding in billed.findings]
    assert billed.unbilled == Unbilled(1, 40 * MS, 160 * MS, idle=False)
    # A rank that only watched steps says nothing of its parts; a small share is not worth a figure.
    assert run(ledger(steps=[step(), replace(slow, level="watch", step=1)])).unbilled is None
    assert run(ledger()).unbilled is None


def test_idle_time_in_no_finding_is_held_to_the_watched_step_without_its_recording():
    own = {"duration_ns": 110 * MS, "exposed_comm_ns": 30 * MS, "capture_ns": 10 * MS, "asleep_ns": 50 * MS}
    whole = step(0, idle_ns=30 * MS, compute_ns=40 * MS, unattributed_ns=10 * MS, **own)
    lean = step(idle_ns=0, compute_ns=0, unattributed_ns=80 * MS, level="watch", **own)
    unbilled = run(ledger(run=run_of(1), steps=[whole, *(replace(lean, step=n) for n in (1, 2, 3))])).unbilled
    assert unbilled is not None
    assert (unbilled.time_ns, unbilled.step_ns) == (pytest.approx(30 * MS), 100 * MS)


def test_the_rank_with_most_idle_time_is_named_not_the_slowest():
    parts = {"exposed_comm_ns": 0, "unattributed_ns": 0}
    slow = step(rank=0, duration_ns=101 * MS, compute_ns=71 * MS, idle_ns=30 * MS, **parts)
    idlest = step(rank=1, duration_ns=100 * MS, compute_ns=30 * MS, idle_ns=70 * MS, **parts)
    assert run(ledger(steps=[slow, idlest])).unbilled == Unbilled(1, 70 * MS, 100 * MS, idle=True)
    # On what a finding prices of one rank's idle time, the other has more that none explains.
    data = Stall(0, 1, "data", "next", "other", 1, 60 * MS, 60 * MS)
    assert run(ledger(steps=[slow, idlest], stalls=[data])).unbilled == Unbilled(
        0, 30 * MS, 101 * MS, idle=True
    )


def test_idle_time_that_a_straggler_finding_speaks_of_is_explained():
    # Rank 1 comes 60 ms late, as it is idle so much longer.
    rows = [
        collective(
            rank=rank,
            start_ns=start * MS,
            duration_ns=(90 - start) * MS,
            exposed_ns=(90 - start) * MS,
        )
        for rank, start in ((0, 20), (1, 80))
    ]
    mine = {"compute_ns": 10 * MS}
    steps = [
        step(rank=0, **mine | {"duration_ns": 101 * MS, "exposed_comm_ns": 71 * MS, "idle_ns": 20 * MS}),
        step(rank=1, **mine | {"duration_ns": 101 * MS, "exposed_comm_ns": 10 * MS, "idle_ns": 81 * MS}),
    ]
    billed = run(ledger(rows, steps=steps))
    (straggler,) = [each for each in billed.findings if each.kind == "straggler"]
    assert straggler.ranks == (1,)
    assert {figure.name: figure.value for figure in straggler.figures} == {"late_host_ns": 61 * MS}
    # The 20 ms that are left are less than a fifth of the step.
    assert billed.unbilled is None


def test_findings_of_collectives_that_cannot_be_trusted_name_their_rows():
    rows = [collective(rank=rank, step=number) for rank in (0, 1) for number in (0, None)]
    (outside,) = found("incomplete-input", rows)
    assert outside.rows == Rows(collectives=((1, 2, 2),))
    untimed = [collective(rank=rank, exposed_ns=given) for rank in (0, 1) for given in (None, 1 * MS)]
    (without_times,) = found("incomplete-input", untimed)
    assert without_times.rows == Rows(collectives=((0, 2, 2),))


def host(
    lost_ms: float, source: str | None, library: str | None = None, name: str = "", step: int = 0
) -> Stall:
    lost_ns = int(lost_ms * MS)
    return Stall(step, 0, "host", name, "other", 1, lost_ns, lost_ns, source=source, library=library)


def test_idle_time_that_nothing_prices_names_the_code_that_the_host_was_in():
    idle = step(
        duration_ns=100 * MS, compute_ns=20 * MS, exposed_comm_ns=0, idle_ns=80 * MS, unattributed_ns=0
    )
    stalls = [
        host(50, "data.py:4 (read)", "av/codec.py:9 (decode)"),
        host(10, "train.py:1 (main)"),
        host(20, None),
    ]
    (unbilled,) = [run(ledger(steps=[idle], stalls=stalls)).unbilled]
    assert unbilled == Unbilled(
        0, 80 * MS, 100 * MS, True, None, "data.py:4 (read)", "av/codec.py:9 (decode)", 50 * MS
    )
    # Less than a quarter of it is no answer.
    few = run(ledger(steps=[idle], stalls=[host(19, "data.py:4 (read)"), host(61, None)])).unbilled
    assert few == Unbilled(0, 80 * MS, 100 * MS, True)
    # In a mean step: one of two such steps has it.
    two = [idle, replace(idle, step=1)]
    captured = run(ledger(steps=two, stalls=[host(80, None, name=GRAPH_CAPTURE)])).unbilled
    assert captured == Unbilled(0, 80 * MS, 100 * MS, True, GRAPH_CAPTURE, None, None, 40 * MS)
