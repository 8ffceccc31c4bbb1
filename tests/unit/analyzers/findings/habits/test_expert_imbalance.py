"""Uneven load of experts in closed form, and uneven exchanges that are no experts' and stay unsaid."""

from __future__ import annotations

import pytest

from shardtoll.ledger import Group
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

WORLD, STEPS = 4, 4
KIND = "expert-imbalance"
ROW = 1000
SENT = (20, 20, 20, 20)
LOADS = ((50, 10, 10, 10), (48, 12, 10, 10), (52, 8, 10, 10), (50, 10, 12, 8))
"""Rows that each rank receives, by step."""


def exchange(
    number, sent, got, *, lines=("moe.py:5 (forward)", "moe.py:7 (forward)"), late=None, at=10, **given
):
    """One exchange of a step: rows there at 10 ms, back at 30 ms, where all wait for `late`, 8 ms."""
    for place, (out, back) in enumerate(((sent, got), (got, sent))):
        for rank in range(WORLD):
            waits = 0 if place == 0 or late is None or rank == late else 8 * MS
            start = (at + 20 * place) * MS + (8 * MS if place and rank == late else 0)
            values = {
                "seq": 1000 * number + at + place,
                "op": "all_to_all",
                "message_bytes": out[rank] * ROW,
                "received_bytes": back[rank] * ROW,
                "duration_ns": MS + waits,
                "exposed_ns": MS + waits,
                "phase": "forward",
                "module": "moe",
                "source": lines[place],
            } | given
            yield collective(
                step=number, rank=rank, group_size=WORLD, issue_ns=start, start_ns=start, **values
            )


def weights(steps=range(STEPS), at=20, **given):
    for number in steps:
        for rank in range(WORLD):
            values = {"op": "aten.mm.default", "parameter": "moe.up", "module": "moe"} | given
            yield compute(step=number, rank=rank, start_ns=at * MS, **values)


def found(rows, computes=None, kind=KIND, steps=STEPS, **given):
    timed = [step(number, rank) for number in range(steps) for rank in range(WORLD)]
    report = running(kind)(
        ledger(
            list(rows),
            run=run_of(WORLD, **given),
            groups=(Group("pg", tuple(range(WORLD)), "ep"),),
            steps=timed,
            computes=list(weights() if computes is None else computes),
        )
    )
    return [finding for finding in report.findings if finding.kind == kind]


def steady(late=0, **given):
    return [row for n in range(STEPS) for row in exchange(n, SENT, LOADS[n], late=late, **given)]


def test_the_waiting_for_the_busiest_rank_is_the_toll_and_what_the_mean_would_save_the_saving():
    (finding,) = found(steady())
    # Largest loads over means: 50 + 48 + 52 + 50 of 4 x 20.
    assert finding.figure("busiest_over_mean") == 2.5
    assert (finding.severity, finding.confidence, finding.count) == ("warning", "likely", 1)
    assert finding.toll_ns == 8 * MS
    # Of waiting for a load of 2.5, a rank with 0.4 saves 1.5 of 2.1: rank 1 and 2 have 0.4 to 0.6.
    shares = [(max(load) - 20) / (max(load) - load[1]) for load in LOADS]
    others = [(max(load) - 20) / (max(load) - load[2]) for load in LOADS]
    last = [(max(load) - 20) / (max(load) - load[3]) for load in LOADS]
    most = max(sum(each) / STEPS for each in (shares, others, last))
    assert finding.saving_ns == pytest.approx(8 * MS * most, abs=1)
    assert (finding.where.source, finding.where.module) == ("moe.py:5 (forward)", "moe")
    assert "rank 0 receives 2.50 times the mean" in finding.title
    assert finding.remedy.counterfactual == "the same step with the mean load on every rank"


def test_its_waiting_is_on_no_other_bill():
    assert found(steady(), kind="straggler") == []
    assert sum(finding.toll_ns for finding in found(steady(), kind="exposed-communication")) == 2 * MS
    even = [row for n in range(STEPS) for row in exchange(n, SENT, SENT, late=0)]
    (straggler,) = found(even, kind="straggler")
    assert straggler.toll_ns == 8 * MS
    assert found(even) == []


