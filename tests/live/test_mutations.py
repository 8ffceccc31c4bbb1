"""Break each reduction of a right step in turn: check_gradients names exactly the gradients that got wrong.

Which ones did is told by brute force against a float64 run of one device (mutation_programs). A mutant that
changes no gradient is equivalent, and must not be flagged.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest

from tests.live import mutation_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

BLOCKS = 1
SEQUENCE = 2 * (1 + 2 * BLOCKS)
"""Reductions of tensor and sequence parallelism: forward of the embedding and each block's two row-parallel
layers, backward of each block's two column-parallel inputs and the head's."""
NORMS = 2 * (1 + 2 * BLOCKS)
"""Reductions of the norms' weights and biases, which FSDP2 does before its own."""
WRAPPED = 1 + BLOCKS
FAMILIES = {
    "2-D": (4, SEQUENCE + NORMS + WRAPPED, WRAPPED),
    "HSDP": (4, 2 * WRAPPED, 2 * WRAPPED),
    "TP": (2, SEQUENCE, 0),
    "DDP": (4, None, 0),
}
"""Ranks, reductions a step (None: DDP chooses its buckets), mutants that change nothing: a mean over the
same ranks done twice is the mean."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def runs(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    results = run_ranks(programs.mutants, FAMILIES[request.param][0], request.param, limit_s=240)
    for other in results[1:]:
        seen = [[(row["errors"], row["flagged"]) for row in rank["mutants"]] for rank in (results[0], other)]
        assert seen[0] == seen[1], "all ranks get the same findings"
    return request.param, results[0]


def wrong(row: dict[str, Any]) -> list[str]:
    return sorted(name for name, error in row["errors"].items() if error > programs.WRONG)


def test_every_reduction_passes_the_doors(runs: tuple[str, dict[str, Any]]) -> None:
    family, run = runs
    clean = run["clean"]
    expected = FAMILIES[family][1]
    assert len(clean["seen"]) == expected or (expected is None and len(clean["seen"]) > 1), clean["seen"]
    assert clean["below"] == sum("dist." in text for text in clean["seen"]), "a reduction by another way"
    assert clean["flagged"] == [] == wrong(clean)


def test_the_wrong_gradients_and_no_others_are_flagged(runs: tuple[str, dict[str, Any]]) -> None:
    family, run = runs
    rows = run["mutants"]
    equivalent = [row for row in rows if not wrong(row)]
    print(
        f"{family}: {len(rows)} mutants, {len(rows) - len(equivalent)} killed, {len(equivalent)} equivalent"
    )
    for row in rows:
        named = f"{row['way']} of reduction {row['position']}, {row['reduction']}"
        assert row["flagged"] == wrong(row), named
        assert row["seen"] == run["clean"]["seen"], f"{named}: the mutant is of another step"
    assert len(equivalent) == FAMILIES[family][2]
    assert all(row["way"] == "double" for row in equivalent)


def test_the_brute_force_is_never_in_doubt(runs: tuple[str, dict[str, Any]]) -> None:
    """Every error is rounding or far above it, so what is wrong depends on no threshold."""
    for row in runs[1]["mutants"]:
        for name, error in row["errors"].items():
            assert math.isinf(error) or not programs.RIGHT < error <= programs.WRONG, (
                row["way"],
                name,
                error,
            )


SEEN = {"2-D": 14, "HSDP": 4, "DDP": 4}
"""Mutants that leave the ranks with different gradients: dropped or misgrouped ones of parameters that ranks
hold alike. The others leave every rank equally wrong."""


@pytest.mark.skipif(
    importlib.util.find_spec("shardtoll.analyzers.findings.replicas.gradients") is None,
    reason="no analysis of replicas",
)
@pytest.mark.parametrize("family", list(SEEN))
def test_without_a_baseline_gradients_that_differ_are_named_and_no_right_ones(family: str) -> None:
    run = run_ranks(programs.invariants, FAMILIES[family][0], family, limit_s=240)[0]
    assert run["clean"]["said"] == []
    rows = run["mutants"]
    differ = [{name for name, spread in row["apart"].items() if spread > programs.WRONG} for row in rows]
    for row, apart in zip(rows, differ, strict=True):
        named = {name for kind, name in row["said"] if kind == "wrong-gradient"}
        assert apart <= named, (row["way"], row["reduction"], row["said"])
        assert {name for _, name in row["said"]} <= set(wrong(row)), (
            row["way"],
            row["reduction"],
            row["said"],
        )
    killed = sum(bool(wrong(row)) for row in rows)
    print(f"{family}: {sum(bool(row['said']) for row in rows)} of {killed} killed mutants need no baseline")
    assert sum(map(bool, differ)) == SEEN[family]
