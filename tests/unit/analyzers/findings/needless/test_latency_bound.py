"""Many small messages: on programs that have the fault and on sound twins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.analyzers.fabrics import MEASURED, ROUND
from tests.unit.analyzers.findings.faulty_rows import found, small
from tests.unit.analyzers.ledgers import MS, US, collective, compute, run_of, step


class TestLatencyBound:
    def test_many_small_messages_in_a_row(self):
        (finding,) = found("latency-bound", small(40))
        assert (finding.count, finding.bytes) == (40, 40 * 256)
        assert finding.toll_ns == 20 * MS
        one_floor = 80_000 + -(-40 * 256 // 3)
        assert finding.saving_ns == pytest.approx(20 * MS - one_floor, abs=80)
        assert finding.saving_ns <= finding.toll_ns
        assert finding.where.phase == "optimizer"
        assert "one message with all bytes" in finding.remedy.counterfactual
        assert "fused or foreach" in finding.remedy.text

    def test_gradients_that_a_loop_averages_one_by_one_are_not_taken_for_norms(self):
        before = [compute(rank=rank, phase="backward", start_ns=-1) for rank in (0, 1)]
        (finding,) = found("latency-bound", small(40, phase="other", reduce_op="AVG"), computes=before)
        assert finding.where.phase == "optimizer"
        assert "clip_grad_norm_" not in finding.remedy.code
        assert "dist.all_reduce(flat, op=dist.ReduceOp.AVG)" in finding.remedy.code
        (finding,) = found("latency-bound", small(40, phase="other", message_bytes=4), computes=before)
        assert "clip_grad_norm_" in finding.remedy.code

    def test_few_messages_are_left_alone(self):
        assert len(found("latency-bound", small(32))) == 1
        assert found("latency-bound", small(31)) == []

    def test_a_small_share_of_the_step_is_left_alone(self):
        long = [
            step(rank=rank, duration_ns=3000 * MS, compute_ns=3000 * MS, exposed_comm_ns=0, idle_ns=0)
            for rank in (0, 1)
        ]
        assert found("latency-bound", small(40), steps=long) == []

    def test_large_messages_are_not_latency_bound(self):
        large = {"message_bytes": 1 << 22, "duration_ns": 2 * MS, "exposed_ns": 2 * MS}
        assert found("latency-bound", small(40, apart_ns=2 * MS, **large)) == []

    def test_messages_with_a_matmul_between_depend_on_it(self):
        # Tensor parallelism: an all_reduce after each block. They cannot be one.
        between = [
            compute(rank=rank, index=i, start_ns=i * MS + 600 * US) for rank in (0, 1) for i in range(40)
        ]
        assert found("latency-bound", small(40, phase="forward"), computes=between) == []
        before = [compute(rank=rank, start_ns=-1) for rank in (0, 1)]
        assert len(found("latency-bound", small(40, phase="forward"), computes=before)) == 1

    def test_where_no_operator_is_on_record_dependence_is_not_known(self):
        assert found("latency-bound", small(40, phase="backward")) == []

    def test_messages_of_different_kinds_are_not_one_row(self):
        assert len(found("latency-bound", small(40))) == 1
        mixed = [replace(row, dtype="bfloat16") if row.seq % 2 else row for row in small(40)]
        assert found("latency-bound", mixed) == []

    def test_waiting_for_a_late_rank_is_not_spared(self):
        # Rank 1 comes 0.4 ms late each time: of rank 0's 0.5 ms only 0.1 ms is transfer.
        rows = [
            *small(40, ranks=(0, 1))[:40],
            *(
                collective(
                    rank=1, seq=seq, message_bytes=256, phase="optimizer", issue_ns=seq * MS,
                    start_ns=seq * MS + 400 * US, duration_ns=100 * US, exposed_ns=100 * US,
                )
                for seq in range(40)
            ),
        ]  # fmt: skip
        (finding,) = found("latency-bound", rows)
        assert finding.toll_ns == 20 * MS
        assert finding.saving_ns < 4 * MS

    def test_nothing_is_said_where_the_fabric_is_unknown(self):
        assert found("latency-bound", small(40), run=run_of(device="Tesla V100", backend="nccl")) == []

    def test_tiny_messages_are_latency_on_a_fabric_that_is_not_known(self):
        v100 = run_of(device="Tesla V100", backend="nccl")
        (finding,) = found("latency-bound", small(40, ranks=(0, 1), message_bytes=4), run=v100)
        assert (finding.toll_ns, finding.saving_ns) == (20 * MS, 19_500_000)
        assert finding.confidence == "likely"
        assert {item.label: item.value for item in finding.evidence}[
            "the fastest tenth of such messages here takes"
        ] == 500 * US
        assert found("latency-bound", small(40, ranks=(0, 1), message_bytes=4096), run=v100) == []

    def test_tiny_messages_are_latency_where_the_job_refutes_the_floor(self):
        # The floor of 256 bytes is 80 us; they take 20.
        rows = small(200, ranks=(0, 1), message_bytes=4, duration_ns=20 * US, exposed_ns=20 * US)
        (finding,) = found("latency-bound", rows)
        assert (finding.count, finding.toll_ns, finding.confidence) == (200, 4 * MS, "likely")
        assert finding.saving_ns == pytest.approx(4 * MS - 20 * US, abs=400)

    def test_nothing_is_said_where_times_are_unknown(self):
        rows = small(40, exposed_ns=None, start_ns=None, duration_ns=None)
        assert found("latency-bound", rows) == []

    def test_the_confidence_follows_the_fabric(self):
        slow = small(40)
        assert found("latency-bound", slow, ROUND)[0].confidence == "likely"
        assert found("latency-bound", slow, MEASURED)[0].confidence == "certain"