def test_without_waiting_it_is_information():
    (finding,) = found(steady(late=None))
    assert (finding.severity, finding.toll_ns, finding.saving_ns) == ("info", None, None)
    assert finding.remedy.counterfactual is None


def test_waiting_for_another_rank_is_the_stragglers():
    (finding,) = found(steady(late=2))
    assert (finding.severity, finding.toll_ns) == ("info", None)
    assert len(found(steady(late=2), kind="straggler")) == 1


def test_ranks_that_take_turns_are_a_warning_if_the_load_is_large_only():
    turns = ((28, 20, 16, 16), (16, 28, 20, 16), (16, 16, 28, 20), (20, 16, 16, 28))
    for scale, severity in ((1, "info"), (2, "warning")):
        loads = [[20 + scale * (each - 20) for each in load] for load in turns]
        rows = [row for n in range(STEPS) for row in exchange(n, SENT, loads[n], late=n)]
        (finding,) = found(rows)
        assert (finding.severity, finding.toll_ns) == (severity, 6 * MS)
        assert finding.title.startswith("the busiest rank receives")


def test_backward_runs_the_other_way_and_is_of_the_same_place():
    swapped = ("moe.py:7 (forward)", "moe.py:5 (forward)")
    back = [
        row
        for n in range(STEPS)
        for row in exchange(n, SENT, LOADS[n], late=0, at=60, lines=swapped, phase="backward")
    ]
    (finding,) = found(steady() + back)
    assert (finding.count, finding.toll_ns) == (2, 16 * MS)
    assert (finding.where.phase, finding.where.source) == ("forward", "moe.py:5 (forward)")
    assert len(finding.rows.mask("collectives", 200).nonzero()[0]) == 2 * 2 * STEPS * WORLD


def test_ranks_that_share_cores_delay_each_other():
    (finding,) = found(steady(), cores=2)
    assert finding.severity == "info"


def test_operators_unknown_it_may_be_something_else():
    (finding,) = found(steady(), computes=[])
    assert (finding.severity, finding.confidence) == ("info", "possible")


ROWS = {
    "even splits": [row for n in range(STEPS) for row in exchange(n, SENT, SENT)],
    "the same shares in each step": [row for n in range(STEPS) for row in exchange(n, SENT, LOADS[0])],
    "the same shares of sequences that change": [
        row
        for n in range(STEPS)
        for row in exchange(n, [5 * (n + 1)] * 4, [each * (n + 1) for each in (8, 4, 4, 4)])
    ],
    "two steps": [row for n in range(2) for row in exchange(n, SENT, LOADS[n])],
    "nothing is brought back": [
        row for n in range(STEPS) for row in exchange(n, SENT, LOADS[n]) if row.seq % 2 == 0
    ],
    "one rank is not known": [row for row in steady() if row.rank != 3],
    "no sizes": [row for n in range(STEPS) for row in exchange(n, SENT, LOADS[n], received_bytes=None)],
    "whole numbers": [row for n in range(STEPS) for row in exchange(n, SENT, LOADS[n], dtype="int64")],
    "little": [
        row
        for n in range(STEPS)
        for row in exchange(
            n, SENT, [(22, 19, 19, 20), (19, 22, 20, 19), (20, 20, 22, 18), (23, 19, 19, 19)][n]
        )
    ],
}


@pytest.mark.parametrize("name", ROWS)
def test_silent(name):
    assert found(ROWS[name]) == []


@pytest.mark.parametrize(
    "computes",
    [
        list(weights(at=40)),
        list(weights(op="aten._scaled_dot_product_flash_attention.default", parameter=None)),
    ],
    ids=["weights elsewhere", "attention alone"],
)
def test_silent_if_no_weights_are_used_in_between(computes):
    assert found(steady(), computes) == []
