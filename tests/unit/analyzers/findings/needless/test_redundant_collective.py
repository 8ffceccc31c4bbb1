"""The same bytes sent twice: on programs that have the fault and on sound twins."""

from __future__ import annotations

import pytest

from shardtoll.ledger import Group
from tests.unit.analyzers.findings.faulty_rows import evidence, found, twice
from tests.unit.analyzers.ledgers import MS, collective, on_ranks, run_of, step


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
