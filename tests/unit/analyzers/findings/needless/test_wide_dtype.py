"""What travels in a wider format than it is computed in, and the sound twins of each."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.analyzers.roofline import Placement
from shardtoll.ledger import Collective, Compute, Finding
from tests.unit.analyzers.fabrics import ROUND, floor_ns, predicted_ns
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, on_ranks
from tests.unit.analyzers.of_kinds import running

run = running("wide-dtype")

BF16 = "bf16[64,128] bf16[128,256]"
FP32 = "f32[64,128] f32[128,256]"
FSDP: dict[str, Any] = {
    "op": "reduce_scatter",
    "caused_by_op": "FSDP.post_backward",
    "module": "blocks.0",
    "parameter": "blocks.0.up.weight, blocks.0.norm.weight",
    "source": "train.py:9 (step)",
    "mesh_dim": "dp",
    "message_bytes": 1 << 20,
}
DDP: dict[str, Any] = {
    "caused_by_op": "DistributedDataParallel.reducer",
    "module": "embed",
    "parameter": "embed.weight",
    "source": "train.py:9 (step)",
}
HAND: dict[str, Any] = {"caused_by_op": "all_reduce", "phase": "other", "source": "train.py:11 (average)"}


def matmuls(shapes: str, module: str = "blocks.0.up", flops: int = 1000) -> list[Compute]:
    return [
        compute(rank=rank, index=index, phase=phase, module=module, shapes=shapes, flops=flops)
        for rank in (0, 1)
        for index, phase in enumerate(("forward", "backward"))
    ]


def found(rows: list[Collective], computes: list[Compute], fabric: Any = None) -> list[Finding]:
    report = run(ledger(rows, computes=computes), fabric)
    return [finding for finding in report.findings if finding.kind == "wide-dtype"]


def evidence(finding: Finding) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


def test_fsdp2_that_reduces_bf16_gradients_in_fp32() -> None:
    second = FSDP | {"module": "blocks.1", "parameter": "blocks.1.up.weight, blocks.1.norm.weight"}
    rows = [*on_ranks((0, 1), seq=1, **FSDP), *on_ranks((0, 1), seq=2, **second)]
    computes = [*matmuls(BF16), *matmuls(BF16, "blocks.1.up")]
    (finding,) = found(rows, computes, ROUND)
    assert (finding.severity, finding.confidence, finding.count) == ("info", "certain", 2)
    assert finding.bytes == 1 << 20, "half of two messages"
    facts = evidence(finding)
    assert facts["bytes moved per step"] == 2 << 20
    assert (facts["moved as"], facts["computed in"]) == ("float32", "bfloat16")
    assert finding.where.parameter == "blocks.*.up.weight, blocks.*.norm.weight"
    assert (finding.where.source, finding.where.mesh_dim) == ("train.py:9 (step)", "dp")
    assert "a choice about numerics" in finding.title
    assert "reduce_dtype=torch.bfloat16" in (finding.remedy.code or "")  # type: ignore[union-attr]


def test_a_group_of_one_moves_nothing() -> None:
    alone = [row for rank in (0, 1) for row in on_ranks((rank,), group=f"dp{rank}", **FSDP)]
    assert found(alone, matmuls(BF16), ROUND) == []


def test_the_saving_is_the_part_of_the_time_that_expected_times_say_goes_with_the_bytes() -> None:
    (finding,) = found(on_ranks((0, 1), **FSDP), matmuls(BF16), ROUND)
    whole, half = (
        predicted_ns(ROUND, "reduce_scatter", size, Placement(2, 1, 2)) for size in (1 << 20, 1 << 19)
    )
    assert finding.toll_ns == 2 * MS
    assert finding.saving_ns == pytest.approx(2 * MS * (1 - half / whole), rel=1e-3)
    assert finding.floor_ns == floor_ns(ROUND, "reduce_scatter", 1 << 19, Placement(2, 1, 2))


def test_no_saving_is_claimed_without_a_fabric() -> None:
    from shardtoll.analyzers.roofline import UNKNOWN

    (finding,) = found(on_ranks((0, 1), **FSDP), matmuls(BF16), UNKNOWN)
    assert (finding.saving_ns, finding.remedy.counterfactual) == (None, None)  # type: ignore[union-attr]


def test_waiting_for_a_late_rank_is_no_saving() -> None:
    rows = [
        collective(rank=0, start_ns=1 * MS, issue_ns=1 * MS, duration_ns=9 * MS, exposed_ns=9 * MS, **FSDP),
        collective(rank=1, start_ns=9 * MS, issue_ns=9 * MS, duration_ns=1 * MS, exposed_ns=1 * MS, **FSDP),
    ]
    (finding,) = found(rows, matmuls(BF16), ROUND)
    assert finding.toll_ns == 9 * MS
    assert finding.saving_ns is not None
    assert finding.saving_ns <= MS


@pytest.mark.parametrize("shapes", [FP32, "f32[64,128] bf16[128,256]"])
def test_training_in_fp32_is_no_finding(shapes: str) -> None:
    rows = [
        *on_ranks((0, 1), seq=1, **FSDP),
        *on_ranks((0, 1), seq=2, **DDP),
        *on_ranks((0, 1), seq=3, **HAND),
    ]
    assert not found(rows, matmuls(shapes))


def test_what_moves_in_the_format_of_the_computation_is_no_finding() -> None:
    assert not found(on_ranks((0, 1), **(FSDP | {"dtype": "bfloat16"})), matmuls(BF16))


def test_a_module_kept_in_fp32_is_its_own_matter() -> None:
    head = FSDP | {"module": "head", "parameter": "head.weight"}
    computes = [*matmuls(BF16), *matmuls(FP32, "head")]
    assert not found(on_ranks((0, 1), **head), computes)
    assert len(found(on_ranks((0, 1), **FSDP), computes)) == 1


def test_a_norm_of_which_no_product_is_known_is_judged_by_what_is_wrapped_with_it() -> None:
    norm = {"parameter": "blocks.0.norm.weight", "module": "blocks.0.norm", "caused_by_op": "aten.add.Tensor"}
    assert not found(on_ranks((0, 1), **norm), matmuls(BF16))


def test_ddp_under_autocast_gets_the_hook_of_its_format() -> None:
    (finding,) = found(on_ranks((0, 1), **DDP), matmuls(BF16))
    assert "bf16_compress_hook" in (finding.remedy.code or "")  # type: ignore[union-attr]
    (finding,) = found(on_ranks((0, 1), **DDP), matmuls(BF16.replace("bf16", "f16")))
    assert "fp16_compress_hook" in (finding.remedy.code or "")  # type: ignore[union-attr]
    assert "overflows" in finding.remedy.text  # type: ignore[union-attr]


def test_a_rotary_table_in_fp32_does_not_hide_it() -> None:
    assert found(on_ranks((0, 1), **DDP), [*matmuls(BF16), *matmuls(FP32, "rotary", flops=10)])
    assert not found(on_ranks((0, 1), **DDP), [*matmuls(BF16), *matmuls(FP32, "rotary", flops=900)])


def test_parameters_gathered_in_fp32_for_autocast() -> None:
    gather = FSDP | {"op": "all_gather", "caused_by_op": "FSDP.unshard", "phase": "forward"}
    (finding,) = found(on_ranks((0, 1), **gather), matmuls(BF16))
    assert "moved parameters in float32" in finding.title
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16)" in (finding.remedy.code or "")  # type: ignore[union-attr]
    by_hand = gather | {"caused_by_op": "all_gather", "module": None, "parameter": None}
    assert not found(on_ranks((0, 1), **by_hand), matmuls(BF16)), "outputs may well be wanted in fp32"


def test_gradients_reduced_by_hand_are_likely() -> None:
    # The product of backward has 64 x 256 elements; a gradient of a norm goes with the matrix at its line.
    rows = [
        *on_ranks((0, 1), seq=1, **(HAND | {"message_bytes": 4 * 64 * 256})),
        *on_ranks((0, 1), seq=2, **(HAND | {"message_bytes": 4 * 64})),
    ]
    (finding,) = found(rows, matmuls(BF16))
    assert (finding.confidence, finding.count) == ("likely", 2)
    assert finding.bytes == 2 * 64 * 256 + 2 * 64


@pytest.mark.parametrize(
    "given",
    [
        {"message_bytes": 4},
        {"message_bytes": 4 * 64},
        {"message_bytes": 1 << 20, "phase": "forward"},
        {"message_bytes": 1 << 20, "op": "broadcast"},
        {"message_bytes": 1 << 20, "phase": "backward", "module": "batch_norm"},
        {"message_bytes": 1 << 20, "dtype": "int64"},
    ],
)
def test_losses_norms_and_statistics_by_hand_are_no_finding(given: dict[str, Any]) -> None:
    assert not found(on_ranks((0, 1), **(HAND | given)), matmuls(BF16))
