"""Communication that nothing hides: on programs that have the fault and on sound twins."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.roofline import load_fabric
from tests.unit.analyzers.fabrics import floor_ns
from tests.unit.analyzers.findings.faulty_rows import IMPLICIT, PAIR, found, small, twice
from tests.unit.analyzers.ledgers import MS, US, collective, on_ranks, run_of, step


class TestExposedCommunication:
    def test_one_finding_a_place_with_its_floor(self):
        rows = [
            *on_ranks((0, 1), seq=1, source="a.py:1 (f)", exposed_ns=20 * MS, duration_ns=20 * MS),
            *on_ranks((0, 1), seq=2, source="a.py:2 (f)", exposed_ns=3 * MS, duration_ns=3 * MS),
        ]
        first, second = found("exposed-communication", rows)
        assert (first.toll_ns, second.toll_ns) == (20 * MS, 3 * MS)
        assert first.severity == "info"
        assert first.floor_ns == floor_ns(load_fabric("loopback-gloo"), "all_reduce", 1 << 20, PAIR)
        assert first.where.source == "a.py:1 (f)"
        assert "(20 %)" in first.title
        assert "full overlap" in first.remedy.counterfactual

    def test_hidden_communication_is_no_finding(self):
        assert found("exposed-communication", on_ranks((0, 1), exposed_ns=0)) == []

    def test_on_accelerators_a_large_share_is_a_warning(self):
        gpu = run_of(device="NVIDIA H100 80GB HBM3", backend="nccl")
        large = on_ranks((0, 1), exposed_ns=20 * MS, duration_ns=20 * MS)
        (finding,) = found("exposed-communication", large, run=gpu)
        assert finding.severity == "warning"
        (finding,) = found("exposed-communication", on_ranks((0, 1), exposed_ns=5 * MS), run=gpu)
        assert finding.severity == "info"

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({}, True),
            ({"caused_by_op": "DTensor.full_tensor"}, True),
            ({"caused_by_op": "FSDP.unshard"}, False),
            ({"phase": "forward"}, False),
            ({"parameter": "up.weight"}, False),  # an optimizer's shards, put together after its step
            ({"op": "all_reduce", "caused_by_op": "all_reduce"}, False),  # one number, as it should be
        ],
    )
    def test_what_is_gathered_for_logging_is_told_however_small(self, change, told):
        gather = {"op": "all_gather", "caused_by_op": "all_gather", "phase": "other", "exposed_ns": 10 * US}
        assert len(found("exposed-communication", on_ranks((0, 1), **(gather | change)))) == told

    def test_what_other_findings_bill_is_left_out(self):
        rows = [*on_ranks((0, 1), seq=100, **(IMPLICIT | {"exposed_ns": 9 * MS})), *twice()]
        (finding,) = found("exposed-communication", rows)
        # Only the first of the two equal transfers is left.
        assert (finding.count, finding.toll_ns) == (1, 2 * MS)
        assert found("exposed-communication", small(40)) == []

    def test_each_instant_is_billed_once(self):
        rows = [row for seq in range(30) for row in on_ranks((0, 1), seq=seq, source=f"a.py:{seq % 7} (f)")]
        findings = found("exposed-communication", rows)
        assert sum(f.toll_ns for f in findings) == 30 * 2 * MS
        assert sum(f.count for f in findings) == 30

    def test_the_layers_of_a_model_are_one_place(self):
        rows = [
            row
            for seq in range(4)
            for row in on_ranks((0, 1), seq=seq, module=f"blocks.{seq}.mlp2", caused_by_op="FSDP.unshard")
        ]
        (finding,) = found("exposed-communication", [*rows, *on_ranks((0, 1), seq=9, exposed_ns=0)])
        assert (finding.where.module, finding.count) == ("blocks.*.mlp2", 4)
        (finding,) = found("exposed-communication", rows[:2])
        assert finding.where.module == "blocks.0.mlp2"
        assert "prefetch" in finding.remedy.code

    def test_small_places_are_added_up(self):
        rows = [
            row
            for seq in range(10)
            for row in on_ranks((0, 1), seq=seq, source=f"a.py:{seq} (f)", exposed_ns=MS // 2)
        ]
        (rest,) = found("exposed-communication", rows)
        assert rest.toll_ns == 5 * MS
        assert "10 places" in rest.title

    def test_waiting_is_not_hidden_by_overlap(self):
        rows = [
            collective(rank=0, start_ns=0, duration_ns=10 * MS, exposed_ns=10 * MS),
            collective(rank=1, start_ns=8 * MS, duration_ns=2 * MS, exposed_ns=2 * MS),
        ]
        (finding,) = found("exposed-communication", rows)
        (waiting,) = found("straggler", rows)
        assert (finding.toll_ns, finding.saving_ns) == (2 * MS, 2 * MS)
        assert waiting.toll_ns == 8 * MS, "each nanosecond is billed once"
        assert {e.label: e.value for e in finding.evidence}[
            "waiting on top, billed as straggler or pipeline-bubble"
        ] == 8 * MS

    def test_overlap_hides_no_more_than_there_is_compute(self):
        steps = [step(rank=rank, compute_ns=MS, exposed_comm_ns=99 * MS, idle_ns=0) for rank in (0, 1)]
        rows = on_ranks((0, 1), duration_ns=90 * MS, exposed_ns=90 * MS)
        (finding,) = found("exposed-communication", rows, steps=steps)
        assert finding.saving_ns == MS

    def test_unknown_times_are_left_to_incomplete_input(self):
        rows = on_ranks((0, 1), exposed_ns=None)
        assert found("exposed-communication", rows) == []
        assert len(found("incomplete-input", rows)) == 1
