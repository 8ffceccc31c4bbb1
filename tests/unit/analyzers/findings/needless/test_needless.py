"""Needless collectives on ledgers that have the fault, and on sound twins that differ in one column."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from shardtoll.analyzers.findings.needless import latency_bound
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

KIB = 1 << 10


def found(rows, kind="redundant-collective", **given):
    return [f for f in running(kind)(ledger(rows, **given)).findings if f.kind == kind]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


def on_both(**given):
    """One collective of 4 KiB on ranks 0 and 1; a pair is what each rank has of a column."""
    for rank in (0, 1):
        own = {name: value[rank] if isinstance(value, tuple) else value for name, value in given.items()}
        yield collective(rank=rank, **({"message_bytes": 4 * KIB, "phase": "forward"} | own))


GATHER = {
    "op": "all_gather",
    "used_bytes": 2 * KIB,
    "used_by": "aten.slice.Tensor",
    "read_dimension": 0,
    "input_hash": (1, 2),
    "read_hash": (1, 2),
    "source": "t.py:3 (f)",
}


CUT = {
    "op": "all_gather",
    "input_hash": (1, 2),
    "output_hash": 7,
    "cut_from_hash": 7,
    "cut_by_placement": True,
    "used_bytes": 4 * KIB,
}


EQUAL = {
    "op": "all_reduce",
    "input_hash": 5,
    "input_content": 9,
    "reduce_op": "SUM",
    "seq": 2,
    "issue_ns": 2,
}

MADE_EQUAL = {
    "op": "all_reduce",
    "input_hash": (1, 2),
    "output_hash": 5,
    "output_content": 9,
    "reduce_op": "SUM",
    "seq": 1,
    "issue_ns": 1,
}


class TestPartlyUsed:
    def test_gather_then_cut(self):
        (finding,) = found(on_both(**GATHER))
        assert (finding.bytes, finding.toll_ns, finding.saving_ns) == (4 * KIB, 2 * MS, 2 * MS)
        assert evidence(finding)["read of one result"] == 2 * KIB
        assert evidence(finding)["first taken apart or read by"] == "aten.slice.Tensor"
        assert "gathered, then cut again" in finding.title
        assert finding.confidence == "likely"
        assert finding.where.source == "t.py:3 (f)"

    def test_an_all_reduce_of_which_a_share_is_used_saves_half(self):
        (finding,) = found(on_both(**(GATHER | {"op": "all_reduce"})))
        assert (finding.toll_ns, finding.saving_ns) == (2 * MS, MS)
        assert "dist.reduce_scatter(part, parts" in finding.remedy.code

    def test_from_local_is_told_of_its_gradient(self):
        cause = {"op": "all_reduce", "phase": "backward", "caused_by_op": "DTensor.from_local"}
        (finding,) = found(on_both(**(GATHER | cause)))
        assert "grad_placements=[Partial()]" in finding.remedy.code
        assert "(part, mesh, [Shard(0)]).redistribute(" in finding.remedy.code, "for torch without the above"
        assert finding.where.op == "DTensor.from_local"

    @pytest.mark.parametrize(
        "change",
        [
            {"used_bytes": 4 * KIB},
            {"used_bytes": 2 * KIB + 4},
            {"used_bytes": KIB},
            {"read_dimension": None},
            {"read_dimension": (0, 1)},
            {"read_dimension": (0, None)},
            {"read_hash": None},
            {"read_hash": (1, 3)},
            {"used_bytes": (2 * KIB, 4 * KIB)},
            {"used_bytes": None},
            {"used_bytes": 0},
            {"used_bytes": (2 * KIB, 0)},
            {"message_bytes": 128, "used_bytes": 64},
            {"caused_by_op": "FSDP.unshard"},
            {"op": "broadcast"},
        ],
        ids=str,
    )
    def test_sound_twins(self, change):
        assert found(on_both(**(GATHER | change))) == []


class TestInversePairs:
    def test_cut_and_gathered_again(self):
        (finding,) = found(on_both(**CUT))
        assert "had sliced just before" in finding.title
        assert finding.saving_ns == finding.toll_ns == 2 * MS
        assert "this one" in evidence(finding)

    @pytest.mark.parametrize(
        "change",
        [
            {"cut_from_hash": 8},
            {"cut_from_hash": (7, 8)},
            {"output_hash": None},
            {"cut_from_hash": None},
            {"cut_by_placement": None},
            {"cut_by_placement": (True, False)},
            {"message_bytes": 128, "used_bytes": None},
        ],
        ids=str,
    )
    def test_sound_twins(self, change):
        assert found(on_both(**(CUT | change))) == []

    def test_an_earlier_result_gathered_from_parts(self):
        first = MADE_EQUAL | {"input_hash": (3, 4), "output_hash": 7}
        again = CUT | {"seq": 2, "issue_ns": 2, "input_hash": (5, 6), "cut_by_placement": None}
        again["cut_from_content"] = 9
        (finding,) = found([*on_both(**first), *on_both(**again)])
        assert "the all_reduce before had given" in finding.title
        assert evidence(finding)["pairs with"].startswith("all_reduce, forward, seq 1")
        assert finding.count == 1
        for change in ({"cut_from_content": 8}, {"cut_from_content": None}, {"cut_from_hash": 8}):
            assert found([*on_both(**first), *on_both(**(again | change))]) == [], change

    def test_there_and_back(self):
        there = {"op": "all_to_all", "seq": 1, "issue_ns": 1, "input_hash": (1, 2), "output_hash": (3, 4)}
        there["output_content"] = 5
        back = {"op": "all_to_all", "seq": 2, "issue_ns": 2, "input_hash": (3, 4), "output_hash": (1, 2)}
        back["input_content"] = 5
        (finding,) = found([*on_both(**there), *on_both(**back)])
        assert "gave back" in finding.title
        assert evidence(finding)["pairs with"].startswith("all_to_all, forward, seq 1")
        for worked_on in ({"input_hash": (8, 9)}, {"input_content": 6}, {"input_content": None}):
            assert found([*on_both(**there), *on_both(**(back | worked_on))]) == []

    def test_scattered_and_gathered_is_a_choice(self):
        reader = "_c10d_functional.all_gather_into_tensor.default"
        scatter = {
            "op": "reduce_scatter",
            "seq": 1,
            "issue_ns": 1,
            "input_hash": (1, 2),
            "output_hash": (3, 4),
        }
        gather = {"op": "all_gather", "seq": 2, "issue_ns": 2, "input_hash": (3, 4)}
        (finding,) = found([*on_both(**scatter, used_by=reader), *on_both(**gather)])
        assert (finding.severity, finding.toll_ns, finding.saving_ns) == ("info", None, None)
        for change in ({"used_by": "aten.mul.Tensor"}, {"used_by": reader, "output_hash": (5, 6)}):
            assert found([*on_both(**(scatter | change)), *on_both(**gather)]) == []


class TestEqualInputs:
    def test_equal_values_reduced(self):
        (finding,) = found([*on_both(**MADE_EQUAL), *on_both(**EQUAL)])
        assert "had made equal on all ranks, and a sum multiplies them by 2" in finding.title
        assert finding.saving_ns == finding.toll_ns
        assert finding.confidence == "certain"
        assert finding.remedy.code.startswith("x = x * 2")
        (finding,) = found([*on_both(**MADE_EQUAL), *on_both(**(EQUAL | {"reduce_op": "AVG"}))])
        assert "multiplies" not in finding.title

    def test_equal_values_alone_prove_nothing(self):
        assert found(on_both(**EQUAL)) == []
        assert found([*on_both(**(MADE_EQUAL | {"output_content": 8})), *on_both(**EQUAL)]) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"input_hash": (5, 6)},
            {"input_hash": None},
            {"input_hash": (5, None)},
            {"input_content": None},
            {"message_bytes": 4},
            {"caused_by_op": "DistributedDataParallel.reducer"},
            {"op": "all_gather"},
            {"reduce_op": "PRODUCT"},
            {"reduce_op": "BXOR"},
            {"reduce_op": "PREMUL_SUM"},
        ],
        ids=str,
    )
    def test_sound_twins(self, change):
        assert found([*on_both(**MADE_EQUAL), *on_both(**(EQUAL | change))]) == []

    @pytest.mark.parametrize(
        ("ops", "code"),
        [
            (("MAX", "MAX"), "dist.reduce_scatter_tensor(part, x, op=dist.ReduceOp.MAX)"),
            (("AVG", "SUM"), "dist.reduce_scatter_tensor(part, x, op=dist.ReduceOp.SUM)"),
            (("MAX", "SUM"), "part = x.chunk(2)[rank] * 2 "),
            (("SUM", "MAX"), "part = x.chunk(2)[rank] "),
        ],
        ids=str,
    )
    def test_a_scatter_of_what_another_kind_has_reduced_keeps_a_part(self, ops, code):
        first = MADE_EQUAL | {"reduce_op": ops[0], "used_by": "c10d._reduce_scatter_base_.default"}
        again = EQUAL | {"op": "reduce_scatter", "reduce_op": ops[1]}
        (finding,) = found([*on_both(**first), *on_both(**again)])
        assert finding.remedy.code.startswith(code)

    def test_a_gradient_reduced_twice(self):
        gradient = {"op": "all_reduce", "parameter": "up.weight", "reduce_op": "SUM", "phase": "other"}
        first = gradient | {"seq": 1, "issue_ns": 1, "input_hash": (1, 2), "output_hash": 5}
        first["output_content"] = 9
        again = gradient | {"seq": 2, "issue_ns": 2, "input_hash": 5, "input_content": 9}
        (finding,) = found([*on_both(**first), *on_both(**again)])
        assert finding.confidence == "certain"
        assert finding.count == 1
        assert evidence(finding)["pairs with"].startswith("all_reduce, other, seq 1")
        assert evidence(finding)["this one"].startswith("all_reduce, other, seq 2")

    def test_what_a_reduce_scatter_reduces_again_need_not_have_been_reduced(self):
        cause = {"caused_by_op": "DTensor.from_local", "source": "t.py:9 (forward)", "phase": "backward"}
        first = {
            "seq": 1,
            "issue_ns": 1,
            "input_hash": (1, 2),
            "output_hash": 5,
            "output_content": 9,
            "used_by": "c10d._reduce_scatter_base_.default",
            "exposed_ns": 3 * MS,
        } | cause
        again = {"op": "reduce_scatter", "seq": 2, "issue_ns": 2, "input_hash": 5, "phase": "backward"}
        again["input_content"] = 9
        (finding,) = found([*on_both(**first), *on_both(**again)])
        assert (finding.where.op, finding.where.source) == ("DTensor.from_local", "t.py:9 (forward)")
        assert (finding.toll_ns, finding.saving_ns, finding.bytes) == (3 * MS, 3 * MS, 4 * KIB)
        assert "grad_placements=[Partial()]" in finding.remedy.code
        assert "(part, mesh, [Shard(0)]).redistribute(" in finding.remedy.code, "for torch without the above"
        assert evidence(finding)["pairs with"].startswith("reduce_scatter, backward, seq 2")


def micro_batches(
    count=4,
    steps=2,
    *,
    last_only=False,
    across=False,
    after=11,
    watched_ms=None,
    clears=False,
    block=None,
    **change,
):
    """DDP reduces one bucket a micro-batch; `across`: each micro-batch is a step of the audit.

    It is issued `after` ns from where the micro-batch's forward begins; its backward begins at 10.
    `watched_ms`: the last step is only watched, and each reduction in it takes that long. `clears`: each
    backward begins with cleared gradients. `block`: what else each reduces, as columns.
    """
    rows, computes, at, seq, audited = [], [], 0, 0, 0
    for stepped in range(steps):
        watched = watched_ms is not None and stepped == steps - 1
        for micro in range(count):
            number = audited if across else stepped
            audited += 1
            for rank in () if watched else (0, 1):
                for phase, begin in (("forward", at), ("backward", at + 10)):
                    computes.append(
                        compute(step=number, rank=rank, start_ns=begin, phase=phase, index=len(computes))
                    )
            if not last_only or micro == count - 1:
                seq += 1
                rows += on_both(
                    **{
                        "step": number,
                        "phase": "backward",
                        "seq": seq,
                        "issue_ns": at + after,
                        "start_ns": at + after,
                        "caused_by_op": "DistributedDataParallel.reducer",
                        "parameter": "up.weight",
                        "source": "t.py:5 (train)",
                        "optimizer_steps": stepped,
                        "gradients_begun": audited if clears else stepped,
                    }
                    | ({"exposed_ns": watched_ms * MS} if watched else {})
                    | change
                )
                if block:
                    # A block is reduced before the root, at a line inside the model.
                    seq += 1
                    rows += [replace(row, seq=seq, **block) for row in rows[-2:]]
            at += 100
    numbers = range(audited if across else steps)
    levels = dict.fromkeys(numbers, "survey")
    if watched_ms is not None:
        levels[steps - 1] = "watch"
    marks = [step(number, rank, level=levels[number]) for number in numbers for rank in (0, 1)]
    return found(rows, "sync-every-microbatch", computes=computes, steps=marks, run=run_of(2))


BY_HAND = {
    "caused_by_op": "all_reduce",
    "parameter": None,
    "module": None,
    "phase": "other",
    "implicit": False,
}


class TestSyncEveryMicrobatch:
    def test_all_but_the_last_are_needless(self):
        (finding,) = micro_batches()
        assert (finding.count, finding.bytes) == (3, 3 * 4 * KIB)
        assert finding.toll_ns == finding.saving_ns == 3 * 2 * MS
        assert "3 of 4 are needless" in finding.title
        assert "model.no_sync()" in finding.remedy.code
        assert evidence(finding)["needless in all steps and ranks"] == 2 * 3 * 2
        assert finding.confidence == "likely", "gradients may have been zeroed in between"
        assert "if the gradients add up" in finding.title

    def test_time_is_that_of_watched_steps_where_there_are_some(self):
        """It is held against the length of those."""
        (surveyed,) = micro_batches()
        (finding,) = micro_batches(watched_ms=1)
        assert surveyed.toll_ns == 3 * 2 * MS
        assert finding.toll_ns == finding.saving_ns == 3 * 1 * MS
        assert finding.bytes == surveyed.bytes

    @pytest.mark.parametrize("root", ["train.py:19 (step)", None])
    def test_it_stands_at_the_line_of_the_outermost_module(self, root):
        """FSDP reduces blocks at lines of the model, and its root where the step calls the model."""
        block = {"module": "blocks.0", "parameter": "blocks.0.up", "source": "model.py:7 (forward)"}
        (finding,) = micro_batches(
            caused_by_op="FSDP.post_backward", op="reduce_scatter", module="", source=root, block=block
        )
        assert finding.where.source == (root or "model.py:7 (forward)")
        assert finding.count == 6

    def test_micro_batches_that_are_steps_of_the_audit(self):
        (finding,) = micro_batches(across=True)
        assert finding.bytes == 3 * 4 * KIB // 4, "a mean over the audit's steps, one in four of them whole"
        assert "3 of 4" in finding.title

    @pytest.mark.parametrize(
        "change",
        [
            {"last_only": True},
            {"count": 1},
            {"parameter": None},
            {"op": "broadcast"},
            {"phase": "optimizer"},
            {"caused_by_op": "DeepSpeed.ZeRO-3.reduce"},
        ],
        ids=str,
    )
    def test_sound_twins(self, change):
        assert micro_batches(**change) == []

    def test_gradients_that_are_cleared_in_between_are_each_needed(self):
        # As in sharpness-aware steps, for several tasks, or after a step that a scaler skipped.
        assert micro_batches(clears=True) == []
        assert micro_batches(clears=True, across=True) == []
        assert micro_batches(gradients_begun=None) != [], "not on record"

    def test_values_of_parameters_are_no_gradients(self):
        assert micro_batches(of_values=True) == []

    def test_the_optimizer_tells_steps_apart(self):
        # Every micro-batch is followed by an optimizer step: nothing is accumulated.
        assert micro_batches(count=1, steps=4) == []
        assert micro_batches(count=1, steps=4, across=True) == []

    def test_an_optimizers_closure_needs_each_gradient(self):
        assert micro_batches(optimizer_steps=None) != [], "no optimizer seen: told by the step"
        rows = micro_batches(steps=1, optimizer_steps=(1, None))
        assert all(finding.ranks == (0,) for finding in rows), "rank 1 is inside a closure"

    def test_no_optimizer_seen_is_judged_within_a_step(self):
        (finding,) = micro_batches(optimizer_steps=0)
        assert finding.confidence == "likely"
        assert micro_batches(count=4, across=True, optimizer_steps=0) == []

    def test_by_hand_of_no_known_parameter(self):
        # As after torch.autograd.grad, or all gradients packed into one tensor.
        (finding,) = micro_batches(**BY_HAND)
        assert (finding.bytes, finding.confidence) == (3 * 4 * KIB, "likely")
        assert finding.where.source == "t.py:5 (train)"
        assert "dist.all_reduce(p.grad)" in finding.remedy.code

    @pytest.mark.parametrize(
        "change",
        [
            {"after": 5},  # before the first backward: activations, or statistics of the batch
            {"message_bytes": 128},  # smaller than any weight: a loss
            {"module": "blocks.0", "phase": "backward"},  # a layer's own
            {"optimizer_steps": 0},  # no optimizer tells where its step ends
            {"implicit": True},
            {"last_only": True},
        ],
        ids=str,
    )
    def test_what_is_no_gradient_may_be_reduced_each_time(self, change):
        assert micro_batches(**(BY_HAND | change)) == []

    def test_beside_gradients_with_names_others_are_none(self):
        # A confusion matrix is as large as a weight; the second rank has the wrapper's own rows.
        parameter = (None, "up.weight")
        findings = micro_batches(**(BY_HAND | {"parameter": parameter}))
        assert [finding.ranks for finding in findings] == [(1,)]

    def test_several_reductions_in_one_backward_are_one(self):
        # As PowerSGD's two factors, or two models' buckets in one step.
        rows = [
            row
            for seq in (1, 2)
            for row in on_both(
                seq=seq,
                phase="backward",
                issue_ns=20 + seq,
                parameter="up.weight",
                caused_by_op="DistributedDataParallel.comm_hook",
                optimizer_steps=0,
            )
        ]
        computes = [
            compute(rank=rank, start_ns=begin, phase=phase, index=index)
            for rank in (0, 1)
            for index, (phase, begin) in enumerate((("forward", 0), ("backward", 10)))
        ]
        assert found(rows, "sync-every-microbatch", computes=computes) == []

    @pytest.mark.parametrize(
        ("cause", "code"),
        [
            ("FSDP.post_backward", "set_requires_gradient_sync(is_last)"),
            ("FSDP1.post_backward", "model.no_sync()"),
            ("DeepSpeed.ZeRO-1.reduce", "gradient_accumulation_steps"),
            ("all_reduce", "dist.all_reduce(p.grad)"),
        ],
    )
    def test_each_wrapper_has_its_own_call(self, cause, code):
        (finding,) = micro_batches(caused_by_op=cause)
        assert code in finding.remedy.code
        assert finding.bytes == 3 * 4 * KIB


def test_small_gathers_of_whole_tensors_are_advised_to_reduce_local_parts():
    rows = pd.DataFrame({"caused_by_op": ["DTensor.full_tensor", "DTensor.full_tensor"]})
    assert latency_bound._whole_tensors(rows)
    assert not latency_bound._whole_tensors(pd.DataFrame({"caused_by_op": ["DTensor.full_tensor", None]}))
    advice = latency_bound._remedy("all_gather", "optimizer", 51, "dp", "train.py:35 (clip)", whole=True)
    assert advice.text.startswith("Reduce norms of each rank's own part")
    assert advice.code is not None
    assert 'mesh.get_group("dp")' in advice.code
