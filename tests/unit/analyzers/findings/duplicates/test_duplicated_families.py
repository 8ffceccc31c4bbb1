"""Duplicated work rolled up: layers, choices, equal data, the same work twice on one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.findings.duplicates import duplicated_data
from shardtoll.analyzers.findings.duplicates.duplicated_remedies import Told, remedy
from shardtoll.ledger import Compute, Finding, Group, Where
from shardtoll.ledger.records.work import OPTIMIZER_STEP, kind_of_work
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("duplicated-compute")

FLOPS = 10_000
TP = (Group("tp0", (0, 1), "tp"), Group("tp1", (2, 3), "tp"))
DP = (Group("dp0", (0, 2), "dp"), Group("dp1", (1, 3), "dp"))
NORM = "aten.native_layer_norm.default"


def found(computes: list[Compute], ranks: int = 4, steps: int = 1, **given: Any) -> list[Finding]:
    given.setdefault("run", run_of(ranks))
    given.setdefault("steps", [step(number, rank) for number in range(steps) for rank in range(ranks)])
    findings = run(ledger(computes=computes, **given)).findings
    return [finding for finding in findings if finding.kind == "duplicated-compute"]


def evidence(finding: Finding) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


def row(rank: int, at: int, value: int | None, **change: Any) -> Compute:
    """An operator whose inputs and output are told by one number."""
    given = {"rank": rank, "index": at, "flops": FLOPS, "source": "model.py:7 (forward)"}
    return compute(**(given | {"input_hash": value, "output_hash": value} | change))


def test_the_layers_of_a_model_are_one_finding_with_the_sum_of_their_flops() -> None:
    rows = [
        row(rank, at, 100 + at, module=f"layers.{at}.mlp", parameter=f"layers.{at}.mlp.weight", phase=phase)
        for phase in ("forward", "backward")
        for rank in range(4)
        for at in range(6)
    ]
    forward, backward = sorted(found(rows), key=lambda f: f.where.phase == "backward")
    for finding, phase in ((forward, "forward"), (backward, "backward")):
        facts = evidence(finding)
        assert finding.where.phase == phase
        assert (finding.where.module, finding.where.parameter) == ("layers.*.mlp", "layers.*.mlp.weight")
        assert facts["FLOPs done per step"] == 4 * 6 * FLOPS
        assert facts["FLOPs needed per step"] == 6 * FLOPS
        assert facts["needless FLOPs per step"] == 3 * 6 * FLOPS
        assert facts["ranks that did the same"] == "ranks 0-3"
        assert facts["modules"].count("layers.") == 6
        assert finding.toll_ns == 6 * MS * 3 // 4
    assert forward.severity == "warning"


def test_every_operator_is_in_one_finding() -> None:
    rows = [
        row(rank, at, value, module=module, source=source, op=op)
        for rank in range(4)
        for at, (value, module, source, op) in enumerate(
            (
                (1, "layers.0.up", "a.py:1 (f)", "aten.mm.default"),
                (2, "layers.1.up", "a.py:1 (f)", "aten.addmm.default"),
                (3, "layers.0.down", "a.py:2 (f)", "aten.mm.default"),
                (4, None, "a.py:3 (f)", "aten.bmm.default"),
                (5, "norm", "a.py:4 (f)", NORM),
                (6, None, "a.py:5 (f)", "aten._log_softmax.default"),
            )
        )
    ]
    findings = found(rows)
    assert len(findings) == 5
    assert sum(evidence(f)["needless FLOPs per step"] for f in findings) == 3 * len(rows) // 4 * FLOPS
    both = next(f for f in findings if f.where.module == "layers.*.up")
    assert evidence(both)["of them aten.mm.default"] == 4 * FLOPS
    assert evidence(both)["of them aten.addmm.default"] == 4 * FLOPS


def test_equal_pairs_along_a_mesh_dim_are_named_by_it() -> None:
    rows = [row(rank, 0, rank % 2) for rank in range(4)]
    (finding,) = found(rows, groups=(*TP, *DP))
    assert finding.where.mesh_dim == "dp"
    assert evidence(finding)["ranks that did the same"] == "ranks 0, 2; ranks 1, 3"
    assert evidence(finding)["needless FLOPs per step"] == 2 * FLOPS
    rows = [row(rank, 0, rank // 2) for rank in range(4)]
    (finding,) = found(rows, groups=(*TP, *DP))
    assert finding.where.mesh_dim == "tp"


def test_all_ranks_of_a_mesh_are_named_by_all_its_dims() -> None:
    (finding,) = found([row(rank, 0, 1) for rank in range(4)], groups=(*TP, *DP))
    assert finding.where.mesh_dim == "tp,dp"
    flat = Group("all", (0, 1, 2, 3), "dp_tp")
    (finding,) = found([row(rank, 0, 1) for rank in range(4)], groups=(*TP, *DP, flat))
    assert finding.where.mesh_dim == "dp_tp"


def test_a_group_without_a_mesh_is_named_and_other_ranks_are_listed() -> None:
    pair = (Group("pg", (0, 1, 2, 3)), Group("pair", (1, 2)))
    (finding,) = found([row(rank, 0, 7 if rank in (1, 2) else rank) for rank in range(4)], groups=pair)
    assert (finding.where.mesh_dim, finding.where.group) == (None, "pair")
    (finding,) = found([row(rank, 0, 7 if rank in (0, 3) else rank) for rank in range(4)], groups=pair)
    assert (finding.where.mesh_dim, finding.where.group, finding.ranks) == (None, None, (0, 3))


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (NORM, "SequenceParallel"),
        ("aten.native_layer_norm_backward.default", "SequenceParallel"),
        ("aten._fused_rms_norm.default", "SequenceParallel"),
        ("aten._log_softmax.default", "loss_parallel"),
        ("aten.embedding_dense_backward.default", "ColwiseParallel"),
        (OPTIMIZER_STEP, "ZeroRedundancyOptimizer"),
    ],
)
def test_what_is_repeated_on_purpose_is_a_choice_with_its_alternative(op: str, says: str) -> None:
    phase = "optimizer" if op == OPTIMIZER_STEP else "forward"
    rows = [row(rank, 0, 1, op=op, duration_ns=50 * MS, phase=phase) for rank in range(4)]
    (finding,) = found(rows)
    assert finding.severity == "info"
    assert finding.title.startswith("a choice: ")
    assert finding.remedy is not None
    assert says in f"{finding.remedy.text}{finding.remedy.code}"
    assert finding.toll_ns == 50 * MS * 3 // 4
    matmul = [row(rank, 0, 1, duration_ns=50 * MS) for rank in range(4)]
    assert found(matmul)[0].severity == "warning"


def test_the_norms_of_all_layers_and_phases_are_one_choice() -> None:
    backward = "aten.native_layer_norm_backward.default"
    rows = [
        row(rank, at, at, op=op, phase=phase, module=f"layers.{at}.{name}", source=f"m.py:{at} (f)")
        for rank in range(2)
        for op, phase in ((NORM, "forward"), (backward, "backward"))
        for at, name in enumerate(("norm1", "norm2", "norm"))
    ]
    (finding,) = found(rows, ranks=2, groups=(Group("tp", (0, 1), "tp"),))
    assert evidence(finding)["needless FLOPs per step"] == 6 * FLOPS
    assert (finding.where.phase, finding.where.mesh_dim) == (None, "tp")
    assert "computed 2 times in forward and backward" in finding.title


def test_the_price_of_a_replicated_optimizer_has_its_states() -> None:
    shapes = "f32[1000] state u8[8000] f32[10] state u8[80]"
    rows = [row(r, 0, 1, op=OPTIMIZER_STEP, phase="optimizer", shapes=shapes) for r in range(4)]
    (finding,) = found(rows)
    assert evidence(finding)["state of the optimizer on each rank"] == 8080
    assert "each of 4 replicas makes the same update and keeps the same 8.08 kB of states" in finding.title
    assert "6.06 kB of states on each rank" in finding.remedy.text
    rows = [row(r, 0, None, op=OPTIMIZER_STEP, phase="optimizer", replicated_over="dp") for r in range(4)]
    (finding,) = found(rows, run=run_of(4, mesh={"dp": 2, "tp": 2}), groups=(*TP, *DP))
    assert finding.where.mesh_dim == "dp"
    assert evidence(finding)["ranks that did the same"] == "ranks 0, 2; ranks 1, 3"
    assert 'fully_shard(model, mesh=mesh["dp"])' in finding.remedy.code


def test_matmuls_of_an_optimizer_are_a_choice_too() -> None:
    (finding,) = found([row(rank, 0, 1, phase="optimizer") for rank in range(4)])
    assert finding.severity == "info"
    assert "makes the same update" in finding.title


def reduction(rank: int, value: int | None, **change: Any) -> Any:
    given = {"rank": rank, "group_size": 2, "phase": "backward", "input_hash": value}
    return collective(**(given | {"caused_by_op": "DistributedDataParallel.reducer"} | change))


DATA = [row(rank, at, at, module=f"layers.{at}", duration_ns=10 * MS) for rank in (0, 1) for at in range(5)]


def test_equal_gradients_before_the_reduction_are_equal_data_and_said_once() -> None:
    (finding,) = found(DATA, ranks=2, collectives=[reduction(0, 5), reduction(1, 5)])
    assert "those ranks were given the same data" in finding.title
    assert "DistributedSampler" in finding.remedy.code
    assert evidence(finding)["needless FLOPs per step"] == 5 * FLOPS
    assert finding.severity == "warning"


def test_ranks_that_share_a_model_cut_by_hand_have_no_equal_data() -> None:
    # What is not cut has equal gradients; each rank multiplies its own parts of the rest.
    parts = [row(rank, 10 + at, 50 + 10 * rank + at, module="cut") for rank in (0, 1) for at in range(5)]
    both = [reduction(0, 5), reduction(1, 5)]
    assert "given the same data" not in " ".join(f.title for f in found([*DATA, *parts], 2, collectives=both))


def test_equal_data_that_inputs_show_are_billed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    billed = Finding("duplicated-data", "warning", "equal", 1, None, 1, None, 1, (0, 1), Where(op="input"))
    reduced = [reduction(0, 5), reduction(1, 5)]
    for one, left in ((billed, 0), (replace(billed, ranks=(2, 3)), 1)):
        monkeypatch.setattr(duplicated_data, "find", lambda _, one=one: [one])
        assert len(found(DATA, ranks=2, collectives=reduced)) == left


@pytest.mark.parametrize(
    "collectives",
    [
        [],
        [reduction(0, 5), reduction(1, 6)],
        [reduction(0, None), reduction(1, None)],
        [reduction(rank, 5, caused_by_op="all_reduce") for rank in (0, 1)],
        [reduction(rank, 5, phase="forward") for rank in (0, 1)],
    ],
    ids=["no reduction", "other values", "unknown values", "of no gradient", "in forward"],
)
def test_without_equal_gradients_equal_work_is_duplicated_work(collectives: list[Any]) -> None:
    (finding,) = found(DATA, ranks=2, collectives=collectives)
    assert finding.where.module == "layers.*"


def test_equal_data_leave_the_optimizer_a_choice_of_its_own() -> None:
    rows = [*DATA, *(row(rank, 9, 3, op=OPTIMIZER_STEP, phase="optimizer") for rank in (0, 1))]
    findings = found(rows, ranks=2, collectives=[reduction(0, 5), reduction(1, 5)])
    assert len(findings) == 2
    assert sum(evidence(f)["needless FLOPs per step"] for f in findings) == 6 * FLOPS


# -- twice on one rank ---------------------------------------------------------------------------------

OTHER = {"module": "other", "source": "model.py:9 (forward)"}


def once(rank: int, at: int, value: int, **change: Any) -> Compute:
    return row(rank, at, value, **({"module": "mix", "parameter": "mix.w"} | change))


def test_the_same_product_at_two_lines_is_the_same_work_twice() -> None:
    rows = [
        once(rank, at, value, **change)
        for rank in (0, 1)
        for at, (value, change) in enumerate(
            ((rank, {}), (rank, {"source": "model.py:8 (forward)"}), (10 + rank, OTHER))
        )
    ]
    (finding,) = found(rows, ranks=2)
    assert finding.title.startswith("the same work twice on one rank: aten.mm.default in mix at model.py:8")
    facts = evidence(finding)
    assert (facts["first done at"], facts["done again at"]) == (
        "model.py:7 (forward)",
        "model.py:8 (forward)",
    )
    assert facts["needless FLOPs per step"] == 2 * FLOPS
    assert (finding.where.parameter, finding.toll_ns) == ("mix.w", MS)


@pytest.mark.parametrize(
    "second",
    [
        {"value": 2},
        {"module": "k"},
        {"parameter": "mix.v"},
        {"phase": "recompute"},
        {"constant": True},
        {"op": NORM},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_differs_is_not_the_same_work(second: dict[str, Any]) -> None:
    given = {"source": "model.py:8 (forward)", "value": 1} | second
    rows = [once(0, 0, 1), once(0, 1, given.pop("value"), **given), once(0, 2, 5, **OTHER)]
    assert found(rows, ranks=1) == []


def test_equal_micro_batches_are_not_the_same_work_twice() -> None:
    one = [(1, {}), (2, OTHER)]
    # Forward, backward, forward, backward: as gradient accumulation does.
    apart = [
        once(0, 4 * turn + 2 * part + at, value, phase=phase, **change)
        for turn in range(2)
        for part, phase in enumerate(("forward", "backward"))
        for at, (value, change) in enumerate(one)
    ]
    assert found(apart, ranks=1) == []
    # All forwards before all backwards: as GPipe does.
    following = [
        once(0, 2 * turn + at, value, **change) for turn in range(3) for at, (value, change) in enumerate(one)
    ]
    assert found(following, ranks=1) == []


def test_work_done_twice_in_one_step_only_is_chance() -> None:
    twice = [once(0, 0, 1), once(0, 1, 1), once(0, 2, 5, **OTHER)]
    apart = [once(0, 0, 1, step=1), once(0, 1, 2, step=1), once(0, 2, 5, step=1, **OTHER)]
    assert len(found(twice, ranks=1)) == 1
    assert found([*twice, *apart], ranks=1, steps=2) == []


def test_what_a_rank_repeats_is_not_counted_among_what_ranks_repeat() -> None:
    rows = [
        once(rank, at, value, **change)
        for rank in (0, 1)
        for at, (value, change) in enumerate(((1, {}), (1, {"source": "model.py:8 (forward)"}), (3, OTHER)))
    ]
    findings = found(rows, ranks=2)
    # Of six operators two are needed.
    assert sum(evidence(f)["needless FLOPs per step"] for f in findings) == 4 * FLOPS


def test_kinds_of_work() -> None:
    assert kind_of_work("aten.mm.default") == kind_of_work("aten.convolution.default") == "matmul"
    assert kind_of_work(NORM) == "norm"
    assert kind_of_work(OPTIMIZER_STEP) == "optimizer"


def test_what_to_paste_for_an_optimizer_takes_the_jobs_own() -> None:
    told = Told(
        "optimizer", OPTIMIZER_STEP, 2, None, "ranks 0-1", None, None, ("optimizer",), 9, 8, (), False
    )
    code = remedy(told).code or ""
    assert "optimizer_class=type(optimizer)" in code
    assert "AdamW" not in code


def test_what_to_paste_for_a_module_of_ones_own_does_not_need_a_linear() -> None:
    told = Told(
        "", "mm", 2, "tp", "ranks 0-1", "router", "router.weight", ("forward",), 9, None, ("router",), False
    )
    code = remedy(told).code or ""
    assert '{"router": ColwiseParallel()})  # if an nn.Linear' in code
    assert "# else, before mm" in code
