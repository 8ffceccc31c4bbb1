"""Duplicated work, by placements and by values, with exact FLOPs; and the sound twins."""

from __future__ import annotations

import pytest

from shardtoll.ledger import Group
from tests.unit.analyzers.ledgers import MS, compute, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("duplicated-compute")

GRAD = {
    "op": "aten.mm.default",
    "phase": "backward",
    "module": "scale",
    "flops": 2 * 64 * 32 * 16,
    "shapes": "f32[32,64] f32[64,16]",
    "source": "dit.py:40 (forward)",
}


def found(computes, ranks=4, **given):
    given.setdefault("run", run_of(ranks))
    findings = run(ledger(computes=computes, **given)).findings
    return [finding for finding in findings if finding.kind == "duplicated-compute"]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


def same(ranks=range(4), **change):
    return [compute(**(GRAD | {"rank": rank, "input_hash": 5, "output_hash": 6} | change)) for rank in ranks]


def test_equal_work_on_all_ranks_is_found_with_exact_flops():
    (finding,) = found(same())
    assert finding.title == (
        "aten.mm.default in scale at dit.py:40 (forward) does the same work 4 times in backward, "
        "on ranks 0-3: 262 kFLOP where 65.5 kFLOP are needed"
    )
    facts = evidence(finding)
    assert (facts["factor"], facts["FLOPs done per step"], facts["FLOPs needed per step"]) == (
        4,
        4 * 65536,
        65536,
    )
    assert isinstance(facts["FLOPs done per step"], int)
    assert (finding.ranks, finding.count, finding.confidence) == ((0, 1, 2, 3), 1, "likely")
    assert finding.toll_ns == finding.saving_ns == MS * 3 // 4
    assert "Shard one operand" in finding.remedy.text
    assert "Keep the replicas if every rank must hold the result" in finding.remedy.text
    assert "1/4 of the work" in finding.remedy.counterfactual


def test_the_toll_is_the_mean_over_the_ranks():
    rows = [
        compute(**(GRAD | {"rank": r, "input_hash": 5, "output_hash": 6, "duration_ns": (r + 1) * MS}))
        for r in range(4)
    ]
    (finding,) = found(rows)
    assert finding.toll_ns == pytest.approx(2.5 * MS * 3 / 4)


def test_pairs_of_ranks_are_found_apart_from_the_rest():
    (finding,) = found([*same((0, 1)), *same((2,), input_hash=8), *same((3,), output_hash=9)])
    assert (finding.ranks, evidence(finding)["factor"]) == ((0, 1), 2)


