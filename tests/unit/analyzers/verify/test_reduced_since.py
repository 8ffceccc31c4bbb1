"""A gradient that nobody reduced, found by structure: the run after has to show that somebody does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.ledger import Finding, Parameter, Report
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.ledgers import on_ranks
from tests.unit.analyzers.value_rows import noise, parameter, value
from tests.unit.analyzers.verify.test_verify import finding, report, verified

FOUND = finding(
    "unsynced-parameter",
    toll_ns=None,
    saving_ns=None,
    bytes=None,
    confidence="likely",
    cause="missing-reduction",
)
USED: dict[str, Any] = {"has_grad": None, "used_in": 0, "carried": False, "checked": False}


def held(name: str = "weight", **given: Any) -> list[Parameter]:
    return [parameter(name, rank, **(USED | given)) for rank in (0, 1)]


def run(parameters: list[Parameter], collectives: Any = (), values: Any = (), **given: Any) -> Report:
    made = report(**given)
    tables = {
        "parameters": to_table("parameters", parameters),
        "collectives": to_table("collectives", collectives),
        "values": to_table("values", values),
    }
    return replace(made, tables={**made.tables, **tables})


def judged(after: Report, found: Finding = FOUND) -> Any:
    (one,) = verified(run(held(), findings=[found]), after).findings
    return one


OTHER = held("other")
SUM = on_ranks((0, 1), parameter="weight", phase="other")


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(run(held(), SUM), id="named"),
        pytest.param(run(held(), on_ranks((0, 1), parameter="other, weight")), id="named with another"),
        pytest.param(run(held(carried=True)), id="in a call of many"),
        pytest.param(run(held(wrapper="DDP", group="pg", reduced_by_wrapper=True)), id="wrapped"),
        pytest.param(run([*held(requires_grad=False, used_in=None), *OTHER]), id="frozen"),
        pytest.param(run(OTHER), id="absent"),
        pytest.param(
            run(held(checked=True), values=[value("gradient", "weight", rank, noise(1)) for rank in (0, 1)]),
            id="compared",
        ),
    ],
)
def test_a_run_that_shows_it_proves_it(after: Report):
    assert judged(after).verdict == "gone"


@pytest.mark.parametrize(
    ("after", "why"),
    [
        pytest.param(run(held()), "shows that weight is reduced", id="nothing names it"),
        pytest.param(
            run(held(), on_ranks((0, 1), op="all_gather", phase="other")),
            "shows that weight is reduced",
            id="a message more that nobody knows",
        ),
        pytest.param(run(held(used_in=None), SUM), "in which an optimizer stepped", id="watched"),
        pytest.param(run(held(used_in=None, checked=None), SUM), "an optimizer stepped", id="older"),
        pytest.param(
            run(held(), on_ranks((0, 1), parameter="weight", phase="forward")), "weight", id="its values"
        ),
        pytest.param(
            run(held(), on_ranks((0, 1), parameter="weight", op="barrier")), "weight", id="a barrier"
        ),
        pytest.param(run([*held(carried=True)[:1], *held()[1:]]), "weight", id="on one rank alone"),
        pytest.param(run([*held(used_in=None), *OTHER]), "weight", id="by an optimizer that did not step"),
    ],
)
def test_silence_proves_nothing(after: Report, why: str):
    one = judged(after)
    assert one.verdict == "cannot be told"
    assert why in one.why


def test_each_of_several_has_to_be_shown():
    several = replace(FOUND, parameters=("weight", "bias"))
    assert judged(run([*held(), *held("bias")], SUM), several).verdict == "cannot be told"
    both = on_ranks((0, 1), parameter="weight, bias", phase="other")
    assert judged(run([*held(), *held("bias")], both), several).verdict == "gone"
