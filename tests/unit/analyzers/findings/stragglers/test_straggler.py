"""The late rank, and what it did meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.context.context import make_context
from shardtoll.ledger import Leadup, Report, Stall
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.late_jobs import EVERY, RANKS, job, reported
from tests.unit.analyzers.ledgers import MS, US, collective, compute, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running


def stragglers(*args, **given):
    return list(reported(*args, analyze=running("straggler"), **given).findings)


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


def test_the_rank_that_is_always_last_is_named_with_its_toll():
    (finding,) = stragglers(*job([2] * 5, compute_ns=6 * MS, module="blocks.3", op="gemm"))
    # Ranks 0, 1 and 3 wait 2 ms in each of 5 collectives of the one step.
    assert (finding.toll_ns, finding.saving_ns) == (10 * MS, 10 * MS)
    assert (finding.ranks, finding.count, finding.confidence) == ((2,), 5, "certain")
    assert finding.title == (
        "rank 2 is last in 5 of 5 collectives, and the others wait 10.0 ms per step (10 %) for it: it spends "
        "10.0 ms longer computing than the others, most in backward of blocks.3"
    )
    assert evidence(finding)["more time computing, per step"] == 10 * MS
    assert evidence(finding)["ranks that wait"] == "ranks 0-1, 3"
    assert (finding.where.module, finding.where.phase, finding.where.op) == ("blocks.3", "backward", "gemm")
    assert "getloadavg" in finding.remedy.code


@pytest.mark.parametrize(
    ("part", "words", "code", "figures"),
    [
        ("data_ns", "idle while its batch is fetched", "DataLoader", ["late_data_ns"]),
        ("copy_ns", "in memory copies", "non_blocking", []),
        (
            "host_ns",
            "idle because its host had launched nothing",
            "gc.disable",
            ["late_launches_ns", "late_host_ns"],
        ),
        ("sync_ns", "idle after its host waited for the device", "", ["late_sync_ns"]),
        ("comm_ns", "in other collectives", "", []),
    ],
)
def test_the_remedy_follows_from_what_the_late_rank_did(part, words, code, figures):
    about = run_of(RANKS, backend="nccl", device="NVIDIA H200")
    (finding,) = stragglers(*job([0] * 4, **{part: 2 * MS}), run=about)
    assert finding.severity == "warning"
    assert f"8.00 ms longer {words}" in finding.title
    assert code in (finding.remedy.code or "")
    assert {figure.name: figure.value for figure in finding.figures} == dict.fromkeys(figures, 8 * MS)


def test_a_step_that_began_late_is_said_to():
    rows, leadups = job([1] * 3)
    moved = [
        Leadup(0, one.rank, one.index, one.since_ns + 2 * MS, 2 * MS, 0, 0, 0, 0, 0, "backward")
        if one.rank == 1
        else one
        for one in leadups
    ]
    (finding,) = stragglers(rows, moved)
    assert "it begins its step 6.00 ms after the median of the others" in finding.title
    assert "not on record" in finding.remedy.text


def test_on_a_cpu_the_cause_is_told_in_its_own_words():
    """There is no device that idles, and a small share is information only, which is said."""
    (finding,) = stragglers(*job([0] * 4, host_ns=2 * MS))
    assert "8.00 ms longer outside operators (Python, sleeping, files)" in finding.title
    assert "gc.disable" not in (finding.remedy.code or "")
    assert finding.severity == "info"
    assert "from 20 % of the step on" in evidence(finding)["why it is only information"]
    (dear,) = stragglers(*job([0] * 4, late=6 * MS, host_ns=6 * MS))
    assert dear.severity == "warning"


def test_whole_steps_tell_the_cause_where_no_lead_up_does():
    rows, _ = job([2] * 5)
    steps = [
        step(rank=rank, idle_ns=(40 if rank == 2 else 10) * MS, compute_ns=(20 if rank == 2 else 50) * MS)
        for rank in range(RANKS)
    ]
    (finding,) = stragglers(rows, steps=steps)
    assert "it spends 30.0 ms longer outside operators" in finding.title


def test_the_reasons_of_traced_steps_only_are_means_over_those_steps():
    rows, leadups = job([2] * 5, host_ns=2 * MS)
    later = [collective(rank=rank, seq=9, step=1, group_size=RANKS, exposed_ns=0) for rank in range(RANKS)]
    steps = [step(number, rank) for number in (0, 1) for rank in range(RANKS)]
    told = [Stall(0, rank, "host", "", "other", 1, MS, MS) for rank in range(RANKS)]
    (finding,) = stragglers(rows + later, leadups, steps=steps, stalls=told)
    assert "it spends 10.0 ms longer outside operators" in finding.title


def test_waiting_mostly_in_the_first_collective_may_be_a_recording_that_began_later():
    rows, _ = job([1])
    (finding,) = stragglers(rows)
    assert finding.title.endswith("most of the waiting is in the first collective on record")
    assert finding.confidence == "possible"
    said = "Rank 1 is late, or only began to record later: the others wait 2.00 ms per step for it; "
    assert reported(rows).headline.startswith(said)
    # What it did meanwhile is on record here, so that it was late indeed.
    (told,) = stragglers(*job([1], compute_ns=6 * MS))
    assert "recording" not in told.title


def with_rank_3_nearly_as_late():
    """Rank 2 is late three times, and rank 3 comes 500 us before it."""
    rows, _ = job([2] * 3)
    nearly = [
        collective(rank=3, seq=n + 1, group_size=RANKS, start_ns=(n + 1) * EVERY - 1500 * US,
                   duration_ns=1500 * US, exposed_ns=1500 * US)
        for n in range(3)
    ]  # fmt: skip
    return stragglers([row for row in rows if row.rank != 3] + nearly)


def test_how_late_is_told_against_the_rank_before_and_against_the_median():
    (finding,) = with_rank_3_nearly_as_late()
    told = evidence(finding)
    assert told["after the second-to-last rank, median collective"] == 500 * US
    assert told["after the median rank, median collective"] == 1250 * US
    assert "others wait up to 6.00 ms" in finding.title
    assert told["rank that waits least, per step"] == 1500 * US


def _broadcasts(root_stays):
    """Three broadcasts of rank 0 that the other joins 2 ms later."""
    return [
        collective(
            rank=rank, seq=n + 1, op="broadcast", root=0,
            start_ns=n * EVERY + (2 * MS if rank else 0),
            duration_ns=1 * MS if rank or not root_stays else 3 * MS,
            exposed_ns=1 * MS if rank or not root_stays else 3 * MS,
        )
        for n in range(3)
        for rank in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("root_stays", [True, False])
def test_the_root_of_a_broadcast_waits_for_nobody(root_stays):
    """It hands its data over and is done. A large message may hold it until the receiver has come (back
    pressure), but nothing on record tells that apart from moving data, so no rank is blamed for it."""
    rows = _broadcasts(root_stays=root_stays)
    nccl = run_of(2, backend="nccl")
    assert stragglers(rows, run=nccl) == []
    report = reported(rows, run=nccl)
    assert report.collectives["wait_ns"].tolist() == [0] * 6
    rest = [f for f in report.findings if f.kind == "exposed-communication"]
    assert sum(f.toll_ns for f in rest) == (9 * MS if root_stays else 3 * MS)


def test_on_gloo_the_root_of_a_broadcast_waits_for_a_late_receiver():
    """There a message is handed over when both sides are there."""
    (finding,) = stragglers(_broadcasts(root_stays=True), run=run_of(2))
    assert (finding.ranks, evidence(finding)["ranks that wait"]) == ((1,), "rank 0")


def _rooted(op, starts, end, root=0):
    """Three operations, each rank from its own start to `end`, in ms; senders take 100 us."""
    from_root = op in ("broadcast", "scatter")
    return [
        collective(
            rank=rank, seq=n + 1, op=op, root=root, group_size=len(starts),
            start_ns=n * EVERY + start * MS, duration_ns=took, exposed_ns=took,
        )
        for n in range(3)
        for rank, start in enumerate(starts)
        for took in [(end - start) * MS if (rank == root) != from_root else 100 * US]
    ]  # fmt: skip


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_receivers_wait_for_the_root_alone(op):
    """Rank 2 comes last, and holds nobody up."""
    (finding,) = stragglers(_rooted(op, [4, 0, 6], 7), run=run_of(3))
    assert (finding.ranks, finding.toll_ns) == ((0,), 12 * MS)
    assert evidence(finding)["ranks that wait"] == "rank 1"


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_a_root_that_receives_waits_for_all_and_nobody_for_it(op):
    (finding,) = stragglers(_rooted(op, [0, 1, 4], 5), run=run_of(3))
    assert (finding.ranks, finding.toll_ns) == ((2,), 12 * MS)
    assert evidence(finding)["ranks that wait"] == "rank 0"
    assert stragglers(_rooted(op, [4, 0, 1], 5), run=run_of(3)) == []


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_without_a_known_root_nobody_is_known_to_wait(op):
    rows = _rooted(op, [4, 0, 6], 7, root=0)
    rows = [replace(row, root=None) for row in rows]
    assert stragglers(rows, run=run_of(3)) == []
    assert reported(rows, run=run_of(3)).collectives["wait_ns"].isna().all()


class TestRanksMissing:
    def seen(self, **given):
        rows, leadups = job([2] * 5, **given)
        about = run_of(RANKS, ranks_seen=(0, 2, 3))
        return [row for row in rows if row.rank != 1], leadups, about

    def test_the_last_of_those_seen_gives_a_lower_bound(self):
        rows, leadups, about = self.seen(data_ns=2 * MS)
        (finding,) = stragglers(rows, [one for one in leadups if one.rank != 1], run=about)
        assert (finding.ranks, finding.toll_ns, finding.confidence) == ((2,), 10 * MS, "possible")
        assert finding.title == (
            "rank 2 is last of the ranks seen in 5 of 5 collectives, and the others wait at least 10.0 ms "
            "per step (10 %) for it: it spends 10.0 ms longer idle while its batch is fetched than the others"
        )
        assert "may have come later" in evidence(finding)["waits are lower bounds"]

    def test_wait_stays_unknown_and_each_time_is_billed_once(self):
        rows, _, about = self.seen()
        report = reported(rows, run=about)
        assert report.tables["collectives"].column("wait_ns").null_count == len(rows)
        (rest,) = [f for f in report.findings if f.kind == "exposed-communication"]
        assert rest.toll_ns == 5 * MS
        assert report.headline.startswith("Rank 2 is last in 5 of 5")

    def test_a_bound_of_little_is_not_in_the_headline(self):
        rows, _, about = self.seen(late=2 * MS, transfer=20 * MS)
        said = reported(rows, run=about).headline
        assert "only 3 of 4 ranks were recorded" in said

    def test_times_that_contradict_each_other_bound_nothing(self):
        rows, _, about = self.seen(late=2 * MS, transfer=1 * MS)
        torn = [
            replace(row, start_ns=row.start_ns + 5 * MS) if row.rank == 3 else row
            for row in rows
        ]  # fmt: skip
        assert stragglers(torn, run=about) == []


def test_without_lead_ups_the_cause_is_unknown():
    rows, _ = job([2] * 5)
    (finding,) = stragglers(rows)
    assert finding.title.endswith("for it")
    assert "not on record" in finding.remedy.text


def test_ranks_that_take_turns_are_no_single_rank():
    (finding,) = stragglers(*job([0, 1, 2, 3] * 2))
    # Each rank waits in 6 of 8 collectives.
    assert finding.toll_ns == 12 * MS
    assert finding.saving_ns is None
    assert "no single rank is the cause" in finding.title
    assert finding.ranks == (0, 1, 2, 3)


def test_ranks_of_equal_work_that_take_turns_are_not_sent_to_their_batches():
    rows, _ = job([0, 1, 2, 3] * 2)
    rows = [replace(row, step=row.seq // 5) for row in rows]
    steps = [step(n, rank, start_ns=n * 4 * EVERY) for n in (0, 1) for rank in range(RANKS)]

    def advised(flops):
        computes = [compute(step=n, rank=rank, flops=flops(rank)) for n in (0, 1) for rank in range(RANKS)]
        (finding,) = stragglers(rows, steps=steps, computes=computes)
        return finding.remedy.text

    assert advised(lambda _: 1_000).startswith("Look for noise on the hosts")
    assert advised(lambda rank: 1_000 + 100 * rank).startswith("Print each rank's batch shapes")
    assert advised(lambda _: 0).startswith("Print each rank's batch shapes")


def test_each_wait_is_billed_once():
    found = stragglers(*job([2, 2, 2, 2, 2, 2, 0, 1]))
    assert [f.ranks for f in found] == [(2,), (0, 1)]
    # Rank 3 waits in all eight.
    assert sum(f.toll_ns for f in found) == 16 * MS
    exposed = [f for f in reported(*job([2] * 8)).findings if f.kind == "exposed-communication"]
    assert sum(f.saving_ns for f in exposed) == 8 * MS


def test_only_exposed_waiting_costs():
    assert stragglers(*job([2] * 5, exposed=1 * MS)) == []
    (finding,) = stragglers(*job([2] * 5, exposed=2 * MS))
    assert finding.toll_ns == 5 * MS


def test_the_saving_ends_at_the_rank_before():
    (finding,) = with_rank_3_nearly_as_late()
    assert (finding.toll_ns, finding.saving_ns) == (6 * MS, 1500 * US)


def test_little_waiting_and_little_lateness_are_no_finding():
    assert stragglers(*job([2] * 5, late=100 * US)) == []
    assert all("no single rank" in f.title for f in stragglers(*job([2] * 200, late=9 * US)))


def test_one_of_two_collectives_is_only_possible_and_of_two_ranks_half_is_chance():
    (finding,) = stragglers(*job([2] * 2))
    assert finding.confidence == "possible"
    two = [
        collective(rank=rank, seq=n, start_ns=n * EVERY + (2 * MS if rank == n % 2 else 0), duration_ns=3 * MS
                   - (2 * MS if rank == n % 2 else 0), exposed_ns=3 * MS)
        for n in range(6)
        for rank in (0, 1)
    ]  # fmt: skip
    (finding,) = stragglers(two, run=run_of(2))
    assert "no single rank" in finding.title


def test_waiting_in_implicit_collectives_is_billed_with_them():
    late = [
        collective(rank=rank, implicit=True, seq=n, start_ns=(n * 20 + 8 * rank) * MS,
                   duration_ns=(10 - 8 * rank) * MS, exposed_ns=(10 - 8 * rank) * MS,
                   caused_by_op="aten.mm.default", placements_from="(Shard(0))",
                   placements_to="(Replicate())")
        for n in range(4) for rank in (0, 1)
    ]  # fmt: skip
    kinds = {finding.kind for finding in run(ledger(late)).findings}
    assert "implicit-redistribute" in kinds
    assert "straggler" not in kinds


def over_steps(late_ranks, **parts):
    """`job` with each collective in a step of its own."""
    rows, leadups = job(late_ranks, late=6 * MS, **parts)
    rows = [replace(row, step=row.seq - 1) for row in rows]
    leadups = [replace(one, step=one.index) for one in leadups]
    steps = [
        step(n, rank, duration_ns=20 * MS, compute_ns=10 * MS, exposed_comm_ns=0)
        for n in range(len(late_ranks))
        for rank in range(RANKS)
    ]
    return {"rows": rows, "leadups": leadups, "steps": steps}


def test_a_rank_that_is_last_by_turns_is_no_warning():
    found = stragglers(**over_steps([2, 1, 2, 1, 2, 2], host_ns=6 * MS))
    (noise,) = [finding for finding in found if finding.ranks == (2,)]
    assert (noise.severity, noise.confidence) == ("info", "possible")
    assert "in only 4 of 6 steps" in evidence(noise)["why it is only information"]
    (habit,) = stragglers(**over_steps([2] * 6, host_ns=6 * MS))
    assert (habit.severity, habit.confidence) == ("warning", "certain")


def test_on_a_cpu_few_steps_need_a_cause():
    (few,) = stragglers(**over_steps([2] * 4))
    assert (few.severity, few.confidence) == ("info", "possible")
    (many,) = stragglers(**over_steps([2] * 8))
    assert (many.severity, many.confidence) == ("warning", "certain")


def test_who_is_warned_of_on_the_bill_is_named_by_the_headline():
    rows, leadups = job([2] * 5, transfer=4 * MS, late=3 * MS, host_ns=3 * MS)
    about = run_of(RANKS, backend="nccl", device="NVIDIA H200")
    report = reported(rows, leadups, run=about)
    (finding,) = [finding for finding in report.findings if finding.kind == "straggler"]
    assert finding.severity == "warning"
    assert report.headline.startswith(
        "Moving data costs most: 26 % of the step (mean of 4 ranks); rank 2 is late"
    )
    assert "others wait for it in 5 of 5 collectives, up to 15.0 ms per step" in report.headline
    assert "no rank is late" not in report.headline


def test_a_share_is_of_the_steps_that_the_toll_is_from():
    """One surveyed step of 100 ms, in which ranks wait; watched ones of 2 ms, in which none does."""
    rows, leadups = job([2] * 5, compute_ns=6 * MS)
    watched = [
        step(n, rank, duration_ns=2 * MS, compute_ns=0, exposed_comm_ns=0, idle_ns=2 * MS, level="watch")
        for n in (1, 2)
        for rank in range(RANKS)
    ]
    steps = [step(0, rank) for rank in range(RANKS)] + watched
    context = make_context(ledger(rows, run=run_of(RANKS), leadups=leadups, steps=steps), ROUND)
    assert context.step_ns == 2 * MS
    assert context.share(10 * MS, context.surveyed) == 0.1
    assert context.share(10 * MS, (1, 2)) == 1.0
    # The steps that the bars show have no waiting: no toll may stand next to them.
    assert stragglers(rows, leadups, steps=steps) == []


def test_ranks_that_share_cores_are_no_stragglers_and_one_notice_says_so():
    rows, leadups = job([2] * 10)
    alone, shared = run_of(RANKS, cores=RANKS), run_of(RANKS, cores=2)
    assert [finding.ranks for finding in stragglers(rows, leadups, run=alone)] == [(2,)]
    report = reported(rows, leadups, run=shared)
    assert "straggler" not in {finding.kind for finding in report.findings}
    (notice,) = [each for each in report.notices if each.kind == "cores-shared"]
    said = "4 ranks share 2 CPU cores of a host and delay each other"
    assert (notice.rank, notice.text.split(". ")[0]) == (0, said)
    assert (report.headline or "").startswith(
        "The network is not at fault: 4 ranks share 2 CPU cores and delay each other; "
    )
    # No other finding has their waiting: it is exposed communication, all of it.
    (exposed,) = [each for each in report.findings if each.kind == "exposed-communication"]
    assert (exposed.toll_ns, exposed.saving_ns) == (30 * MS, 10 * MS)
    assert evidence(exposed)["waiting on top, billed as straggler or pipeline-bubble"] == 0


def with_sleep(*more_ms: float, unknown_on: int | None = None, surveyed: int = 0) -> Report:
    """Return the report of ranks that share cores; rank 2 is last, and sleeps so much longer in each step.

    Of `unknown_on` one collective has no known exposed time. The first `surveyed` steps do not tell how long
    ranks slept.
    """
    rows, leadups, steps = [], [], []
    for number, more in enumerate(more_ms):
        made, before = job([2] * 10)
        rows += [
            replace(
                row,
                step=number,
                exposed_ns=None if (row.rank, row.seq) == (unknown_on, 5) else row.exposed_ns,
            )
            for row in made
        ]
        leadups += [replace(each, step=number) for each in before]
        # Each rank sleeps 30 ms of its own, and in what is exposed.
        asleep = [int((70 + (more if rank == 2 else 0)) * MS) for rank in range(RANKS)]
        of_all = {"level": "survey" if number < surveyed or not surveyed else "watch"}
        steps += [
            step(number, rank, asleep_ns=None if number < surveyed else slept, **of_all)
            for rank, slept in enumerate(asleep)
        ]
    return reported(rows, leadups, run=run_of(RANKS, cores=2), steps=steps)


def test_a_rank_that_sleeps_while_others_wait_is_late_though_ranks_share_cores():
    report = with_sleep(20, 19, 21, 0)
    (finding,) = [each for each in report.findings if each.kind == "straggler"]
    assert (finding.ranks, finding.toll_ns, finding.confidence) == ((2,), 20 * MS, "possible")
    slept = "its thread slept longer than its peers', per step, median"
    assert evidence(finding)[slept] == 19 * MS + MS // 2
    assert (report.headline or "").startswith("Rank 2 is late, not the network: the others wait 20.0 ms")
    assert [each.kind for each in report.notices].count("cores-shared") == 1


def test_surveyed_steps_do_not_tell_sleep_and_do_not_speak_against_it():
    # In a run of few steps many are surveyed.
    report = with_sleep(20, 20, 20, 20, 20, 20, 20, surveyed=3)
    (found,) = [each for each in report.findings if each.kind == "straggler"]
    assert (found.ranks, found.severity) == ((2,), "warning")
    assert "straggler" not in {each.kind for each in with_sleep(20, 20, 20, 20, 20, surveyed=3).findings}


def test_longer_waiting_in_surveyed_steps_asks_for_no_more_sleep_in_watched_ones():
    rows, steps = [], []
    for number in range(7):
        made, _ = job([2] * 10, late=8 * MS if number < 3 else 3 * MS)
        rows += [replace(row, step=number) for row in made]
        slept = [(80 + (20 if rank == 2 else 0)) * MS for rank in range(RANKS)]
        level = {"level": "survey" if number < 3 else "watch"}
        steps += [
            step(number, rank, asleep_ns=None if number < 3 else asleep, **level)
            for rank, asleep in enumerate(slept)
        ]
    report = reported(rows, run=run_of(RANKS, cores=2), steps=steps)
    (found,) = [each for each in report.findings if each.kind == "straggler"]
    assert found.severity == "warning"


@pytest.mark.parametrize("more_ms", [(9, 9, 9, 9), (20, 20, 0, 0), (0,), (20,), (20, 20), (-20, 20, 20, -20)])
def test_a_rank_that_sleeps_little_seldom_or_in_too_few_steps_is_none(more_ms):
    assert "straggler" not in {each.kind for each in with_sleep(*more_ms).findings}


def test_a_rank_whose_exposed_time_is_unknown_may_have_slept_in_it():
    unknown = with_sleep(20, 20, 20, 20, unknown_on=2)
    assert "straggler" not in {each.kind for each in unknown.findings}


def test_collectives_that_cost_most_come_before_shared_cores_in_the_headline():
    rows, leadups = job([2] * 10)
    hidden = [replace(row, implicit=True, caused_by_op="aten.mm.default") for row in rows]
    said = reported(hidden, leadups, run=run_of(RANKS, cores=2)).headline
    assert said.startswith("DTensor's implicit collectives cost most: waiting takes ")
    assert "% of the step (mean of 4 ranks), moving data " in said
    assert said.endswith("; start with finding 1. Also, 4 ranks share 2 CPU cores and delay each other.")


@pytest.mark.parametrize(
    "about",
    [
        {"cores": None},
        {"cores": 4},
        {"cores": 2, "hosts": ("a", "b"), "rank_hosts": ("a", "a", "b", "b"), "ranks_per_host": 2},
        {"cores": 2, "device": "NVIDIA H100", "backend": "nccl"},
    ],
)
def test_ranks_with_cores_of_their_own_or_on_devices_share_none(about):
    report = reported(*job([2] * 10), run=run_of(RANKS, **about))
    assert not [each for each in report.notices if each.kind == "cores-shared"]
    assert [finding.ranks for finding in report.findings if finding.kind == "straggler"] == [(2,)]


def test_ranks_of_one_host_of_several_share_its_cores():
    hosts = {"hosts": ("a", "b"), "rank_hosts": ("a", "b", "b", "b"), "ranks_per_host": None}
    report = reported(*job([2] * 10), run=run_of(RANKS, cores=2, **hosts))
    (notice,) = [each for each in report.notices if each.kind == "cores-shared"]
    assert (notice.rank, notice.text[:22]) == (1, "3 ranks share 2 CPU co")
