"""Parts of sharded parameters that began equal, and sound twins: copies, few heads, constants, odd meshes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.ledger import Group
from tests.unit.analyzers.ledgers import ledger, run_of, step
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import noise, value

run = running("identical-shards")

TP = Group("tp", (0, 1), "tp")


def found(values, groups=(TP,), ranks=2):
    steps = [step(number, rank) for number in (0, 1) for rank in range(ranks)]
    about = run_of(ranks, mesh={"tp": 2})
    findings = run(ledger(values=values, groups=groups, run=about, steps=steps)).findings
    return [each for each in findings if each.kind == "identical-shards"]


def held(name, seeds, kind="shard", at=None, shape=(8, 4), **given):
    """What each rank holds of a parameter: ranks with one seed hold equal parts."""
    given = {"placements": "(Shard(dim=0),)", "mesh_dims": "tp"} | given
    return [value(kind, name, rank, noise(seed, shape), step=at, **given) for rank, seed in enumerate(seeds)]


def test_one_parameter_is_named():
    (finding,) = found(held("w", (1, 1)))
    assert finding.title.startswith(
        "the parts of w began identical on ranks 0-1 along mesh dim tp: each rank"
    )
    assert (finding.where.parameter, finding.parameters, finding.count) == ("w", (), 1)
    assert (finding.severity, finding.confidence, finding.ranks) == ("warning", "likely", (0, 1))


def test_several_are_counted_and_the_first_three_named():
    (finding,) = found([row for seed, name in enumerate("abcd") for row in held(name, (seed, seed))])
    assert "4 sharded parameters (a, b, c, ...)" in finding.title
    assert (finding.where.mesh_dim, finding.parameters, finding.count) == ("tp", tuple("abcd"), 4)
    (finding,) = found([row for seed, name in enumerate("abc") for row in held(name, (seed, seed))])
    assert "3 sharded parameters (a, b, c) began" in finding.title


def test_half_of_the_parameters_are_enough_and_fewer_are_few_heads():
    assert len(found([*held("k", (1, 1)), *held("q", (2, 3))])) == 1
    assert found([*held("k", (1, 1)), *held("q", (2, 3)), *held("o", (4, 5))]) == []


def test_biases_of_a_stack_of_experts_are_copies_as_the_experts_are():
    stack = held("experts.w1", (1, 1), shape=(1, 2, 4))
    biases = held("experts.b1", (2, 2), shape=(1, 4))
    assert found([*stack, *biases]) == []
    assert len(found([*stack, *biases, *held("out.weight", (3, 3))])) == 1


@pytest.mark.parametrize(
    "values",
    [
        held("w", (1, 2)),
        held("w", (1,)),
        held("w", (1, 1), shape=(4, 2, 4)),
        held("w", (1, 1), constant=True),
        held("w", (1, 1), hash=None),
        held("w", (1, 1), placements="(Replicate(),)"),
        held("w", (1, 1), mesh_dims=None),
        held("w", (1, 1), mesh_dims="ep"),
        [replace(row, shape=f"[{8 * (row.rank + 1)}, 4]") for row in held("w", (1, 1))],
        held("w", (1, 1), kind="parameter", at=0),
    ],
    ids=[
        "other parts",
        "one rank on record",
        "a stack of experts",
        "it repeats",
        "unread",
        "replicas",
        "no dimension named",
        "a dimension without groups",
        "other shapes",
        "after a step",
    ],
)
def test_silent(values):
    assert found(values) == []


def test_one_rank_alone_is_no_group():
    assert found(held("w", (1, 1)), groups=(Group("a", (0,), "tp"), Group("b", (1,), "tp"))) == []


def test_all_groups_along_the_dimension_have_to_agree():
    groups = (Group("a", (0, 1), "tp"), Group("b", (2, 3), "tp"))
    (finding,) = found(held("w", (1, 1, 2, 2)), groups, 4)
    assert finding.ranks == (0, 1, 2, 3)
    assert found(held("w", (1, 1, 2, 3)), groups, 4) == []
    crossing = (Group("a", (0, 1), "tp"), Group("b", (1, 2), "tp"))
    assert found(held("w", (1, 1, 1)), crossing, 3) == []


def test_of_two_mesh_dimensions_only_those_that_cut_it_count():
    groups = (Group("dp", (0, 1), "dp"), TP)
    given = {"placements": "(Replicate(), Shard(dim=0))", "mesh_dims": "dp, tp"}
    (finding,) = found(held("w", (1, 1), **given), groups)
    assert "along mesh dim tp" in finding.title


@pytest.mark.parametrize(
    ("later", "lasting"),
    [
        (held("w", (7, 7), "parameter", 1), True),
        (held("w", (7, 8), "parameter", 1), False),
        (held("w", (1, 1), "parameter", 1), False),
        (held("w", (7, 7), "parameter", 1, square=None), False),
        ([*held("w", (7, 7), "parameter", 0), *held("w", (7, 8), "parameter", 1)], False),
        ([*held("w", (7, 8), "parameter", 0), *held("w", (7, 7), "parameter", 1)], True),
        (held("v", (7, 7), "parameter", 1), False),
    ],
    ids=["still", "no longer", "never moved", "not finite", "once", "again", "another parameter"],
)
def test_parts_that_stay_equal_are_certain(later, lasting):
    (finding,) = found([*held("w", (1, 1)), *later])
    assert finding.confidence == ("certain" if lasting else "likely")
    assert ("and they still are" in finding.title) == lasting


def test_all_of_several_have_to_stay_equal():
    began = [*held("a", (1, 1)), *held("b", (2, 2))]
    (finding,) = found([*began, *held("a", (7, 7), "parameter", 1)])
    assert finding.confidence == "likely"
    (finding,) = found([*began, *held("a", (7, 7), "parameter", 1), *held("b", (8, 8), "parameter", 1)])
    assert finding.confidence == "certain"
