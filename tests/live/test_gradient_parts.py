"""check_gradients where each rank holds another part: FSDP1, experts, pipelines, ties; right and broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import gradient_programs_parts as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

Outcomes = list[dict[str, Any]]
NET = {"up.weight", "up.bias", "norm.weight", "norm.bias", "down.weight", "down.bias"}
LINEARS = {f"layers.{number}.{leaf}" for number in range(4) for leaf in ("weight", "bias")}
PIPELINE = LINEARS | {"embed.weight", "head.weight"}
WRONG = {
    "fsdp1 no_sync": (NET, "a reduction is missing. The mean of the gradients over all"),
    "fsdp1 orig no_sync": (NET, "a reduction is missing. The mean of the gradients over all"),
    "fsdp1 sum": (NET, "wrong scale: it is"),
    "fsdp1 piece off": ({"up.weight"}, "on rank 0"),
    "fsdp1 orig piece off": ({"up.weight"}, "on rank 0"),
    "fsdp1 tied broken": ({"embed.weight", "head.weight"}, "different"),
    "fsdp2 offloaded unsynced": ({"up.weight", "up.bias"}, "missing gradient"),
    "zero doubled": (NET, "wrong scale: it is 2 times"),
    "experts router": ({"router.weight", "router.bias"}, "The sum of the gradients over all"),
    "experts one": ({"experts.2.weight"}, "wrong scale: it is 2 times"),
    "stacked rows": ({"weight"}, "on rank 1"),
    "pipeline unscaled": (PIPELINE, "wrong scale: it is 4 times"),
    "pipeline tied broken": ({"embed.weight"}, "a reduction is missing. The sum of the gradients over"),
    "tied in the model broken": ({"embed.weight"}, "wrong scale: it is 0.5 times"),
    "half frozen broken": ({"down.bias"}, "missing gradient: None"),
    "deep bf16 broken": ({"layers.2.weight"}, "a reduction is missing. The mean"),
    "interleaved unscaled": (PIPELINE, "wrong scale: it is 4 times"),
    "experts copies broken": (
        {f"experts.{number}.{leaf}" for number in (0, 1) for leaf in ("weight", "bias")},
        "The mean of the gradients over the ranks that hold it (ranks 0, 2) would be right",
    ),
    "pipeline copies broken": (
        {name for name in PIPELINE if name.startswith(("layers.2", "layers.3", "head"))},
        "The mean of the gradients over the ranks that hold it (ranks 1, 3) would be right",
    ),
}


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """What every rank saw in every case; all cases run in one set of processes."""
    more = programs.TWO_RANKS if request.param == 2 else programs.FOUR_RANKS
    return run_ranks(programs.outcomes, request.param, [*programs.CASES, *more], limit_s=240)


def findings(outcomes: Outcomes, case: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = outcomes[0][case]["findings"]
    return found


def facts(finding: dict[str, Any]) -> dict[str, Any]:
    return {fact["label"]: fact["value"] for fact in finding["evidence"]}


def test_every_rank_returns_the_same_list_and_keeps_its_gradients(outcomes: Outcomes) -> None:
    for case in outcomes[0]:
        for rank in outcomes:
            assert rank[case]["findings"] == outcomes[0][case]["findings"], case
            assert rank[case]["unchanged"], case


def test_right_gradients_give_no_finding(outcomes: Outcomes) -> None:
    right = [case for case in outcomes[0] if case.endswith("right")]
    assert len(right) > 20
    assert {case: findings(outcomes, case) for case in right} == {case: [] for case in right}


def test_a_broken_one_names_its_parameters_and_no_others(outcomes: Outcomes) -> None:
    broken = [case for case in outcomes[0] if not case.endswith("right")]
    assert set(broken) <= set(WRONG)
    assert len(broken) > 15
    for case in broken:
        parameters, words = WRONG[case]
        found = findings(outcomes, case)
        assert {finding["where"]["parameter"] for finding in found} == parameters, case
        for finding in found:
            assert words in finding["title"], case
            assert facts(finding)["proof"] == "one device's run of the global batch"


def test_an_expert_is_named_in_the_reference_and_on_its_rank(outcomes: Outcomes) -> None:
    (finding,) = findings(outcomes, "experts one")
    assert finding["ranks"] == [1]
    assert finding["where"]["parameter"] == "experts.2.weight"
    assert (facts(finding)["held by"], facts(finding)["name on rank 1"]) == ("rank 1", "experts.0.weight")
    assert finding["remedy"]["code"] == 'model.get_parameter("experts.0.weight").grad /= 2'


def test_ends_tied_over_a_pipeline_are_added_where_they_are_held(outcomes: Outcomes) -> None:
    (finding,) = findings(outcomes, "pipeline tied broken")
    last = len(outcomes) - 1
    assert finding["ranks"] == [0, last]
    code = finding["remedy"]["code"]
    if last > 1:
        assert f"(ranks 0, {last})" in finding["title"]
        assert f"dist.new_group([0, {last}])" in code
    assert 'dist.all_reduce(model.get_parameter("embed.weight").grad' in code


def test_fsdp1_without_its_reduction_says_so(outcomes: Outcomes) -> None:
    for case in ("fsdp1 no_sync", "fsdp1 orig no_sync"):
        finding = findings(outcomes, case)[0]
        assert facts(finding)["gradient"] == "FSDP1, float32"
        assert finding["remedy"]["text"].startswith("Leave no_sync()")


PLACES = "names must give each parameter of a rank a place of its own"
SAME_CLASS = "build the reference from the model's class, before it is wrapped or parallelised"
MISTAKES = {
    "slices overlap": [
        "names gives 288 elements of parameter weight to the ranks, it has 576",
        "the slices must make up the whole, without overlap",
    ],
    "one place for two": [
        "experts.0.weight and experts.1.weight are both experts.0.weight of the reference",
        PLACES,
    ],
    "no such place": ["the reference has no parameter gate.weight", SAME_CLASS],
    "a stage nobody holds": ["the model has no parameter layers.2.bias, layers.2.weight", SAME_CLASS],
    "names is a list": [
        "names is list, neither a mapping nor a function",
        'give names={"experts.0.weight": "experts.4.weight"}, or a function of the name',
    ],
    "a place is a number": [
        "names gives 3 for weight",
        "give the parameter's name in the reference, or (name, slice) for a part of its rows",
    ],
    "two stages of one name": [
        "two modules of the list have a parameter up.weight",
        "stages must keep the names that their layers have in the whole model",
    ],
    "trained on one rank": [
        "parameter up.weight is not of one dtype, requires_grad and shape on rank 0, rank 1",
        "every rank that holds it must hold equal values",
    ],
}


def test_a_mistake_is_one_line_on_every_rank_and_hangs_nobody() -> None:
    assert run_ranks(programs.messages, 2, list(MISTAKES), limit_s=60) == [MISTAKES] * 2


def test_fsdp1_over_tensor_parallelism_is_refused() -> None:
    for seen in run_ranks(programs.messages, 4, ["fsdp1 over tensor parallel"]):
        message, hint = seen["fsdp1 over tensor parallel"]
        assert message.startswith("FSDP1 has flattened the local shards of DTensors (up.weight, ")
        assert hint == "on top of tensor parallelism use fully_shard (FSDP2), whose gradients can be compared"
