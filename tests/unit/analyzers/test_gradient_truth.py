"""Drift of replicas, parameters outside of every reduction, doubled reductions and wrong norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardtoll.ledger import Group
from tests.unit.analyzers.ledgers import collective, ledger, on_ranks, step
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import noise, parameter, value

TP = {"placements": "(Replicate())", "mesh_dims": "tp"}
TP_GROUPS = (Group("tp", (0, 1), mesh_dim="tp"),)
TWO_STEPS = [step(number, rank) for number in (0, 1) for rank in (0, 1)]


def found(kind: str, **given: Any):
    return [finding for finding in running(kind)(ledger(**given)).findings if finding.kind == kind]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


def weights(steps, name="router.weight", **given: Any):
    return [
        value("parameter", name, rank, array, step=number, **(TP | given))
        for number, arrays in enumerate(steps)
        for rank, array in enumerate(arrays)
    ]


def dtensors(name="router.weight"):
    return [parameter(name, rank, **TP) for rank in (0, 1)]


# -- drift ---------------------------------------------------------------------------------------------


def test_drift_names_the_step_and_the_size():
    apart = np.float32(0.01) * noise(5)
    rows = weights([[noise(0)] * 2, [noise(0), noise(0) + apart]])
    (one,) = found("replica-drift", values=rows, parameters=dtensors(), groups=TP_GROUPS, steps=TWO_STEPS)
    assert (one.severity, one.where.parameter, one.where.mesh_dim) == ("error", "router.weight", "tp")
    assert evidence(one)["first seen different"] == "after step 1"
    assert evidence(one)["equal"] == "after step 0"
    true = np.linalg.norm(apart) / np.linalg.norm(noise(0))
    assert 0.3 * true < evidence(one)["distance / size, last look"] < 2 * true
    assert "dist.broadcast" in one.remedy.code


def test_replicas_that_move_together_do_not_drift():
    rows = weights([[noise(0)] * 2, [noise(1)] * 2])
    assert not found("replica-drift", values=rows, parameters=dtensors(), groups=TP_GROUPS, steps=TWO_STEPS)


def test_what_the_first_step_makes_equal_does_not_drift():
    rows = weights([[noise(0)] * 2, [noise(1)] * 2])
    began = [value("parameter", "router.weight", r, noise(5 + r), step=None, **TP) for r in (0, 1)]
    given = {"parameters": dtensors(), "groups": TP_GROUPS, "steps": TWO_STEPS}
    assert not found("replica-drift", values=[*began, *rows], **given)
    apart = weights([[noise(0), noise(2)]])
    (one,) = found("replica-drift", values=[*began, *apart], **given)
    assert "from the start" in one.title


def test_rounding_is_no_drift_and_more_than_the_way_allows_is():
    moved = noise(0) + np.float32(1e-3) * noise(1)
    for off, count in ((1e-7, 0), (1e-4, 1)):
        rows = weights([[noise(0)] * 2, [moved, moved + np.float32(off) * noise(2)]])
        drifts = found("replica-drift", values=rows, parameters=dtensors(), groups=TP_GROUPS, steps=TWO_STEPS)
        assert len(drifts) == count, off


def test_drift_refers_to_the_gradient_where_that_is_the_cause():
    rows = [
        *weights([[noise(0), noise(1)]]),
        *(value("gradient", "router.weight", rank, noise(rank + 5), **TP) for rank in (0, 1)),
    ]
    (one,) = found("replica-drift", values=rows, parameters=dtensors(), groups=TP_GROUPS)
    assert "as their gradients do" in one.title


def buffers(wrapper: str):
    rows = [
        value("buffer", "bn.running_mean", rank, noise(rank + number, (8,)), step=number)
        for number in (0, 1)
        for rank in (0, 1)
    ]
    known = {"wrapper": wrapper, "group": "pg", "reduced_by_wrapper": True}
    return {"values": rows, "parameters": [parameter("w", rank, **known) for rank in (0, 1)]}


def test_statistics_of_a_batch_are_a_choice_and_none_where_they_are_broadcast():
    (one,) = found("replica-drift", **buffers("FSDP2"), steps=TWO_STEPS)
    assert (one.severity, one.confidence) == ("info", "possible")
    sent = on_ranks((0, 1), op="broadcast", phase="forward")
    assert not found("replica-drift", **buffers("DDP"), steps=TWO_STEPS, collectives=sent)


# -- parameters outside of reductions -----------------------------------------------------------------


def known_to(wrapper: str, name: str, known: bool):
    return [parameter(name, rank, wrapper=wrapper, group="pg", reduced_by_wrapper=known) for rank in (0, 1)]


def gradients(name: str, *seeds: int):
    return [value("gradient", name, rank, noise(seed)) for rank, seed in enumerate(seeds)]


def test_a_parameter_that_ddp_does_not_know():
    rows = [*gradients("body.weight", 0, 0), *gradients("adapter.weight", 1, 2)]
    parameters = [*known_to("DDP", "body.weight", True), *known_to("DDP", "adapter.weight", False)]
    (one,) = found("unsynced-parameter", values=rows, parameters=parameters)
    # Whether the ranks began equal is not known here: it may have been left to each rank on purpose.
    assert one.confidence == "likely"
    rows += [value("parameter", "adapter.weight", rank, noise(9), step=None) for rank in (0, 1)]
    (one,) = found("unsynced-parameter", values=rows, parameters=parameters)
    assert (one.where.parameter, one.severity, one.confidence) == ("adapter.weight", "error", "certain")
    assert "added after wrapping" in one.title


def test_one_that_ddp_does_not_know_and_something_else_reduces():
    rows = [*gradients("body.weight", 0, 0), *gradients("adapter.weight", 1, 1)]
    parameters = [*known_to("DDP", "body.weight", True), *known_to("DDP", "adapter.weight", False)]
    assert not found("unsynced-parameter", values=rows, parameters=parameters)


def reduced(name: str, **given: Any):
    of_all = {"parameter": name, "phase": "other", "source": "train.py:9 (step)"} | given
    return on_ranks((0, 1), **of_all)


def test_one_left_out_of_the_reductions_by_hand():
    rows = [
        *gradients("a.weight", 0, 0),
        *gradients("b.weight", 1, 2),
        *(
            value("parameter", name, rank, noise(9), step=None)
            for name in ("a.weight", "b.weight")
            for rank in (0, 1)
        ),
    ]
    parameters = [parameter(name, rank) for name in ("a.weight", "b.weight") for rank in (0, 1)]
    (one,) = found("unsynced-parameter", values=rows, parameters=parameters, collectives=reduced("a.weight"))
    assert (one.where.parameter, one.confidence) == ("b.weight", "likely")


def test_parameters_that_never_got_a_gradient():
    rows = gradients("used.weight", 0, 0)
    parameters = [
        *known_to("DDP", "used.weight", True),
        *(parameter("idle.weight", rank, has_grad=False) for rank in (0, 1)),
        *(parameter("frozen.weight", rank, has_grad=False, requires_grad=False) for rank in (0, 1)),
        *(parameter("tied.weight", rank, has_grad=False, tied_to="used.weight") for rank in (0, 1)),
    ]
    (one,) = found("unsynced-parameter", values=rows, parameters=parameters)
    assert (one.severity, evidence(one)["parameters"]) == ("warning", "idle.weight")


def test_an_optimizer_that_steps_without_any_gradient():
    """FSDP2 whose gradient sync was left off."""
    began = [value("parameter", "w", rank, noise(rank), step=None) for rank in (0, 1)]
    parameters = [parameter("w", rank, has_grad=False, wrapper="FSDP2") for rank in (0, 1)]
    (one,) = found("unsynced-parameter", values=began, parameters=parameters)
    assert (one.where.parameter, one.confidence) == ("w", "likely")
    assert "set_requires_gradient_sync" in one.remedy.code


def test_without_an_optimizer_nobody_knows_who_had_a_gradient():
    parameters = [parameter("w", rank, has_grad=None) for rank in (0, 1)]
    assert not found("unsynced-parameter", values=gradients("v", 0, 0), parameters=parameters)


# -- reductions twice ---------------------------------------------------------------------------------


def twice(**second: Any):
    return [
        *reduced("w", seq=1, reduce_op="SUM", input_hash=1, output_hash=2),
        *reduced("w", seq=2, **({"reduce_op": "SUM", "input_hash": 2, "output_hash": 3} | second)),
    ]


def test_a_sum_of_sums_is_too_large_by_the_number_of_ranks():
    (one,) = found("wrong-gradient", collectives=twice())
    assert (one.where.parameter, evidence(one)["factor"], one.confidence) == ("w", 2, "certain")
    assert "2 times too large" in one.title


@pytest.mark.parametrize(
    "second", [{"reduce_op": "AVG"}, {"input_hash": 7}, {"step": None}, {"phase": "forward"}], ids=str
)
def test_other_pairs_are_not(second):
    assert not found("wrong-gradient", collectives=twice(**second))


def test_added_up_again_after_ddp():
    again = reduced("w", reduce_op="SUM", input_hash=2, output_hash=3)
    (one,) = found("wrong-gradient", collectives=again, parameters=known_to("DDP", "w", True))
    assert "DDP had averaged it" in one.title
    divided = [value("gradient", "w", rank, noise(0), hash=2) for rank in (0, 1)]
    assert not found(
        "wrong-gradient", collectives=again, parameters=known_to("DDP", "w", True), values=divided
    )


def test_a_sum_among_means_is_possible():
    means = [row for name in ("a", "b", "c") for row in reduced(name, reduce_op="AVG")]
    one_sum = reduced("w", reduce_op="SUM", input_hash=1, output_hash=2)
    parameters = [parameter(name, rank) for name in "abcw" for rank in (0, 1)]
    (one,) = found("wrong-gradient", collectives=[*means, *one_sum], parameters=parameters)
    assert (one.where.parameter, one.confidence) == ("w", "possible")
    assert not found("wrong-gradient", collectives=one_sum, parameters=parameters)


# -- norms ---------------------------------------------------------------------------------------------


def added_up(sent, got):
    return [
        collective(
            rank=rank,
            message_bytes=4,
            phase="other",
            source="train.py:20 (clip)",
            number_sent=before,
            number_received=got,
        )
        for rank, before in enumerate(sent)
    ]


def square(array) -> float:
    return float(np.sum(np.float64(array) ** 2))


def test_a_norm_that_counts_each_replica():
    whole = square(noise(0))
    rows = gradients("w", 0, 0)
    (one,) = found("wrong-gradient", values=rows, collectives=added_up([whole, whole], 2 * whole))
    assert evidence(one)["factor"] == pytest.approx(np.sqrt(2), rel=1e-4)
    assert "counts replicas" in one.title
    # The program may divide by the number of ranks afterwards.
    assert (one.severity, one.confidence) == ("warning", "likely")
    assert one.where.source == "train.py:20 (clip)"


def test_a_norm_of_shards_is_added_up_by_right():
    a, b = square(noise(0)), square(noise(1))
    rows = [
        value("gradient", "w", rank, noise(rank), placements="(Shard(0))", mesh_dims="dp") for rank in (0, 1)
    ]
    assert not found("wrong-gradient", values=rows, collectives=added_up([a, b], a + b))


def test_replicas_beside_shards_are_counted_once():
    rows = [
        *(value("gradient", "w", r, noise(r), placements="(Shard(0))", mesh_dims="tp") for r in (0, 1)),
        *(value("gradient", "norm", r, 3 * noise(7), **TP) for r in (0, 1)),
    ]
    local = [square(noise(r)) + square(3 * noise(7)) for r in (0, 1)]
    parameters = dtensors("norm")
    (one,) = found(
        "wrong-gradient", values=rows, parameters=parameters, collectives=added_up(local, sum(local))
    )
    truth = square(noise(0)) + square(noise(1)) + square(3 * noise(7))
    assert evidence(one)["factor"] == pytest.approx(np.sqrt(sum(local) / truth), rel=1e-3)


def test_a_count_of_tokens_is_no_norm():
    rows = gradients("w", 0, 0)
    assert not found("wrong-gradient", values=rows, collectives=added_up([512.0, 512.0], 1024.0))


def taken(norms, arrays, **given: Any):
    return [
        *(value("normed", "w", rank, array, **given) for rank, array in enumerate(arrays)),
        *(value("gradient", "w", rank, array, **given) for rank, array in enumerate(arrays)),
        *(
            value("norm", "torch.nn.utils.clip_grad_norm_", rank, np.float32(norm).reshape(()))
            for rank, norm in enumerate(norms)
        ),
    ]


def test_each_rank_clipping_by_a_norm_of_its_own():
    norms = [np.sqrt(square(noise(r))) for r in (0, 1)]
    (one,) = found("wrong-gradient", values=taken(norms, [noise(0), noise(1)], placements=None))
    assert "its own norm" in one.title


def norm_of(call, number, nth=0, rank=0):
    return value("norm", f"torch.nn.utils.{call}", rank, np.float32(number).reshape(()), nth=nth)


def parts_taken(*, alone: float):
    """Two gradients on each of two ranks, `shard` its own and `norm` a replica, and a norm of the shard."""
    held = {"shard": [noise(0), noise(1)], "norm": [noise(5), noise(5)]}
    rows = [value(kind, name, r, held[name][r]) for kind in ("gradient",) for name in held for r in (0, 1)]
    rows += [value("normed", "shard", r, held["shard"][r]) for r in (0, 1)]
    return rows + [norm_of("get_total_norm", alone, rank=r) for r in (0, 1)], held


def test_a_norm_of_some_gradients_is_a_step_on_the_way():
    rows, _ = parts_taken(alone=1.0)
    assert not found("wrong-gradient", values=rows)


@pytest.mark.parametrize("power", [1, 2])
def test_a_norm_that_ranks_go_on_to_add_up_is_a_step_on_the_way(power):
    norms = [np.sqrt(square(noise(r))) for r in (0, 1)]
    rows = [row for row in taken(norms, [noise(0), noise(1)]) if row.kind != "norm"]
    rows += [norm_of("get_total_norm", norms[r], rank=r) for r in (0, 1)]
    sent = [number**power for number in norms]
    assert found("wrong-gradient", values=rows)
    assert not found("wrong-gradient", values=rows, collectives=added_up(sent, sum(sent)))


@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_the_norm_that_a_program_made_is_held_to_all_that_it_clips(wrong):
    rows, held = parts_taken(alone=1.0)
    true = np.sqrt(square(noise(0)) + square(noise(1)) + square(noise(5)))
    for nth, name in enumerate(held, 1):
        rows += [value("normed", name, r, held[name][r], nth=nth) for r in (0, 1)]
        rows += [norm_of("clip_grads_with_norm_", wrong * true, nth=nth, rank=r) for r in (0, 1)]
    findings = found("wrong-gradient", values=rows)
    assert len(findings) == (wrong != 1.0)
    assert all("2 times the true one" in one.title for one in findings)


def test_replicas_counted_by_hand_are_known_by_their_gradients_before_clipping():
    whole = square(noise(0))
    rows = [value("normed", "w", rank, noise(0)) for rank in (0, 1)]
    rows += [value("gradient", "w", rank, np.float32(0.01) * noise(0)) for rank in (0, 1)]
    (one,) = found("wrong-gradient", values=rows, collectives=added_up([whole, whole], 2 * whole))
    assert evidence(one)["factor"] == pytest.approx(np.sqrt(2), rel=1e-4)


def test_a_norm_of_replicas_is_right_on_each():
    norms = [np.sqrt(square(noise(0)))] * 2
    assert not found("wrong-gradient", values=taken(norms, [noise(0), noise(0)]))


def test_clipping_before_the_reduction_is_left_alone():
    norms = [np.sqrt(square(noise(r))) for r in (0, 1)]
    rows = [row for row in taken(norms, [noise(0), noise(1)]) if row.kind != "gradient"]
    rows += gradients("w", 5, 5)
    assert not found("wrong-gradient", values=rows, parameters=known_to("DDP", "w", True))
