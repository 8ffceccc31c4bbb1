"""Batches seen twice, epochs in one order, uneven batches; and all that is meant to be equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardtoll.ledger import Group, Stall
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, on_ranks, run_of, step
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import noise, parameter, value

run = running("duplicated-data")


def found(**given: Any):
    return [finding for finding in run(ledger(**given)).findings if finding.kind == "duplicated-data"]


def wrapped(wrapper="DDP", ranks=2):
    known = {"wrapper": wrapper, "group": "pg", "reduced_by_wrapper": True}
    return [parameter("w", rank, **known) for rank in range(ranks)]


def steps(count, ranks=2):
    return [step(number, rank) for number in range(count) for rank in range(ranks)]


def inputs(seeds, shape=(4, 8), name="args[0]", **given: Any):
    """Return the inputs of the ranks: a row a step, a seed a rank."""
    return [
        value("input", name, rank, noise(seed, shape), step=number, **given)
        for number, of_step in enumerate(seeds)
        for rank, seed in enumerate(of_step)
    ]


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2", "FSDP1"])
def test_data_parallel_ranks_with_equal_batches(wrapper):
    (one,) = found(values=inputs([(1, 1), (2, 2)]), parameters=wrapped(wrapper), steps=steps(2))
    assert (one.ranks, one.severity, one.where.op) == ((0, 1), "warning", "input")
    assert "2 of 2 checked steps" in one.title
    assert "DistributedSampler" in one.remedy.code
    # Half of the 50 ms that each rank computes is done by the other already.
    assert (one.toll_ns, one.saving_ns) == (25 * MS, 25 * MS)


def test_different_batches_are_silent():
    assert not found(values=inputs([(1, 2), (3, 4)]), parameters=wrapped(), steps=steps(2))


def test_some_ranks_of_four():
    rows = inputs([(1, 1, 2, 3), (4, 4, 5, 6)])
    (one,) = found(values=rows, parameters=wrapped(ranks=4), steps=steps(2, 4), run=run_of(4))
    assert one.ranks == (0, 1)


def test_one_accident_among_many_is_silent():
    rows = inputs([(1, 1), (2, 3), (4, 5), (6, 7)])
    assert not found(values=rows, parameters=wrapped(), steps=steps(4))


def test_equal_masks_beside_different_tokens_are_silent():
    rows = [*inputs([(1, 2), (3, 4)]), *inputs([(9, 9), (9, 9)], name="kwargs.positions")]
    assert not found(values=rows, parameters=wrapped(), steps=steps(2))


def test_constant_and_tiny_inputs_prove_nothing():
    ones = [value("input", "args[0]", rank, np.ones((4, 8), np.float32)) for rank in (0, 1)]
    assert not found(values=ones, parameters=wrapped())
    assert not found(values=inputs([(1, 1)], shape=(2, 2)), parameters=wrapped())


def test_tensor_parallel_ranks_share_their_data():
    placed = {"placements": "(Shard(0))", "mesh_dims": "tp"}
    parameters = [parameter("w", rank, **placed) for rank in (0, 1)]
    reduced = on_ranks((0, 1), group="tp", mesh_dim="tp", parameter="w", phase="backward")
    groups = (Group("tp", (0, 1), mesh_dim="tp"),)
    assert not found(
        values=inputs([(1, 1), (2, 2)]),
        parameters=parameters,
        collectives=reduced,
        groups=groups,
        steps=steps(2),
    )


def by_hand():
    return {
        "parameters": [parameter("w", rank) for rank in (0, 1)],
        "collectives": on_ranks((0, 1), parameter="w", phase="other", source="train.py:9 (step)"),
    }


def test_gradients_reduced_by_hand_make_ranks_data_parallel():
    assert found(values=inputs([(1, 1), (2, 2)]), steps=steps(2), **by_hand())


def test_a_batch_cut_inside_the_model_is_shared_on_purpose():
    given = by_hand()
    given["collectives"] += on_ranks((0, 1), op="all_gather", phase="forward", module="attention")
    rows = inputs([(1, 1), (2, 2)])
    cut = [compute(rank=rank, phase="forward", module="mlp", input_hash=rank) for rank in (0, 1)]
    assert not found(values=rows, steps=steps(2), computes=cut, **given)
    whole = [compute(rank=rank, phase="forward", module="mlp", input_hash=5) for rank in (0, 1)]
    assert found(values=rows, steps=steps(2), computes=whole, **given)


def epochs(order):
    return inputs([(10 * batch, 10 * batch + 1) for batch in order])


def test_epochs_in_the_same_order():
    (one,) = found(values=epochs([0, 1, 2, 0, 1, 2]), parameters=wrapped(), steps=steps(6))
    assert "3 batches an epoch" in one.title
    assert "sampler.set_epoch(epoch)" in one.remedy.code
    assert (one.confidence, one.where.op) == ("likely", "epoch order")


@pytest.mark.parametrize(
    "order",
    [[0, 1, 2, 3, 4, 5], [0, 1, 2, 1, 2, 0], [0] * 6, [0, 1] * 3, [0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 5]],
    ids=["never", "shuffled", "one batch", "two in turn", "half an epoch", "not for ever"],
)
def test_other_orders_are_silent(order):
    assert not found(values=epochs(order), parameters=wrapped(), steps=steps(len(order)))


def test_two_forwards_of_one_batch_are_one_look():
    rows = [
        value("input", "args[0]", 0, noise(batch), step=number, nth=nth)
        for number, batch in enumerate([0, 1, 2, 0, 1, 2])
        for nth in (0, 1)
    ]
    assert found(values=rows, parameters=wrapped(), steps=steps(6))


def test_uneven_batches_are_told():
    rows = [value("input", "args[0]", rank, noise(rank, (size, 8))) for rank, size in enumerate((4, 3))]
    (one,) = found(values=rows, parameters=wrapped())
    assert (one.severity, "3 to 4 samples" in one.title) == ("info", True)
    assert not found(values=inputs([(1, 2)]), parameters=wrapped())


@pytest.mark.parametrize("seeds", [(1, 2), (5, 5)])
def test_of_large_batches_more_than_a_sample_has_to_be_equal(seeds):
    large = {"shape": "[4097]", "numel": 4097, "hash": 7}
    rows = [
        value("input", "args[0]", rank, noise(seed, (64, 64)), **large) for rank, seed in enumerate(seeds)
    ]
    assert bool(found(values=rows, parameters=wrapped())) == (seeds == (5, 5))


def test_a_size_that_no_tensor_has_ends_nothing():
    rows = [value("input", "args[0]", r, noise(r), shape=f"[{'9' * 26}]") for r in (0, 1)]
    assert not found(values=rows, parameters=wrapped())


def test_what_ddp_sends_in_forward_shares_no_batch():
    sent = [
        collective(
            op="broadcast",
            rank=rank,
            phase="forward",
            module="net",
            parameter=None,
            caused_by_op="DistributedDataParallel.forward",
        )
        for rank in (0, 1)
    ]
    assert found(values=inputs([(1, 1)]), parameters=wrapped(), collectives=sent)


LOADER = [
    Stall(step, rank, "data", "DataLoader", "other", 1, 1000, 0, before_ns=1000)
    for step in range(4)
    for rank in (0, 1)
]


@pytest.mark.parametrize(("stalls", "severity"), [((), "info"), (LOADER, "warning")])
def test_a_toy_loop_that_repeats_one_batch_is_no_warning_unless_a_loader_gave_it(stalls, severity):
    given = {"parameters": wrapped(), "steps": steps(4), "stalls": stalls}
    (one,) = found(values=inputs([(1, 1)] * 4), **given)
    assert (one.where.op, one.severity) == ("input", severity)
    (one,) = found(values=inputs([(1, 1), (2, 2), (1, 1), (2, 2)]), **given)
    assert one.severity == "warning", "equal batches that change are no toy's"
    assert not found(values=inputs([(1, 2)] * 4), **given), "each rank repeats a batch of its own"


@pytest.mark.parametrize(("stalls", "severity"), [((), "info"), (LOADER, "warning")])
def test_epochs_of_a_loop_without_a_loader_are_information(stalls, severity):
    (one,) = found(values=epochs([0, 1, 2, 3] * 2), parameters=wrapped(), steps=steps(8), stalls=stalls)
    assert (one.where.op, one.severity) == ("epoch order", severity)