def test_two_pairs_with_different_values_are_needed_twice():
    (finding,) = found([*same((0, 1)), *same((2, 3), input_hash=8)])
    facts = evidence(finding)
    assert (facts["factor"], facts["FLOPs done per step"], facts["FLOPs needed per step"]) == (
        2,
        4 * 65536,
        2 * 65536,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"input_hash": 9},
        {"output_hash": 9},
        {"input_hash": None},
        {"output_hash": None},
        {"constant": True},
        {"op": "aten.bmm.default"},
        {"phase": "forward"},
        {"module": "other"},
        {"shapes": "f32[1,1]"},
        {"flops": 7},
        {"step": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_differs_makes_it_other_work(change):
    steps = [step(number, rank) for number in (0, 1) for rank in (0, 1)]
    rows = [*same((0,)), *same((1,), **change)]
    assert found(rows, ranks=2, run=run_of(2), steps=steps) == []


def test_constant_on_every_rank_proves_nothing():
    assert found(same(constant=True)) == []


def test_unknown_module_and_source_are_no_hindrance():
    (finding,) = found(same(module=None, source=None))
    assert finding.where.label() == "aten.mm.default"


def test_the_order_of_occurrence_must_agree():
    # Rank 1 multiplies the same pair first and third, rank 0 first and second.
    values = {0: (1, 1, 2), 1: (1, 2, 1)}
    rows = [
        compute(**(GRAD | {"rank": rank, "index": at, "input_hash": value, "output_hash": value}))
        for rank, order in values.items()
        for at, value in enumerate(order)
    ]
    (finding,) = found(rows, ranks=2)
    assert finding.count == 1


def test_an_operator_without_fingerprint_keeps_its_place_in_the_order():
    rows = []
    for rank in (0, 1):
        for at, value in enumerate((None, 5)):
            rows.append(
                compute(**(GRAD | {"rank": rank, "index": at, "input_hash": value, "output_hash": value}))
            )
    (finding,) = found(rows, ranks=2)
    assert finding.count == 1


def test_placements_show_it_without_fingerprints():
    rows = [compute(**(GRAD | {"rank": rank, "replicated_over": "tp"})) for rank in range(4)]
    (finding,) = found(rows, run=run_of(4, mesh={"dp": 2, "tp": 2}))
    facts = evidence(finding)
    assert (facts["factor"], facts["FLOPs done per step"], facts["FLOPs needed per step"]) == (
        2,
        4 * 65536,
        2 * 65536,
    )
    assert finding.confidence == "certain"
    assert finding.where.mesh_dim == "tp"
    assert facts["shown by"] == "every input is Replicate over tp"
    assert finding.toll_ns == MS // 2


def test_several_mesh_dims_multiply():
    rows = [compute(**(GRAD | {"rank": rank, "replicated_over": "dp, tp"})) for rank in range(4)]
    (finding,) = found(rows, run=run_of(4, mesh={"dp": 2, "tp": 2}))
    assert evidence(finding)["factor"] == 4


def test_the_size_of_a_mesh_dim_comes_from_its_groups_where_the_mesh_is_not_known():
    rows = [compute(**(GRAD | {"rank": rank, "replicated_over": "tp"})) for rank in range(4)]
    groups = (Group("a", (0, 1), "tp"), Group("b", (2, 3), "tp"))
    (finding,) = found(rows, groups=groups)
    assert evidence(finding)["factor"] == 2
    assert found(rows) == []


def test_a_mesh_dim_of_one_duplicates_nothing():
    rows = [compute(**(GRAD | {"replicated_over": "tp"}))]
    assert found(rows, ranks=1, run=run_of(1, mesh={"tp": 1})) == []


def test_both_proofs_of_one_operator_are_one_finding():
    rows = same(replicated_over="tp")
    (finding,) = found(rows, run=run_of(4, mesh={"tp": 4}))
    assert finding.confidence == "certain"
    assert evidence(finding)["operators in all steps and ranks"] == 4
    # Values show more ranks than placements: the larger factor counts, once.
    (finding,) = found(rows, run=run_of(4, mesh={"dp": 2, "tp": 2}))
    assert evidence(finding)["factor"] == 4
    assert finding.confidence == "likely"


def test_without_durations_the_toll_is_unknown_and_flops_decide():
    (finding,) = found(same(duration_ns=None))
    assert (finding.toll_ns, finding.saving_ns, finding.severity) == (None, None, "warning")
    assert finding.remedy.counterfactual is None
    much = compute(op="aten.bmm.default", flops=10**12, duration_ns=None)
    (finding,) = found([*same(duration_ns=None), much])
    assert finding.severity == "info"


def test_a_small_share_of_the_step_is_information():
    assert found(same())[0].severity == "info"
    assert found(same(duration_ns=10 * MS))[0].severity == "warning"


def test_flops_are_per_step_where_steps_agree_and_means_where_not():
    steps = [step(number, rank) for number in (0, 1) for rank in range(4)]
    (finding,) = found([*same(), *same(step=1)], steps=steps)
    assert evidence(finding)["FLOPs done per step"] == 4 * 65536
    assert evidence(finding)["FLOPs are summed over"] == "one step, all ranks seen"
    twice = [*same(), *same(step=1), *same(step=1, index=1)]
    (finding,) = found(twice, steps=steps)
    assert evidence(finding)["FLOPs done per step"] == 6 * 65536
    assert evidence(finding)["FLOPs are summed over"] == "a mean step, all ranks seen"


def test_work_outside_steps_is_in_no_step():
    assert found(same(step=None)) == []
