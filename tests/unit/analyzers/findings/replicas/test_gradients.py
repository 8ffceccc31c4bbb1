"""Replicas whose gradients differ: which case, over which ranks, how sure; and right programs left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardtoll.ledger import Group
from tests.unit.analyzers.ledgers import collective, compute, ledger, run_of
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import noise, parameter, value

TP = {"placements": "(Replicate())", "mesh_dims": "tp"}
GRID = (
    Group("pg", (0, 1, 2, 3)),
    *(Group(f"dp{i}", (i, i + 2), mesh_dim="dp") for i in (0, 1)),
    *(Group(f"tp{i}", (2 * i, 2 * i + 1), mesh_dim="tp") for i in (0, 1)),
)


def found(kind="wrong-gradient", **given: Any):
    return [finding for finding in running(kind)(ledger(**given)).findings if finding.kind == kind]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


def replicated(arrays, name="router.weight", **given: Any):
    return [value("gradient", name, rank, array, **(TP | given)) for rank, array in enumerate(arrays)]


def tp_groups(ranks=2):
    return (Group("tp", tuple(range(ranks)), mesh_dim="tp"),)


def dtensors(ranks=2, name="router.weight"):
    return [parameter(name, rank, **TP) for rank in range(ranks)]


def test_partial_treated_as_replicate():
    (one,) = found(values=replicated([noise(0), noise(1)]), parameters=dtensors(), groups=tp_groups())
    assert "Partial treated as Replicate" in one.title
    assert (one.where.parameter, one.where.mesh_dim, one.ranks) == ("router.weight", "tp", (0, 1))
    assert (one.severity, one.confidence) == ("error", "certain")
    assert evidence(one)["proof"] == "invariant: replicas must hold equal gradients"
    # Two unrelated parts are sqrt(2) apart; eight numbers of a sketch tell that within their spread.
    apart = np.linalg.norm(noise(0) - noise(1)) / np.sqrt((np.sum(noise(0) ** 2) + np.sum(noise(1) ** 2)) / 2)
    assert 0.4 * apart < evidence(one)["distance / size"] < 1.8 * apart
    assert "grad_placements=[Partial()]" in one.remedy.code


def test_groups_of_another_mesh_with_equal_names_are_not_the_parameters():
    # HSDP over rows of ranks, and an unused mesh that calls the columns `dp`: only rows hold equal values.
    names = {"placements": "(Replicate(), Shard(0))", "mesh_dims": "dp,tp"}
    own = tuple(Group(f"own{i}", (2 * i, 2 * i + 1), mesh_dim="dp") for i in (0, 1))
    shards = {0: noise(0), 1: noise(0), 2: noise(1), 3: noise(1)}
    given = {
        "values": [value("gradient", "up.weight", rank, shard, **names) for rank, shard in shards.items()],
        "parameters": [parameter("up.weight", rank, **names) for rank in shards],
        "groups": (*GRID, *own),
        "run": run_of(4),
    }
    of = {"phase": "backward", "parameter": "up.weight"}
    reduced = [collective(rank=rank, seq=1, group=f"own{rank // 2}", **of) for rank in shards]
    assert not found(collectives=reduced, **given)
    both = [collective(rank=rank, seq=1, group=f"dp{rank % 2}", phase="forward") for rank in shards]
    assert not found(collectives=[*reduced, *both], **given), "of two in use, that which reduced it"
    values = [*given["values"][1:], value("gradient", "up.weight", 0, noise(2), **names)]
    (one,) = found(collectives=reduced, **(given | {"values": values}))
    assert one.ranks == (0, 1)


def test_what_fsdp2_had_gathered_is_sharded_all_the_same():
    # Evaluation at the end of a step leaves the root's parameters gathered; their gradients are shards.
    table = [parameter("head.weight", rank, wrapper="FSDP2", group="pg") for rank in (0, 1)]
    shards = {"placements": "(Shard(0))", "mesh_dims": "dp"}
    rows = [value("gradient", "head.weight", rank, noise(rank), **shards) for rank in (0, 1)]
    rows += [value("parameter", "head.weight", rank, noise(2)) for rank in (0, 1)]
    assert not found(values=rows, parameters=table)


def test_equal_replicas_are_silent():
    assert not found(values=replicated([noise(0), noise(0)]), parameters=dtensors(), groups=tp_groups())


@pytest.mark.parametrize(("dtype", "off"), [("float32", 1e-5), ("bfloat16", 1e-2)])
def test_rounding_is_silent(dtype, off):
    rows = replicated([noise(0), noise(0) * (1 + off * noise(3))], dtype=dtype)
    assert not found(values=rows, parameters=dtensors(), groups=tp_groups())


def test_what_rounding_explains_in_bfloat16_is_an_error_in_float32():
    rows = replicated([noise(0), noise(0) + np.float32(1e-2) * noise(3)])
    assert found(values=rows, parameters=dtensors(), groups=tp_groups())


def test_a_gradient_that_is_noise_beside_the_others_is_silent():
    rows = [*replicated([1e-9 * noise(0), 1e-9 * noise(1)]), *replicated([noise(2)] * 2, name="big")]
    parameters = [*dtensors(), *dtensors(name="big")]
    assert not found(values=rows, parameters=parameters, groups=tp_groups())


def test_a_gradient_that_says_partial_is_for_the_optimizer():
    rows = replicated([noise(0), noise(1)], placements="(Partial(sum))")
    assert not found(values=rows, parameters=dtensors(), groups=tp_groups())


def test_shards_differ_by_nature():
    rows = replicated([noise(0), noise(1)], placements="(Shard(0))")
    parameters = [parameter("router.weight", r, placements="(Shard(0))", mesh_dims="tp") for r in (0, 1)]
    assert not found(values=rows, parameters=parameters, groups=tp_groups())


def test_the_dimension_on_which_a_grid_differs_is_named():
    placed = {"placements": "(Replicate(), Replicate())", "mesh_dims": "dp,tp"}
    rows = replicated([noise(0), noise(1), noise(0), noise(1)], **placed)
    parameters = [parameter("router.weight", rank, **placed) for rank in range(4)]
    (one,) = found(values=rows, parameters=parameters, groups=GRID, run=run_of(4))
    assert (one.where.mesh_dim, one.ranks) == ("tp", (0, 1, 2, 3))


def test_shards_along_one_dimension_are_compared_along_the_other():
    placed = {"placements": "(Shard(0), Replicate())", "mesh_dims": "dp,tp"}
    parameters = [parameter("norm.weight", rank, **placed) for rank in range(4)]
    right = replicated([noise(0), noise(0), noise(1), noise(1)], name="norm.weight", **placed)
    assert not found(values=right, parameters=parameters, groups=GRID, run=run_of(4))
    wrong = replicated([noise(0), noise(1), noise(2), noise(3)], name="norm.weight", **placed)
    (one,) = found(values=wrong, parameters=parameters, groups=GRID, run=run_of(4))
    assert one.where.mesh_dim == "tp"


def ddp(name="body.weight", ranks=2, **given: Any):
    wrapped = {"wrapper": "DDP", "group": "pg", "reduced_by_wrapper": True}
    return [parameter(name, rank, **(wrapped | given)) for rank in range(ranks)]


def plain(arrays, name="body.weight", **given: Any):
    return [value("gradient", name, rank, array, **given) for rank, array in enumerate(arrays)]


def test_what_ddp_did_not_reduce():
    (one,) = found(values=plain([noise(0), noise(1)]), parameters=ddp())
    assert "no_sync" in one.remedy.code
    assert one.confidence == "certain"


def test_a_factor_between_ranks():
    (one,) = found(values=plain([noise(0), 4 * noise(0)]), parameters=ddp())
    assert "wrong scale" in one.title
    assert evidence(one)["factor"] == pytest.approx(4)


def test_zero_and_none_on_some_ranks():
    (one,) = found(values=plain([noise(0), 0 * noise(0)]), parameters=ddp())
    assert ("zero on rank 1" in one.title, one.ranks) == (True, (1,))
    (one,) = found(values=plain([noise(0)]), parameters=ddp())
    assert ("rank 1 of ranks 0-1 had none" in one.title, one.ranks) == (True, (1,))


def test_not_finite_on_one_rank():
    (one,) = found(values=plain([noise(0), noise(0) * np.float32(np.inf)]), parameters=ddp())
    assert "NaN or infinity on rank 1" in one.title


def by_hand(name, group, ranks, **given: Any):
    return [
        collective(rank=rank, group=group, group_size=len(ranks), parameter=name, phase="other", **given)
        for rank in ranks
    ]


def start(name, ranks=4, seed=99):
    return [value("parameter", name, rank, noise(seed), step=None) for rank in range(ranks)]


def test_reduced_over_a_wrong_group():
    groups = (Group("pg", (0, 1, 2, 3)), Group("left", (0, 1)), Group("right", (2, 3)))
    rows = [*plain([noise(0), noise(0), noise(1), noise(1)], name="w"), *start("w")]
    reduced = [*by_hand("w", "left", (0, 1)), *by_hand("w", "right", (2, 3))]
    (one,) = found(
        values=rows,
        parameters=[parameter("w", r) for r in range(4)],
        collectives=reduced,
        groups=groups,
        run=run_of(4),
    )
    assert "agree within left (ranks 0-1; ranks 2-3)" in one.title
    assert "reduced over ranks 0-1; ranks 2-3 alone" in one.title


def test_plain_parameters_that_began_unequal_are_each_ranks_own():
    rows = [*plain([noise(0), noise(1)]), *(value("parameter", "body.weight", r, noise(r)) for r in (0, 1))]
    assert not found(values=rows, parameters=[parameter("body.weight", r) for r in (0, 1)])


def test_plain_parameters_that_began_equal_are_likely_replicas():
    rows = [*plain([noise(0), noise(1)]), *start("body.weight", 2)]
    (one,) = found(values=rows, parameters=[parameter("body.weight", r) for r in (0, 1)])
    assert one.confidence == "likely"


@pytest.mark.parametrize(
    ("op", "size", "moved", "wrong"),
    [
        ("reduce_scatter", 4096, (7, 7), False),
        ("reduce_scatter", 16, (7, 7), True),
        ("broadcast", 4096, (7, 7), True),
        ("reduce_scatter", 4096, (7, 8), True),
        ("reduce_scatter", 4096, (99, 99), True),
    ],
)
def test_parts_that_one_flat_buffer_adds_up_are_no_wrong_gradients(op, size, moved, wrong):
    """ZeRO by hand: the gradients stay parts, and the parameter moves equally on all ranks."""
    rows = [*plain([noise(0), noise(1)]), *start("body.weight", 2)]
    rows += [value("parameter", "body.weight", r, noise(seed)) for r, seed in enumerate(moved)]
    flat = [collective(rank=r, op=op, message_bytes=size, phase="other", parameter=None) for r in (0, 1)]
    parameters = [parameter("body.weight", r) for r in (0, 1)]
    assert bool(found(values=rows, parameters=parameters, collectives=flat)) == wrong


def test_what_an_exact_check_found_right_is_each_ranks_own():
    rows = [*plain([noise(0), noise(1)]), *start("body.weight", 2)]
    told = [parameter("body.weight", r, checked_right=True) for r in (0, 1)]
    assert not found(values=rows, parameters=told)
    assert found(values=rows, parameters=[replace(one, checked_right=False) for one in told])


def test_code_fits_a_model_under_ddp_that_averages():
    rows = [*plain([noise(0), noise(1)]), *start("body.weight", 2)]
    others = [parameter("w", r, wrapper="DDP", group="pg", reduced_by_wrapper=True) for r in (0, 1)]
    alone = [parameter("body.weight", r) for r in (0, 1)]
    groups = (Group("pg", (0, 1)),)
    (one,) = found(values=rows, parameters=[*alone, *others], groups=groups)
    code = 'dist.all_reduce(model.module.get_parameter("body.weight").grad, op=dist.ReduceOp.AVG)'
    assert one.remedy.code.startswith(code)
    (one,) = found(values=rows, parameters=alone, groups=groups)
    assert one.remedy.code.startswith('dist.all_reduce(model.get_parameter("body.weight").grad)')


@pytest.mark.parametrize(("name", "wrong"), [(None, False), ("other.weight", True)])
def test_without_values_after_the_step_one_flat_buffer_may_have_added_them_up(name, wrong):
    rows = [*plain([noise(0), noise(1)]), *start("body.weight", 2)]
    flat = [
        collective(rank=r, op="all_reduce", message_bytes=4096, phase="other", parameter=name) for r in (0, 1)
    ]
    parameters = [parameter("body.weight", r) for r in (0, 1)]
    assert bool(found(values=rows, parameters=parameters, collectives=flat)) == wrong


def test_stages_of_a_pipeline_may_use_one_name():
    rows = [*plain([noise(0), noise(1)]), *start("body.weight", 2)]
    sent = [
        collective(rank=0, op="send", root=1, phase="forward"),
        collective(rank=1, op="recv", root=0, phase="forward"),
    ]
    parameters = [parameter("body.weight", r) for r in (0, 1)]
    assert not found(values=rows, parameters=parameters, collectives=sent)


def test_an_expert_between_two_exchanges_is_each_ranks_own():
    names = ("moe.expert.weight", "moe.router.weight")
    rows = [row for name in names for row in (*plain([noise(0), noise(1)], name=name), *start(name, 2))]
    exchanges = [
        collective(rank=rank, op="all_to_all", phase="forward", module="moe", issue_ns=at, seq=at)
        for rank in (0, 1)
        for at in (10, 30)
    ]
    computes = [
        compute(rank=rank, index=at, start_ns=at, module=module, phase="forward")
        for rank in (0, 1)
        for at, module in ((5, "moe.router"), (20, "moe.expert"))
    ]
    parameters = [parameter(name, rank) for name in names for rank in (0, 1)]
    (one,) = found(values=rows, parameters=parameters, collectives=exchanges, computes=computes)
    assert one.where.parameter == "moe.router.weight"


@pytest.mark.parametrize(
    ("begun", "wrong"), [((9, 8, 9, 8), True), ((9, 9, 9, 9), False), ((6, 7, 8, 9), False)]
)
def test_copies_of_several_experts_are_replicas(begun, wrong):
    """Two experts on two ranks each, whose gradients nobody reduced."""
    name = "moe.expert.weight"
    rows = plain([noise(r) for r in range(4)], name=name)
    rows += [value("parameter", name, r, noise(seed), step=None) for r, seed in enumerate(begun)]
    exchanges = [
        collective(rank=r, op="all_to_all", phase="forward", module="moe", issue_ns=at, seq=at)
        for r in range(4)
        for at in (10, 30)
    ]
    computes = [
        compute(rank=r, index=20, start_ns=20, module="moe.expert", phase="forward") for r in range(4)
    ]
    findings = found(
        values=rows,
        parameters=[parameter(name, r) for r in range(4)],
        collectives=exchanges,
        computes=computes,
        run=run_of(4),
    )
    assert {one.where.parameter for one in findings} == ({name} if wrong else set())


def test_many_alike_are_one_finding():
    names = [f"layers.{at}.weight" for at in range(30)]
    rows = [
        row for at, name in enumerate(names) for row in replicated([noise(at), noise(at + 50)], name=name)
    ]
    parameters = [row for name in names for row in dtensors(name=name)]
    (one,) = found(values=rows, parameters=parameters, groups=tp_groups())
    assert (one.count, "30 parameters" in one.title) == (30, True)


def test_values_without_fingerprints_say_nothing():
    rows = replicated([noise(0), noise(1)], hash=None, square=None)
    assert not found(values=rows, parameters=dtensors(), groups=tp_groups())


@pytest.mark.parametrize("has_grad", [None, True])
def test_where_an_optimizer_steps_only_what_it_used_is_judged(has_grad):
    rows = replicated([noise(0), noise(1)], nth=1)
    parameters = [parameter("router.weight", rank, has_grad=has_grad, **TP) for rank in (0, 1)]
    assert bool(found(values=rows, parameters=parameters, groups=tp_groups())) == (has_grad is None)
