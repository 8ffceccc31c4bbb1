"""Advice for exposed communication goes by who asked for it."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.findings.exposed.exposed_remedies import (
    COUNTERFACTUAL,
    SELDOM,
    can_only_hide,
    remedy,
    sending_less,
)
from shardtoll.analyzers.shared.fsdp_blocks import left_by_larger
from shardtoll.ledger import Finding
from shardtoll.ledger.records.ddp_causes import BUFFERS
from tests.unit.analyzers.ledgers import MS, collective, ledger, on_ranks, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("exposed-communication")


@pytest.mark.parametrize(
    ("cause", "op", "phase", "says"),
    [
        ("DeepSpeed.ZeRO-3.gather", "all_gather", "forward", "stage3_prefetch_bucket_size"),
        ("DeepSpeed.ZeRO-2.reduce", "all_reduce", "backward", "overlap_comm"),
        ("FSDP.unshard", "all_gather", "forward", "set_modules_to_forward_prefetch"),
        ("FSDP.unshard", "all_gather", "backward", "set_modules_to_backward_prefetch"),
        ("FSDP.post_backward", "reduce_scatter", "backward", "    fully_shard(block)\nfully_shard(model)"),
        ("FSDP1.post_backward", "reduce_scatter", "backward", "auto_wrap_policy=ModuleWrapPolicy({Block})"),
        ("DistributedDataParallel.buffers", "broadcast", "forward", "broadcast_buffers=False"),
        ("RowwiseParallel", "all_reduce", "forward", "SequenceParallel"),
        ("ColwiseParallel", "all_reduce", "backward", "SequenceParallel"),
        ("DTensor.full_tensor", "all_gather", "other", "step % 100"),
        ("all_gather", "all_gather", "other", "step % 100"),
        (
            "DTensor.redistribute",
            "all_gather",
            "forward",
            "x.redistribute(placements=placements, async_op=True)",
        ),
        ("all_gather_object", "all_gather", "forward", "dist.all_gather_object(rows, mine)"),
        ("gather_object", "gather", "other", "dist.gather_object(mine, rows, dst=root)"),
        ("broadcast_object_list", "broadcast", "forward", "dist.broadcast_object_list(rows, src=root)"),
        ("all_reduce", "all_reduce", "backward", "dist.all_reduce(tensor, async_op=True)"),
        ("", "reduce_scatter", "backward", "dist.reduce_scatter_tensor("),
        ("", "recv", "backward", "dist.irecv(tensor, src="),
        ("", "send", "forward", "dist.isend(tensor, dst="),
    ],
)
def test_advice_fits_the_cause(cause: str, op: str, phase: str, says: str) -> None:
    found = remedy(cause, op, phase)
    assert says in (found.code or "")
    assert found.counterfactual == COUNTERFACTUAL


@pytest.mark.parametrize(
    ("torch", "option"), [("2.12.1", "broadcast_buffers"), ("2.13.0+cpu", "forward_sync_buffers")]
)
def test_an_option_is_called_as_the_runs_torch_calls_it(torch: str, option: str) -> None:
    rows = [
        collective(rank=rank, op="broadcast", phase="forward", caused_by_op=BUFFERS, input_hash=None)
        for rank in (0, 1)
    ]
    findings = run(ledger(rows, run=run_of(torch=torch))).findings
    (finding,) = (each for each in findings if each.kind == "exposed-communication")
    assert finding.remedy is not None
    assert finding.remedy.code == f"DistributedDataParallel(model, {option}=False)"


def test_objects_that_are_exchanged_seldom_are_saved_whether_compute_hides_them_or_not() -> None:
    def found(cause: str) -> Finding:
        steps = [step(rank=rank, compute_ns=2 * MS, idle_ns=58 * MS) for rank in (0, 1)]
        rows = on_ranks((0, 1), op="all_gather", phase="forward", caused_by_op=cause, duration_ns=9 * MS,
                        exposed_ns=9 * MS)  # fmt: skip
        findings = run(ledger(rows, steps=steps)).findings
        (finding,) = (each for each in findings if each.kind == "exposed-communication")
        return finding

    objects, tensors = found("all_gather_object"), found("all_gather")
    assert objects.remedy is not None
    assert objects.remedy.counterfactual == SELDOM
    assert objects.saving_ns == 9 * MS
    assert tensors.remedy is not None
    assert tensors.remedy.counterfactual == COUNTERFACTUAL
    assert tensors.saving_ns == 2 * MS, "no more compute could hide it"


def test_buckets_are_never_advised_to_grow() -> None:
    large = remedy("DistributedDataParallel.reducer", "all_reduce", "backward", 64 << 20)
    assert "bucket_cap_mb=32" in (large.code or "")
    for size in (None, 1 << 17, 1 << 20):
        small = remedy("DistributedDataParallel.reducer", "all_reduce", "backward", size)
        assert "bucket_cap_mb" not in (small.code or "")
        assert "smaller buckets would not" in small.text.lower()


def test_ddps_agreement_on_buckets_is_no_cost_of_later_steps() -> None:
    assert "once" in remedy("DistributedDataParallel", "broadcast", "forward").text


def test_an_unknown_cause_gets_general_advice() -> None:
    assert "async_op=True" in remedy("", "", "").text


@pytest.mark.parametrize("style", ["ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModule"])
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_what_is_sequence_parallel_is_not_advised_to_become_it(style: str, op: str) -> None:
    made = remedy(style, op, "forward")
    assert "SequenceParallel" not in (made.code or "")
    assert "sequence parallel" not in made.text


def test_fewer_bytes_are_no_advice_for_a_bucket_that_is_latency() -> None:
    made = remedy("DistributedDataParallel.reducer", "all_reduce", "backward", 84)
    assert "latency" in made.text
    assert "bf16" not in made.text + (made.code or "")
    assert "no_sync" in (made.code or "")


@pytest.mark.parametrize("op", ["all_gather", "broadcast", "all_reduce"])
def test_a_few_bytes_a_step_are_advised_to_be_fewer_messages(op: str) -> None:
    tiny = remedy(op, op, "forward", 8)
    assert "latency" in tiny.text
    assert "step % 10" in (tiny.code or "")
    assert "async_op=True" in remedy(op, op, "forward", 1 << 20).text
    # Not where a library's own algorithm needs it in every step.
    assert "step % 10" not in (remedy("RowwiseParallel", op, "forward", 8).code or "")


def test_transfers_that_no_compute_can_hide_are_advised_to_be_fewer() -> None:
    early = remedy("", "", "")
    assert can_only_hide("", "", "")
    assert not can_only_hide("DistributedDataParallel.reducer", "all_reduce", "backward", 84)
    assert not can_only_hide("all_reduce", "all_reduce", "forward", 8)
    assert not can_only_hide("FSDP.unshard", "all_gather", "forward", 1 << 20)
    less = sending_less(early, "23.2 ms", "float32")
    assert less.text.startswith(
        "Send less (bf16 halves it), or use a larger batch: only 23.2 ms of compute could hide"
    )
    assert less.text.endswith(early.text)
    assert less.code == early.code
    for dtype in ("bfloat16", None):
        assert "bf16" not in sending_less(early, "23.2 ms", dtype).text


def test_small_blocks_of_fsdp_are_made_larger_and_never_smaller() -> None:
    many = remedy("FSDP.post_backward", "reduce_scatter", "backward", 16_384, count=25)
    assert many.text.startswith("Shard larger blocks")
    assert "25 messages of 16.4 kB" in many.text
    assert "fully_shard(block)" in (many.code or "")
    gathers = remedy("FSDP1.unshard", "all_gather", "forward", 16_384, count=25)
    assert "ModuleWrapPolicy" in (gathers.code or "")
    for size, count in ((16_384, 3), (10 << 20, 25), (None, 25)):
        assert "larger" not in remedy("FSDP.unshard", "all_gather", "forward", size, count=count).text


def test_larger_blocks_save_latency_and_no_bytes() -> None:
    rows = [
        each
        for seq in range(10)
        for each in on_ranks((0, 1), seq=seq, op="all_gather", phase="forward", caused_by_op="FSDP.unshard",
                             message_bytes=16_384, issue_ns=(1 + 2 * seq) * MS, start_ns=(1 + 2 * seq) * MS,
                             duration_ns=1 * MS, exposed_ns=1 * MS)
    ]  # fmt: skip
    report = run(ledger(rows))
    (finding,) = (each for each in report.findings if each.kind == "exposed-communication")
    assert finding.toll_ns == 10 * MS
    # One latency of ten stays, and a quarter for bytes: 16 KiB of the 64 below which messages are latency.
    assert finding.saving_ns == pytest.approx(6.5 * MS, rel=1e-6)
    changed = report.whatif(report.findings.index(finding) + 1)
    assert changed.saving_ns == pytest.approx(6.5 * MS, rel=0.01)
    assert left_by_larger(63_000, 200) > 0.95, "their bytes stay"


@pytest.mark.parametrize(
    ("cause", "op", "module", "says", "code"),
    [
        (
            "FSDP.post_backward",
            "reduce_scatter",
            "",
            "reduced after all of backward",
            "fully_shard(model.tok)",
        ),
        ("FSDP.unshard", "all_gather", "", "gathered before the first block", "fully_shard(model.tok)"),
        ("FSDP1.unshard", "all_gather", "", "groups of their own", "FullyShardedDataParallel(model.tok)"),
        ("FSDP.post_backward", "reduce_scatter", "blocks.1", "sharded each for itself already", "last_micro"),
        ("FSDP1.post_backward", "reduce_scatter", "blocks.1", "already", "model.no_sync()"),
        (
            "FSDP.unshard",
            "all_gather",
            "blocks.1",
            "while this one computes",
            "set_modules_to_forward_prefetch",
        ),
    ],
)
@pytest.mark.parametrize("blocks", [True, False])
def test_a_model_whose_blocks_are_sharded_is_not_asked_to_shard_them(
    cause: str, op: str, module: str, says: str, code: str, blocks: bool
) -> None:
    fsdp = cause.partition(".")[0]
    rows = on_ranks((0, 1), op=op, phase="forward", caused_by_op=cause, module=module,
                    parameter="tok.weight, ... (5 parameters)")  # fmt: skip
    hidden = on_ranks((0, 1), seq=9, op="all_gather", phase="forward", caused_by_op=f"{fsdp}.unshard",
                      module="layers.0" if blocks else "", exposed_ns=0)  # fmt: skip
    findings = run(ledger([*rows, *hidden])).findings
    (finding,) = (each for each in findings if each.where.module == module)
    assert finding.remedy is not None
    of_blocks = blocks or module != ""
    assert (says in finding.remedy.text) == of_blocks
    assert (code in (finding.remedy.code or "")) == of_blocks


def test_many_small_places_have_the_advice_for_the_one_that_costs_most() -> None:
    rows = [
        *on_ranks((0, 1), op="all_gather", phase="forward", caused_by_op="FSDP.unshard", module="blocks.0",
                  exposed_ns=9 * MS // 10, duration_ns=MS),
        *on_ranks((0, 1), seq=9, op="broadcast", phase="forward", caused_by_op="broadcast",
                  exposed_ns=MS // 2, duration_ns=MS),
    ]  # fmt: skip
    (finding,) = (each for each in run(ledger(rows)).findings if "places" in each.title)
    assert finding.remedy is not None
    assert "forward_prefetch" in (finding.remedy.code or "")
