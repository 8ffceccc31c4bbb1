"""check_gradients on 2 and 4 gloo ranks: right models stay clean, each mistake is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import gradient_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

Outcomes = list[dict[str, Any]]
NET = {"up.weight", "up.bias", "norm.weight", "norm.bias", "down.weight", "down.bias"}
RIGHT = [name for name in programs.CASES if name.endswith("right")] + [
    "unused zero",
    "zero by nature",
    "zero by nature bf16",
    "fsdp2 uneven",
    "fsdp2 bf16",
    "router declared",
]


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """What every rank saw in every case; all cases run in one set of processes."""
    cases = list(programs.CASES) + (list(programs.FOUR_RANKS) if request.param == 4 else [])
    return run_ranks(programs.outcomes, request.param, cases)


def findings(outcomes: Outcomes, case: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = outcomes[0][case]["findings"]
    return found


def facts(finding: dict[str, Any]) -> dict[str, Any]:
    return {fact["label"]: fact["value"] for fact in finding["evidence"]}


def named(found: list[dict[str, Any]]) -> set[str]:
    return {finding["where"]["parameter"] for finding in found}


def test_every_rank_returns_the_same_list(outcomes: Outcomes) -> None:
    for case in outcomes[0]:
        for rank in outcomes[1:]:
            assert rank[case]["findings"] == outcomes[0][case]["findings"], case


def test_training_is_untouched_bit_for_bit(outcomes: Outcomes) -> None:
    for case, seen in ((case, rank[case]) for rank in outcomes for case in rank):
        assert seen["unchanged"], case
        assert seen["reference_grads"] == 0, case


def test_captures_are_paused_and_get_the_findings(outcomes: Outcomes) -> None:
    for case, seen in ((case, rank[case]) for rank in outcomes for case in rank):
        assert seen["events"] == ["pause", "resume"], case
        assert seen["delivered"], case


@pytest.mark.parametrize("case", RIGHT)
def test_right_gradients_give_no_finding(outcomes: Outcomes, case: str) -> None:
    assert findings(outcomes, case) == []


@pytest.mark.parametrize("case", ["2-D right", "hsdp right"])
def test_right_gradients_on_two_mesh_dims_give_no_finding(outcomes: Outcomes, case: str) -> None:
    if len(outcomes) == 4:
        assert findings(outcomes, case) == []
    else:
        assert case not in outcomes[0]


def test_every_finding_is_an_error_with_a_place_and_a_remedy(outcomes: Outcomes) -> None:
    seen = 0
    for case in outcomes[0]:
        for finding in findings(outcomes, case):
            seen += 1
            assert (finding["kind"], finding["severity"]) == ("wrong-gradient", "error")
            assert finding["where"]["parameter"]
            assert finding["remedy"]["text"]
            assert finding["toll_ns"] is None
    assert seen > 20


@pytest.mark.parametrize(
    ("case", "total", "parameters"),
    [
        ("plain missing mean", "mean", NET),
        ("plain missing sum", "sum", NET),
        ("ddp no_sync", "mean", NET),
        ("ddp ignored", "mean", {"up.weight"}),
        ("bf16 missing", "mean", NET),
    ],
)
def test_a_missing_reduction_is_named_with_its_group(
    outcomes: Outcomes, case: str, total: str, parameters: set[str]
) -> None:
    world = len(outcomes)
    found = findings(outcomes, case)
    assert named(found) == parameters
    for finding in found:
        seen = facts(finding)
        assert (
            f"a reduction is missing. The {total} of the gradients over all {world} ranks" in finding["title"]
        )
        assert finding["ranks"] == list(range(world))
        assert seen["factor"] == (1.0 if total == "sum" else world)
        assert seen["relative error once reduced"] < seen["tolerance"] < seen["relative error, rank 0"]
        assert 0 < seen["norm / true norm, rank 0"] < 10
    code = found[0]["remedy"]["code"]
    if case.startswith("ddp"):
        assert "model.no_sync()" in code
    else:
        mean = ", op=dist.ReduceOp.AVG" if total == "mean" else ""
        assert code == f'dist.all_reduce(model.get_parameter("{found[0]["where"]["parameter"]}").grad{mean})'


@pytest.mark.parametrize(
    ("case", "factor", "name"),
    [
        ("plain sum for mean", "world", "the world size"),
        ("fsdp2 sum", "world", "the world size"),
        ("ddp share", "1/world", "1 / the world size"),
        ("plain odd scale", 0.3, None),
        ("plain loss scale", 1024.0, None),
    ],
)
def test_a_wrong_scale_is_measured_and_matched(
    outcomes: Outcomes, case: str, factor: str | float, name: str | None
) -> None:
    world = len(outcomes)
    expected = {"world": float(world), "1/world": 1 / world}.get(str(factor), factor)
    found = findings(outcomes, case)
    assert named(found) == NET
    for finding in found:
        assert f"wrong scale: it is {expected:.4g} times the true one" in finding["title"]
        assert facts(finding)["factor"] == pytest.approx(expected, rel=1e-4)
        assert facts(finding).get("factor equals") == name
    if case == "plain loss scale":
        assert found[0]["remedy"]["code"] == "scaler.unscale_(optimizer)"
    if case == "ddp share":
        assert found[0]["remedy"]["code"] == f"loss = loss * {world}"


def test_one_rank_that_differs_is_told_from_the_right_ones(outcomes: Outcomes) -> None:
    (finding,) = findings(outcomes, "one rank off")
    assert finding["where"]["parameter"] == "up.weight"
    assert finding["ranks"] == [1]
    others = "rank 0 is" if len(outcomes) == 2 else "ranks 0, 2, 3 are"
    assert f"replicas differ: rank 1 is wrong while {others} right" in finding["title"]
    assert facts(finding)["relative error, rank 0"] < facts(finding)["tolerance"]


def test_drifted_weights_are_the_evidence(outcomes: Outcomes) -> None:
    found = findings(outcomes, "weights drifted")
    assert named(found) == NET
    down = next(finding for finding in found if finding["where"]["parameter"] == "down.weight")
    assert facts(down)["weight differs from rank 0's on rank 1"] == pytest.approx(0.5)
    assert down["remedy"]["code"] == 'dist.broadcast(model.get_parameter("down.weight").data, src=0)'
    up = next(finding for finding in found if finding["where"]["parameter"] == "up.weight")
    assert not any("weight differs" in label for label in facts(up))


def test_missing_extra_zero_and_not_finite(outcomes: Outcomes) -> None:
    everyone = "ranks 0, 1" if len(outcomes) == 2 else "ranks 0-3"
    titles = {f["where"]["parameter"]: f["title"] for f in findings(outcomes, "one missing")}
    assert titles == {
        "up.weight": "gradient of up.weight is wrong: missing gradient: None on rank 1, "
        "the unsharded model has one",
        "down.bias": f"gradient of down.bias is wrong: missing gradient: None on {everyone}, "
        "the unsharded model has one",
    }
    extra = findings(outcomes, "extra")
    assert named(extra) == {"spare.weight", "spare.bias"}
    assert f"extra gradient: on {everyone}, the unsharded model has none" in extra[0]["title"]
    (zero,) = findings(outcomes, "one zero")
    assert "it is zero on every rank" in zero["title"]
    (broken,) = findings(outcomes, "not finite")
    assert "NaN or infinity on rank 1" in broken["title"]
    assert facts(broken)["relative error, rank 1"] is None


def test_a_partial_gradient_treated_as_replicate_names_its_mesh_dim(outcomes: Outcomes) -> None:
    (finding,) = findings(outcomes, "router drift")
    assert finding["where"]["parameter"] == "router"
    assert finding["where"]["mesh_dim"] == "tp"
    assert "The sum of the gradients over mesh dim 'tp'" in finding["title"]
    assert "though its placements say Replicate" in finding["title"]
    assert finding["remedy"]["code"] == "router.to_local(grad_placements=[Partial()])"


def test_a_wrong_shard_is_reported_on_its_rank(outcomes: Outcomes) -> None:
    (finding,) = findings(outcomes, "fsdp2 shard off")
    assert finding["ranks"] == [1]
    assert "different, cause unknown: off by 100 % on rank 1" in finding["title"]


def test_many_parameters_with_one_diagnosis_become_one_finding(outcomes: Outcomes) -> None:
    (finding,) = findings(outcomes, "deep missing")
    assert finding["count"] == 24
    assert finding["title"].startswith(
        "gradients of 24 parameters (layers.0.weight, layers.0.bias, layers.1.weight, ...) are wrong: "
        "a reduction is missing"
    )
    assert finding["where"]["parameter"] == "layers.0.weight"
    assert "layers.11.bias" in facts(finding)["parameters"]


def test_weights_tied_in_the_reference_only_say_so(outcomes: Outcomes) -> None:
    found = findings(outcomes, "tied broken")
    assert named(found) == {"embed.weight", "head.weight"}
    assert facts(found[0])["tied in the reference, not in the model"] == "head.weight"
    assert facts(found[1])["tied in the reference, not in the model"] == "embed.weight"


def test_a_mesh_dim_is_told_from_the_world(outcomes: Outcomes) -> None:
    if len(outcomes) == 2:
        assert "2-D sum" not in outcomes[0]
        return
    for finding in findings(outcomes, "2-D sum"):
        assert facts(finding)["factor"] == pytest.approx(2, rel=1e-4)
        assert facts(finding)["factor equals"] == "the size of mesh dim 'dp'"
    missing = findings(outcomes, "2-D manual missing")
    assert named(missing) == {"up.weight", "up.bias", "down.weight", "down.bias"}
    for finding in missing:
        assert "The mean of the gradients over mesh dim 'dp' (2 ranks) would be right" in finding["title"]
        assert "placements say Replicate" not in finding["title"]
        assert finding["where"]["mesh_dim"] == "dp"
        assert finding["remedy"]["code"].endswith('op=dist.ReduceOp.AVG, group=mesh.get_group("dp"))')


AFTER_BACKWARD = (
    "call check_gradients after loss.backward() and before optimizer.zero_grad(), with gradient sync on"
)
SAME_CLASS = "build the reference from the model's class, before it is wrapped or parallelised"
MISTAKES = {
    "name": ["the model has no parameter extra.bias, extra.weight", SAME_CLASS],
    "name on the model": ["the reference has no parameter norm.bias, norm.weight", SAME_CLASS],
    "shape on rank 1": [
        "rank 1: parameter up.bias has shape (16,) in the model and (3,) in the reference",
        "the reference must be unsharded; a parameter sharded by hand needs names=, which says what slice of "
        "it a rank holds",
    ],
    "buffer shape": [
        "buffer table has shape (3,) in the model and (4,) in the reference",
        "build the reference with the same sizes as the model",
    ],
    "not scalar": [
        "loss(reference) has shape (8, 12), not a scalar",
        "reduce it as the training step does, with mean() or sum()",
    ],
    "not a tensor": [
        "loss(reference) returned float, not a tensor",
        "return the loss itself, without .item()",
    ],
    "other weights": [
        "loss(reference) does not depend on the reference's parameters",
        "compute it with the module that loss is given",
    ],
    "loss fails": [
        "loss(reference) failed with RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 12x16)",
        "it must run alone on rank 0, on the device the reference is on",
    ],
    "loss communicates": [
        "loss(reference) communicates (c10d.allreduce_.default)",
        "only rank 0 computes it: gather the global batch before the check, on every rank",
    ],
    "loss is a DTensor": [
        "loss(reference) uses a DTensor",
        "give it the global batch as a plain tensor, gathered before the check",
    ],
    "loss not finite": [
        "loss(reference) gives a gradient that is not finite (parameter up.weight)",
        "there is nothing to compare with: check the loss, its dtype and the batch",
    ],
    "no gradients": ["no parameter of the model has a gradient", AFTER_BACKWARD],
    "zeroed": ["every gradient of the model is zero on every rank", AFTER_BACKWARD],
    "same module": [
        "model and reference share parameter up.weight",
        "give the reference weights of its own, as copy.deepcopy(model)",
    ],
    "reference is parallel": [
        "parameter up.weight of the reference is a DTensor",
        "build the reference before parallelising, as copy.deepcopy(model) before fully_shard",
    ],
    "meta": [
        "rank 0: parameter up.weight of the reference is on the meta device",
        "rank 0 computes with it: give it memory there with reference.to_empty(device=...)",
    ],
    "other parameters on rank 1": [
        "rank 0 and rank 1 were not given the same parameters and buffers",
        "the reference must be the whole model on every rank; the model may be a part of it",
    ],
    "no function": [
        "loss is Tensor, not a function",
        "give a function of the module, as lambda module: criterion(module(x), y)",
    ],
    "no module": [
        "reference is OrderedDict, not a module",
        "call check_gradients(model, reference, loss)",
    ],
    "rtol": ["rtol is -1.0", "give a relative error such as 1e-3, or leave it out"],
    "rtol on rank 1": ["rank 0 and rank 1 were not given the same rtol", "give it as a constant"],
}


@pytest.fixture(scope="module")
def mistakes() -> list[dict[str, list[str]]]:
    found: list[dict[str, list[str]]] = run_ranks(programs.messages, 2, list(MISTAKES), limit_s=60)
    return found


@pytest.mark.parametrize("name", list(MISTAKES))
def test_a_mistake_is_one_line_on_every_rank_and_hangs_nobody(
    mistakes: list[dict[str, list[str]]], name: str
) -> None:
    assert [rank[name] for rank in mistakes] == [MISTAKES[name]] * 2


def test_an_error_leaves_nothing_behind() -> None:
    for seen in run_ranks(programs.after_a_mistake, 2):
        assert seen == {
            "raised": True,
            "events": ["pause", "resume", "pause", "resume"],
            "rng": True,
            "findings": 0,
        }


def test_a_slice_of_the_whole_is_the_shard_whatever_the_placement() -> None:
    for seen in run_ranks(programs.slices, 4):
        assert any("StridedShard" in name for name in seen), seen
        assert all(by_torch for by_torch, _ in seen.values()), seen
        assert all(by_offset for _, by_offset in seen.values()), seen
