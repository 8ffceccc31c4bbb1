"""Habits of a loop on ledgers that have the fault, and on sound twins that look like it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.habits import constant_buffers, needless_barrier, unused_search
from shardtoll.analyzers.roofline import UNKNOWN
from shardtoll.ledger import Group
from shardtoll.ledger.records import ddp_causes
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

STEPS = 4
DP = Group("dp", (0, 1))


def found(kind, rows, world=2, groups=None, steps=STEPS, **given):
    rows = list(rows)
    timed = [step(number, rank) for number in range(steps) for rank in range(world)]
    report = running(kind)(ledger(rows, run=run_of(world, **given), groups=groups, steps=timed))
    return [finding for finding in report.findings if finding.kind == kind]


def in_steps(*calls, steps=range(STEPS), ranks=(0, 1), group="pg", first=0):
    """The same calls in each step on each rank; a pair is what each rank has of a column."""
    seq = first
    for number in steps:
        for place, call in enumerate(calls):
            seq += 1
            for rank in ranks:
                own = {key: value[rank] if isinstance(value, tuple) else value for key, value in call.items()}
                start = (2 + 10 * place + own.pop("late_ms", 0)) * MS
                values = {"issue_ns": start, "start_ns": start, "group_size": len(ranks), "group": group}
                yield collective(step=number, rank=rank, seq=seq, **(values | own))


BARRIER = {"op": "barrier", "phase": "other", "message_bytes": 0, "dtype": None, "source": "t.py:9 (f)"}
REDUCE = {"op": "all_reduce", "source": "t.py:5 (f)"}


class TestNeedlessBarrier:
    def test_a_barrier_beside_a_reduction_in_each_step(self):
        (finding,) = found("needless-barrier", in_steps(REDUCE, BARRIER))
        assert finding.where.source == "t.py:9 (f)"
        assert (finding.severity, finding.confidence, finding.count) == ("warning", "likely", 1)
        assert finding.toll_ns == finding.saving_ns == 2 * MS
        assert finding.remedy.counterfactual == "the same step without this barrier"

    def test_waiting_for_a_late_rank_is_no_saving(self):
        # Both end at one time; whoever came 4 ms later takes turns, so nobody is waited for on purpose.
        turns = [{"late_ms": (4, 0), "duration_ns": (MS, 5 * MS), "exposed_ns": (MS, 5 * MS)}]
        turns.append({name: pair[::-1] for name, pair in turns[0].items()})
        rows = [
            row
            for n in range(STEPS)
            for row in in_steps(REDUCE, BARRIER | turns[n % 2], steps=(n,), first=2 * n)
        ]
        (finding,) = found("needless-barrier", rows)
        assert (finding.toll_ns, finding.saving_ns) == (3 * MS, MS)
        assert finding.severity == "warning"
        # Two figures of one barrier that lie far apart need a reason where both stand.
        reason = "at least 2.00 ms of the toll is waiting, which moves to the next collective"
        assert finding.remedy.counterfactual == f"the same step without this barrier; {reason}"

    def test_toll_and_saving_of_two_ranks_leave_a_least_that_is_waiting(self):
        # Rank 0 waits for 4 of 5 ms by turns with rank 1, which has 2 ms exposed of its own more than rank 0.
        first = {"late_ms": (0, 8), "duration_ns": (9 * MS, MS), "exposed_ns": (9 * MS, MS)}
        second = {"late_ms": (4, 0), "duration_ns": (3 * MS, 7 * MS), "exposed_ns": (0, 7 * MS)}
        rows = [
            row
            for n in range(STEPS)
            for row in in_steps(REDUCE, BARRIER | (first, second)[n % 2], steps=(n,), first=2 * n)
        ]
        (finding,) = found("needless-barrier", rows)
        # Rank 0: 4.5 ms exposed, 0.5 of it moving, so 4 are waiting; rank 1: 4 ms, 2 of it moving.
        assert (finding.toll_ns, finding.saving_ns) == (4_500_000, 2 * MS)
        assert "; at least 2.50 ms of the toll is waiting" in (finding.remedy.counterfactual or "")

    def test_a_rank_that_all_wait_for_may_be_writing_a_file(self):
        late = BARRIER | {"late_ms": (6, 0), "duration_ns": (MS, 7 * MS), "exposed_ns": (MS, 7 * MS)}
        (finding,) = found("needless-barrier", in_steps(REDUCE, late))
        assert (finding.severity, finding.confidence, finding.saving_ns) == ("info", "possible", None)
        assert "rank 0 is last" in finding.title

    @pytest.mark.parametrize(
        "rows",
        [
            in_steps(BARRIER),
            [*in_steps(REDUCE), *in_steps(BARRIER, steps=(3,))],
            in_steps(REDUCE, BARRIER | {"caused_by_op": "checkpoint.save"}),
            in_steps(REDUCE | {"op": "broadcast"}, BARRIER),
            [*in_steps(REDUCE), *in_steps(BARRIER, ranks=(0,))],
        ],
        ids=[
            "nothing else orders",
            "now and then",
            "guards a checkpoint",
            "a broadcast orders less",
            "one rank",
        ],
    )
    def test_silent(self, rows):
        assert found("needless-barrier", rows) == []

    def test_reductions_over_part_of_the_ranks_do_not_order_all(self):
        groups = (Group("pg", (0, 1, 2, 3)), Group("a", (0, 1)), Group("b", (2, 3)))
        parts = [*in_steps(REDUCE, group="a"), *in_steps(REDUCE, ranks=(2, 3), group="b")]
        rows = [*parts, *in_steps(BARRIER, ranks=(0, 1, 2, 3))]
        assert found("needless-barrier", rows, 4, groups) == []
        whole = [*in_steps(REDUCE, BARRIER, ranks=(0, 1, 2, 3))]
        assert len(found("needless-barrier", whole, 4, groups)) == 1
        inner = [*in_steps(REDUCE, ranks=(0, 1, 2, 3)), *in_steps(BARRIER, group="a")]
        assert len(found("needless-barrier", inner, 4, groups)) == 1

    def test_a_rank_that_is_last_by_little_is_not_waited_for(self):
        at = {"start_ns": (12 * MS + 100_000, 12 * MS), "issue_ns": (12 * MS + 100_000, 12 * MS)}
        late = BARRIER | at | {"duration_ns": (MS, MS + 100_000), "exposed_ns": (MS, MS + 100_000)}
        (finding,) = found("needless-barrier", in_steps(REDUCE, late))
        assert (finding.severity, finding.saving_ns) == ("warning", MS)

    def test_a_barrier_that_costs_little_is_information(self):
        (finding,) = found("needless-barrier", in_steps(REDUCE, BARRIER | {"exposed_ns": 100_000}))
        assert (finding.severity, finding.toll_ns) == ("info", 100_000)

    @pytest.mark.parametrize(("exposed_ns", "saving_ns"), [(2 * MS, None), (0, 0)])
    def test_exposed_time_of_which_the_wait_is_unknown_may_all_be_waiting(self, exposed_ns, saving_ns):
        untimed = BARRIER | {"start_ns": None, "duration_ns": None, "exposed_ns": exposed_ns}
        (finding,) = found("needless-barrier", in_steps(REDUCE, untimed))
        assert (finding.toll_ns, finding.saving_ns) == (exposed_ns, saving_ns)

    def test_a_rank_that_is_not_on_record_may_be_meant_to_be_waited_for(self):
        rows = [*in_steps(REDUCE), *in_steps(BARRIER | {"group_size": 2}, ranks=(0,))]
        assert found("needless-barrier", rows) == []

    def test_a_group_of_one_waits_for_nobody(self):
        groups = (DP, Group("pg", (0, 1)), Group("me", (0,)))
        rows = [*in_steps(REDUCE), *in_steps(BARRIER, ranks=(0,), group="me")]
        assert found("needless-barrier", rows, groups=groups) == []

    def test_two_steps_are_no_habit(self):
        assert found("needless-barrier", in_steps(REDUCE, BARRIER, steps=(0, 1)), steps=2) == []


SENT = {
    "op": "broadcast",
    "phase": "forward",
    "caused_by_op": ddp_causes.BUFFERS,
    "message_bytes": 4096,
    "input_hash": 5,
    "root": 0,
}


class TestConstantBuffers:
    @pytest.mark.parametrize(
        ("torch", "choice"),
        [
            ("2.12.1", "broadcast_buffers"),
            ("2.13.0+cpu", "forward_sync_buffers"),
            (None, "broadcast_buffers"),
        ],
    )
    def test_the_same_values_in_all_steps(self, torch, choice):
        (finding,) = found("constant-buffers", in_steps(SENT, SENT | {"input_hash": 6}), torch=torch)
        assert (finding.count, finding.bytes, finding.confidence) == (2, 8192, "likely")
        assert finding.remedy.code == f"DistributedDataParallel(model, {choice}=False)"

    def test_of_a_large_buffer_a_sample_is_compared_and_proves_less(self):
        # A bank of features: a step writes a few rows, and the sample may lie between them.
        (finding,) = found("constant-buffers", in_steps(SENT, SENT | {"message_bytes": 1 << 20}))
        assert finding.confidence == "possible"
        assert finding.title.startswith("DDP broadcasts buffers that seem never to change in each forward")
        assert finding.remedy.text.endswith("First check whether a step writes a part of a large buffer.")

    @pytest.mark.parametrize(
        "rows",
        [
            [row for n in range(STEPS) for row in in_steps(SENT | {"input_hash": n}, steps=(n,))],
            in_steps(SENT | {"input_hash": (5, 6)}),
            in_steps(SENT, SENT | {"input_hash": None, "message_bytes": 8}),
            in_steps(SENT | {"caused_by_op": "broadcast"}),
            in_steps(SENT | {"op": "all_reduce"}),
            in_steps(SENT | {"message_bytes": None}),
            [*in_steps(SENT), *in_steps(SENT | {"input_hash": 7}, steps=(3,))],
        ],
        ids=[
            "statistics",
            "other ranks differ",
            "a counter",
            "the program's own",
            "no broadcast",
            "of unknown size",
            "one more in one step",
        ],
    )
    def test_silent(self, rows):
        assert found("constant-buffers", rows) == []


MAP = {"caused_by_op": ddp_causes.USED_PARAMETERS, "dtype": "int32", "message_bytes": 64, "all_used": True}


def test_steps_that_were_only_watched_tell_nothing_of_buffers():
    watched = [step(number, rank, level="watch") for number in (3, 4) for rank in (0, 1)]
    timed = [*(step(number, rank) for number in range(3) for rank in (0, 1)), *watched]
    rows = [*in_steps(SENT, steps=range(3)), *in_steps(SENT | {"input_hash": None}, steps=(3, 4), first=3)]
    kinds = [finding.kind for finding in run(ledger(rows, steps=timed)).findings]
    assert "constant-buffers" in kinds


class TestUnusedSearch:
    def test_every_backward_reaches_all(self):
        (finding,) = found("unused-parameter-search", in_steps(REDUCE, MAP))
        assert (finding.severity, finding.toll_ns, finding.bytes) == ("warning", 2 * MS, 64)
        assert finding.remedy.code == "DistributedDataParallel(model, find_unused_parameters=False)"

    @pytest.mark.parametrize("used", [(True, False), None, False])
    def test_silent(self, used):
        assert found("unused-parameter-search", in_steps(REDUCE, MAP | {"all_used": used})) == []

    def test_one_step_that_leaves_one_out_is_enough(self):
        rows = [*in_steps(MAP, steps=(0, 1, 2)), *in_steps(MAP | {"all_used": False}, steps=(3,))]
        assert found("unused-parameter-search", rows) == []


def test_what_is_billed_as_a_habit_is_not_billed_as_exposed_too():
    exposed = found("exposed-communication", in_steps(REDUCE, BARRIER, MAP, SENT))
    assert {finding.where.source for finding in exposed} == {"t.py:5 (f)"}


@pytest.mark.parametrize("analysis", [constant_buffers, needless_barrier, unused_search])
def test_the_bill_of_exposed_time_does_not_search_again(analysis):
    timed = [step(number, rank) for number in range(STEPS) for rank in range(2)]
    rows = [*in_steps(REDUCE, BARRIER, MAP, SENT)]
    context = make_context(ledger(rows, steps=timed), UNKNOWN)
    assert len(analysis.find(context)) == 1
    assert analysis.find(context) is analysis.find(context)


class TestMissingZeroGrad:
    @staticmethod
    def rows(*counts, ranks=(0, 1)):
        for number, count in enumerate(counts):
            yield from in_steps(
                REDUCE | {"uncleared_steps": count, "optimizer_steps": number},
                steps=(number,),
                ranks=ranks,
                first=number,
            )

    @pytest.mark.parametrize(("counts", "confidence"), [((0, 0, 1), "likely"), ((0, 1, 2), "certain")])
    def test_steps_in_a_row(self, counts, confidence):
        (finding,) = found("missing-zero-grad", self.rows(*counts))
        assert (finding.severity, finding.confidence, finding.toll_ns) == ("warning", confidence, None)
        assert finding.family == "correctness"
        assert "optimizer.zero_grad()" in finding.remedy.code

    def test_without_a_count_of_steps_nothing_is_known(self):
        rows = [replace(row, optimizer_steps=None) for row in self.rows(0, 1, 2)]
        assert found("missing-zero-grad", rows) == []

    @pytest.mark.parametrize("counts", [(0, 0, 0), (1, 2, 0), (None, None), ((0, 1), (0, 2), (0, 3))])
    def test_silent(self, counts):
        assert found("missing-zero-grad", self.rows(*counts)) == []

    def test_a_rank_that_does_not_tell_is_no_proof(self):
        assert found("missing-zero-grad", self.rows(0, 1, 2, ranks=(0,))) == []
