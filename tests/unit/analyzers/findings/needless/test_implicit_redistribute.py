"""DTensor redistributes where nobody asked: on programs that have the fault and on sound twins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.analyzers.findings.faulty_rows import IMPLICIT, evidence, found
from tests.unit.analyzers.ledgers import MS, collective, on_ranks, step


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
