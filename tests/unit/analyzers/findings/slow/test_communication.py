"""Each analysis of communication on a program that has the fault and on its sound twin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.findings.slow.transfers import limit
from shardtoll.analyzers.roofline import Placement, collective_cost, load_fabric
from shardtoll.ledger import Group
from tests.unit.analyzers.fabrics import MEASURED, ROUND, floor_ns, predicted_ns, timed
from tests.unit.analyzers.ledgers import MS, US, collective, compute, ledger, on_ranks, run_of, step
from tests.unit.analyzers.of_kinds import running


def found(kind, rows, fabric=None, **given):
    return [f for f in running(kind)(ledger(rows, **given), fabric).findings if f.kind == kind]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


PAIR = Placement(2, 1, 2)

IMPLICIT = {
    "implicit": True,
    "op": "all_gather",
    "phase": "forward",
    "module": "blocks.0.scale",
    "caused_by_op": "aten.mm.default",
    "placements_from": "(Shard(dim=0),)",
    "placements_to": "(Replicate(),)",
    "mesh_dim": "dp",
    "source": "train.py:12 (forward)",
    "message_bytes": 4096,
}


class TestImplicitRedistribute:
    def test_says_operator_placements_bytes_and_line(self):
        rows = [
            *on_ranks((0, 1), seq=1, **IMPLICIT),
            *on_ranks((0, 1), seq=2, **(IMPLICIT | {"message_bytes": 8192})),
        ]
        (finding,) = found("implicit-redistribute", rows)
        assert finding.title == (
            "aten.mm.default made DTensor redistribute (Shard(dim=0),) -> (Replicate(),): "
            "2 all_gathers per step on mesh dim dp, 12.3 kB in blocks.0.scale at train.py:12 (forward)"
        )
        assert (finding.count, finding.bytes, finding.ranks) == (2, 4096 + 8192, (0, 1))
        assert (finding.toll_ns, finding.saving_ns) == (4 * MS, 4 * MS)
        assert finding.where.op == "aten.mm.default"
        assert (finding.where.phase, finding.where.mesh_dim) == ("forward", "dp")
        assert evidence(finding)["smallest message"] == 4096
        assert evidence(finding)["wire bytes per step and rank"] == (4096 + 8192) // 2
        assert "Shard the other operand" in finding.remedy.text
        assert "parallelize_module" in finding.remedy.code
        assert "without this redistribute" in finding.remedy.counterfactual

    def test_explicit_and_unknown_are_no_finding(self):
        for implicit in (False, None):
            rows = on_ranks((0, 1), **(IMPLICIT | {"implicit": implicit}))
            assert found("implicit-redistribute", rows) == []

    @pytest.mark.parametrize(
        ("change", "remedy"),
        [
            ({"placements_from": "(Partial(sum),)", "phase": "optimizer"}, "after backward and before clip"),
            ({"placements_from": "(Partial(sum),)"}, "reduce-scatter sends half"),
            ({"caused_by_op": "aten.cat.default"}, "one placement: (Shard(dim=0),), so that"),
            ({"placements_to": "(Shard(dim=1),)"}, "Make the tensor as (Shard(dim=1),)"),
            ({"placements_from": None}, "redistribute once, explicitly"),
            ({"placements_from": "(Shard(dim=0), Replicate())"}, "redistribute once, explicitly"),
        ],
    )
    def test_the_remedy_follows_the_placements(self, change, remedy):
        (finding,) = found("implicit-redistribute", on_ranks((0, 1), **(IMPLICIT | change)))
        assert remedy in finding.remedy.text

    @pytest.mark.parametrize(
        ("change", "severity"),
        [
            ({"caused_by_op": "aten._softmax_backward_data.default", "phase": "backward"}, "info"),
            ({"caused_by_op": "aten.mm.default"}, "warning"),
            ({"caused_by_op": "aten.add_.Tensor", "phase": "optimizer"}, "warning"),
            ({"caused_by_op": "aten.cat.default", "placements_from": "(Shard(dim=0),)"}, "warning"),
        ],
    )
    def test_a_reduction_that_the_operator_needs_is_information(self, change, severity):
        partial = IMPLICIT | {"placements_from": "(Partial(sum),)", "op": "all_reduce"}
        (finding,) = found("implicit-redistribute", on_ranks((0, 1), **(partial | change)))
        assert finding.severity == severity

    def test_each_cause_is_a_finding_of_its_own(self):
        changes = [{}, {"module": "b"}, {"source": "x.py:1 (f)"}, {"phase": "backward"}, {"mesh_dim": "tp"}]
        rows = [
            row
            for seq, change in enumerate(changes)
            for row in on_ranks((0, 1), seq=seq, **(IMPLICIT | change))
        ]
        assert len(found("implicit-redistribute", rows)) == len(changes)

    def test_without_times_the_toll_and_the_saving_are_unknown(self):
        rows = on_ranks((0, 1), **(IMPLICIT | {"exposed_ns": None, "start_ns": None, "duration_ns": None}))
        (finding,) = found("implicit-redistribute", rows)
        assert (finding.toll_ns, finding.saving_ns) == (None, None)
        assert finding.remedy.counterfactual is None
        assert evidence(finding)["of them without a known time or size"] == 2

    def test_everything_unknown_is_still_a_finding(self):
        nothing = dict.fromkeys(
            (
                "module",
                "caused_by_op",
                "placements_from",
                "placements_to",
                "mesh_dim",
                "source",
                "message_bytes",
            )
        )
        (finding,) = found("implicit-redistribute", on_ranks((0, 1), **(IMPLICIT | nothing)))
        assert finding.bytes is None
        assert "an unknown size" in finding.title

    def test_parameters_of_one_cause_are_listed(self):
        rows = [
            row
            for seq, name in enumerate(("a.weight", "b.weight"))
            for row in on_ranks((0, 1), seq=seq, **(IMPLICIT | {"parameter": name}))
        ]
        (finding,) = found("implicit-redistribute", rows)
        assert finding.where.parameter is None
        assert evidence(finding)["parameters"] == "a.weight, b.weight"

    def test_layers_are_one_cause_in_the_optimizer_only(self):
        for phase, modules in (("optimizer", ["b.*.n"]), ("forward", ["b.0.n", "b.1.n"])):
            rows = [
                row
                for seq in (0, 1)
                for row in on_ranks((0, 1), seq=seq, **(IMPLICIT | {"module": f"b.{seq}.n", "phase": phase}))
            ]
            findings = found("implicit-redistribute", rows)
            assert [finding.where.module for finding in findings] == modules
        assert (
            evidence(found("implicit-redistribute", [replace(row, phase="optimizer") for row in rows])[0])[
                "modules"
            ]
            == "b.0.n, b.1.n"
        )

    def test_times_are_per_step_on_the_rank_with_the_largest_mean(self):
        rows = [
            collective(rank=0, **(IMPLICIT | {"exposed_ns": 1 * MS})),
            collective(rank=1, **(IMPLICIT | {"exposed_ns": 3 * MS})),
            collective(rank=0, step=1, seq=2, **(IMPLICIT | {"exposed_ns": 5 * MS})),
            collective(rank=1, step=1, seq=2, **(IMPLICIT | {"exposed_ns": 1 * MS})),
        ]
        steps = [step(number, rank) for number in (0, 1) for rank in (0, 1)]
        (finding,) = found("implicit-redistribute", rows, steps=steps)
        assert finding.toll_ns == 3 * MS, "rank 0: (1 + 5) / 2; rank 1 has 2"
        assert finding.count == 1


def twice(**change):
    """The same untouched memory reduced twice on both ranks, each rank with its own fingerprint."""
    return [
        collective(rank=rank, seq=seq, input_hash=100 + rank, input_content=9, issue_ns=seq * MS, **change)
        for rank in (0, 1)
        for seq in (1, 2)
    ]


def repeated(rows, **given):
    return [f for f in found("redundant-collective", rows, **given) if "had sent before" in f.title]


class TestRedundantCollective:
    def test_the_pair_is_the_evidence(self):
        rows = [
            collective(
                rank=rank,
                seq=seq,
                input_hash=-1 - rank,
                input_content=9,
                source=f"train.py:{seq} (f)",
                issue_ns=seq,
            )
            for rank in (0, 1)
            for seq in (1, 2)
        ]
        (finding,) = found("redundant-collective", rows)
        assert (finding.count, finding.bytes, finding.toll_ns) == (1, 1 << 20, 2 * MS)
        assert finding.saving_ns == finding.toll_ns
        assert finding.floor_ns == 0
        assert evidence(finding)["first"] == "backward, seq 1, train.py:1 (f)"
        assert evidence(finding)["again"] == "backward, seq 2, train.py:2 (f)"
        assert evidence(finding)["fingerprint of both inputs"] == "f" * 16
        assert finding.confidence == "likely", "of 262,144 elements a sample was looked at"
        assert "4,096 elements" in evidence(finding)["fingerprints are of"]

    @pytest.mark.parametrize(("elements", "confidence"), [(4096, "certain"), (4097, "likely")])
    def test_a_fingerprint_proves_no_more_than_it_looks_at(self, elements: int, confidence: str):
        (finding,) = found("redundant-collective", twice(message_bytes=4 * elements))
        assert finding.confidence == confidence

    @pytest.mark.parametrize(
        "change",
        [
            {"input_hash": 5},
            {"input_hash": None},
            {"op": "all_gather"},
            {"dtype": "bfloat16"},
            {"message_bytes": 4},
            {"reduce_op": "max"},
            {"parameter": "other.weight"},
            {"phase": "forward"},
            {"step": 1},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_whatever_differs_makes_it_another_transfer(self, change):
        rows = [
            row
            for rank in (0, 1)
            for row in (
                collective(rank=rank, seq=1, input_hash=1, input_content=9),
                collective(rank=rank, seq=2, input_content=9, **({"input_hash": 1} | change)),
            )
        ]
        steps = [step(number, rank) for number in (0, 1) for rank in (0, 1)]
        assert repeated(rows, steps=steps) == []

    def test_another_group_of_the_same_name_is_another_transfer(self):
        groups = (Group("g", (0, 1)), Group("g", (0, 1, 2)))
        rows = [
            *on_ranks((0, 1), group="g", input_hash=1, input_content=9),
            *on_ranks((0, 1, 2), group="g", input_hash=1, input_content=9),
        ]
        assert repeated(rows, groups=groups, run=run_of(3)) == []

    def test_barriers_are_no_repeats(self):
        assert found("redundant-collective", twice(op="barrier")) == []

    def test_equal_bytes_on_one_rank_alone_spare_nothing(self):
        # Rank 1 has an empty shard twice, rank 0 has something new to send.
        rows = [
            collective(rank=rank, seq=seq, input_hash=7 if rank else seq, input_content=9)
            for rank in (0, 1)
            for seq in (1, 2)
        ]
        assert found("redundant-collective", rows) == []

    def test_a_broadcast_is_judged_by_its_root(self):
        rows = [
            collective(
                rank=rank,
                seq=seq,
                op="broadcast",
                root=0,
                input_hash=None if rank else 7,
                input_content=None if rank else 9,
            )
            for rank in (0, 1)
            for seq in (1, 2)
        ]
        (finding,) = found("redundant-collective", rows)
        assert finding.ranks == (0,)

    def test_recompute_and_backward_gather_the_same_parameters(self):
        cause = {"op": "all_gather", "caused_by_op": "FSDP.unshard"}
        rows = [
            collective(rank=rank, seq=seq, input_hash=rank, phase=phase, issue_ns=seq, **cause)
            for rank in (0, 1)
            for seq, phase in ((1, "forward"), (2, "recompute"), (3, "backward"))
        ]
        (finding,) = found("redundant-collective", rows)
        assert finding.count == 1
        assert evidence(finding)["first"].startswith("recompute, seq 2")
        assert evidence(finding)["again"].startswith("backward, seq 3")
        assert "Checkpoint the block first" in finding.remedy.text

    @pytest.mark.parametrize("wrapper", ["FSDP.unshard", "DeepSpeed.ZeRO-3.gather"])
    def test_a_wrapper_gathers_once_a_pass(self, wrapper: str):
        cause = {"op": "all_gather", "caused_by_op": wrapper}
        rows = [
            collective(rank=rank, seq=seq, input_hash=rank, phase=phase, issue_ns=seq, **cause)
            for rank in (0, 1)
            for seq, phase in enumerate(("forward", "backward", "forward", "backward"))
        ]
        assert found("redundant-collective", rows) == []

    @pytest.mark.parametrize(
        ("gathered", "again"),
        [(("blocks.0", "blocks.1", "blocks.0", "blocks.1"), 0), (("blocks.0", "blocks.0", "blocks.1"), 1)],
    )
    def test_forward_passes_without_a_backward_are_told_apart(self, gathered, again):
        # Evaluation on several batches gathers the whole model for each; a block called twice is one pass.
        cause = {"op": "all_gather", "caused_by_op": "FSDP.unshard", "phase": "forward"}
        rows = [
            collective(
                rank=rank,
                seq=seq,
                issue_ns=seq,
                module=module,
                input_hash=10 * int(module[-1]) + rank,
                **cause,
            )
            for rank in (0, 1)
            for seq, module in enumerate(gathered)
        ]
        assert sum(finding.count for finding in found("redundant-collective", rows)) == again

    def test_user_code_that_gathers_in_two_passes_is_one(self):
        rows = [
            collective(
                rank=rank,
                seq=seq,
                input_hash=rank,
                input_content=9,
                phase=phase,
                issue_ns=seq,
                op="all_gather",
            )
            for rank in (0, 1)
            for seq, phase in enumerate(("forward", "backward", "forward"))
        ]
        assert len(found("redundant-collective", rows)) == 1

    def test_three_reductions_of_a_gradient_are_two_repeats(self):
        rows = [
            collective(
                rank=rank, seq=3 * p + n, input_hash=10 * p + rank, phase="optimizer", parameter=f"n{p}"
            )
            for rank in (0, 1)
            for p in range(2)
            for n in range(3)
        ]
        findings = found("redundant-collective", rows)
        assert [(f.count, f.where.parameter) for f in findings] == [(2, "n0"), (2, "n1")]
        assert "once before step()" in findings[0].remedy.text

    def test_unmatched_ranks_are_judged_alone_and_say_so(self):
        rows = [
            collective(seq=None, group="lost", group_size=4, input_hash=1, input_content=9) for _ in range(2)
        ]
        (finding,) = found("redundant-collective", rows)
        assert finding.confidence == "likely"


def small(count, *, ranks=(0, 1), apart_ns=MS, **change):
    """`count` all_reduces of 256 bytes one after another on each rank."""
    return [
        collective(
            **{
                "rank": rank,
                "seq": seq,
                "message_bytes": 256,
                "phase": "optimizer",
                "issue_ns": seq * apart_ns,
                "start_ns": seq * apart_ns,
                "duration_ns": 500 * US,
                "exposed_ns": 500 * US,
                "group_size": len(ranks),
            }
            | change
        )
        for rank in ranks
        for seq in range(count)
    ]


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


def slow(count, factor, message_bytes=1 << 24, **change):
    """`count` all_reduces of 2 ranks that take `factor` times what ROUND predicts."""
    span = int(factor * predicted_ns(ROUND, "all_reduce", message_bytes, PAIR))
    return [
        row
        for seq in range(count)
        for row in on_ranks(
            (0, 1), seq=seq, message_bytes=message_bytes, duration_ns=span, exposed_ns=span, **change
        )
    ]


GPU = {"device": "NVIDIA H100 80GB HBM3", "backend": "nccl"}


TIMED = timed(ROUND, "all_reduce", PAIR, 256, 4096, 1 << 16, 1 << 20, 1 << 24)


class TestBelowRoofline:
    def test_says_the_factor(self):
        (finding,) = found("below-roofline", slow(4, 5.0), TIMED, run=run_of(**GPU))
        assert "takes 5.0 times what is expected on round" in finding.title
        assert evidence(finding)["median transfer over prediction"] == pytest.approx(5.0, abs=0.01)
        assert finding.confidence == "likely"
        expected_ns = evidence(finding)["expected"]
        assert (
            evidence(finding)["floor (one of twenty sound runs is faster)"]
            <= expected_ns
            <= finding.toll_ns / 4 / 5
        )
        assert finding.saving_ns == pytest.approx(finding.toll_ns - 4 * expected_ns, abs=8)
        assert (
            finding.remedy.counterfactual == "the same collectives at their expected times, not their floors"
        )

    def test_one_that_took_no_time_beside_slow_ones_is_no_error(self):
        rows = [*slow(6, 5.0), *on_ranks((0, 1), seq=90, duration_ns=0, exposed_ns=0)]
        (finding,) = found("below-roofline", rows, TIMED, run=run_of(**GPU))
        limit_told = evidence(finding)["limit for this finding"]
        assert (
            limit_told
            == evidence(found("below-roofline", slow(6, 5.0), TIMED, run=run_of(**GPU))[0])[
                "limit for this finding"
            ]
        )

    def test_a_sound_fabric_is_no_finding(self):
        assert found("below-roofline", slow(4, 1.15), TIMED, run=run_of(**GPU)) == []
        beside_compute = [replace(row, exposed_ns=row.duration_ns // 2) for row in slow(4, 1.45)]
        assert found("below-roofline", beside_compute, TIMED, run=run_of(**GPU)) == []

    def test_shipped_figures_need_a_larger_factor(self):
        above = limit(collective_cost(ROUND, "all_reduce", 1 << 24, PAIR), on_cpu=False)
        assert above > 2
        assert found("below-roofline", slow(4, 0.97 * above), ROUND, run=run_of(**GPU)) == []
        (finding,) = found("below-roofline", slow(4, 1.03 * above), ROUND, run=run_of(**GPU))
        assert finding.confidence == "possible"
        assert "calibrate" in finding.remedy.text

    def test_ranks_that_share_cores_need_a_factor_no_time_slice_explains(self):
        assert found("below-roofline", slow(4, 8.0), TIMED) == []
        (finding,) = found("below-roofline", slow(4, 12.0), TIMED)
        assert finding.severity == "warning"

    def test_where_cores_move_data_at_figures_nobody_measured_no_interface_is_blamed(self):
        (finding,) = found("below-roofline", slow(4, 60.0), ROUND)
        assert finding.severity == "info"
        assert "SOCKET_IFNAME" not in (finding.remedy.code or "")
        assert "interface" not in finding.remedy.text
        (of_two,) = found("below-roofline", slow(4, 60.0), ROUND, run=run_of(hosts=("a", "b")))
        assert of_two.severity == "warning"

    def test_a_price_carried_over_from_other_group_sizes_makes_nothing_likely(self):
        of_four = timed(ROUND, "all_reduce", Placement(4, 1, 4), 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", slow(4, 40.0), of_four, run=run_of(**GPU))
        assert finding.confidence == "possible"
        facts = evidence(finding)
        assert facts["prediction by"].startswith("extrapolated from measured groups of 4 ranks")
        assert "floors of groups of 2 ranks are extrapolated" in facts["fabric"]
        assert "`shardtoll calibrate --nproc 2`" in finding.remedy.text
        # Another op, timed in groups of two, says what these links do.
        of_two = timed(ROUND, "all_gather", PAIR, 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", slow(4, 40.0), of_two, run=run_of(**GPU))
        assert finding.confidence == "likely"
        assert evidence(finding)["prediction by"].startswith("other collectives of this group size")
        assert "extrapolated" not in evidence(finding)["fabric"]

    def test_among_cores_an_extrapolated_price_is_no_warning(self):
        of_four = timed(ROUND, "all_reduce", Placement(4, 1, 4), 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", slow(4, 400.0), of_four)
        assert (finding.severity, finding.confidence) == ("info", "possible")
        assert "nobody has measured groups of 2 ranks" in finding.remedy.text
        assert '"--nproc", "2"' in (finding.remedy.code or "")

    def test_a_few_slow_ones_are_an_accident(self):
        assert found("below-roofline", slow(2, 9.0), TIMED, run=run_of(**GPU)) == []
        mixed = slow(5, 1.0) + [
            row
            for seq in (10, 11)
            for row in on_ranks((0, 1), seq=seq, duration_ns=90 * MS, exposed_ns=90 * MS)
        ]
        assert found("below-roofline", mixed, TIMED, run=run_of(**GPU)) == []

    def test_small_messages_are_judged_only_against_measured_floors(self):
        # 256 bytes: floor 146 ns, of it 120 ns latency.
        rows = small(40)
        assert found("below-roofline", rows, ROUND, run=run_of(**GPU)) == []
        assert len(found("below-roofline", rows, TIMED, run=run_of(**GPU))) == 1
        assert found("below-roofline", rows, TIMED) == []

    def test_waiting_is_not_held_against_the_fabric(self):
        rows = [
            row
            for seq in range(4)
            for row in (
                collective(rank=0, seq=seq, start_ns=0, duration_ns=10 * MS, exposed_ns=10 * MS),
                collective(rank=1, seq=seq, start_ns=10 * MS - 110 * US, duration_ns=110 * US),
            )
        ]
        assert found("below-roofline", rows, TIMED, run=run_of(**GPU)) == []

    def test_waiting_is_not_in_the_toll(self):
        rows = [
            replace(
                row, start_ns=0, duration_ns=row.duration_ns + row.start_ns, exposed_ns=MS + row.duration_ns
            )
            if row.rank
            else row
            for row in slow(4, 5.0)
        ]
        (finding,) = found("below-roofline", rows, TIMED, run=run_of(**GPU))
        assert finding.toll_ns == 4 * rows[0].duration_ns
        expected_ns = evidence(finding)["expected"]
        assert (
            evidence(finding)["floor (one of twenty sound runs is faster)"]
            <= expected_ns
            <= finding.toll_ns / 4 / 5
        )
        assert finding.saving_ns == pytest.approx(finding.toll_ns - 4 * expected_ns, abs=8)

    def test_what_ranks_send_unevenly_is_not_judged(self):
        even = [replace(row, op="all_to_all") for row in slow(4, 20.0)]
        assert len(found("below-roofline", even, TIMED, run=run_of(**GPU))) == 1
        uneven = [replace(row, message_bytes=row.message_bytes >> row.rank) for row in even]
        assert found("below-roofline", uneven, TIMED, run=run_of(**GPU)) == []

    def test_a_device_without_a_name_is_no_cpu(self):
        rows = slow(4, 5.0)
        assert len(found("below-roofline", rows, TIMED, run=run_of(device=None, backend="nccl"))) == 1
        assert found("below-roofline", rows, TIMED, run=run_of(device="cpu", backend=None)) == []

    def test_the_fastest_rank_shows_what_the_fabric_did(self):
        # Rank 1 was held up on its way out; rank 0 shows that the data came at 1.1 times the floor.
        rows = [replace(row, duration_ns=row.duration_ns * 9) if row.rank else row for row in slow(4, 1.1)]
        assert found("below-roofline", rows, TIMED, run=run_of(**GPU)) == []

    def test_a_small_gain_is_not_worth_a_finding(self):
        rows = slow(4, 5.0, message_bytes=100_000)
        assert found("below-roofline", rows, TIMED, run=run_of(**GPU)) == []

    def test_unmatched_and_unknown_are_not_judged(self):
        assert found("below-roofline", slow(4, 9.0, start_ns=None), TIMED, run=run_of(**GPU)) == []
        assert found("below-roofline", slow(4, 9.0), run=run_of(device="V100", backend="nccl")) == []
