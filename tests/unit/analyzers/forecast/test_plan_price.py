"""Prices of plans: closed forms of schedules, what must grow, and layouts that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan import FabricNetwork, MeasuredNetwork, price_plan
from shardtoll.analyzers.forecast.plan.constants import fitted, widths
from shardtoll.analyzers.forecast.plan.graphs.staged_step import (
    StagedTimes,
    Topology,
    schedule,
    staged_step_ns,
)
from shardtoll.analyzers.forecast.plan.groups import groups_of
from shardtoll.analyzers.forecast.plan.local import local_experts
from shardtoll.analyzers.forecast.plan.network import place_group
from shardtoll.analyzers.forecast.plan.parts import Parts
from shardtoll.analyzers.forecast.plan.phases import phases_of
from shardtoll.analyzers.forecast.plan.price import band_scope, half_width
from shardtoll.analyzers.forecast.plan.sizes import parameters
from shardtoll.analyzers.forecast.plan.traits import TRAITS
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.forecast import PlanPrice
from shardtoll.ledger.answers.training_plan import Layout, ModelShape, TrainingPlan

LLAMA = ModelShape(32, 4096, 32, 8, 14336, 128256, gated=True, name="llama3-8b")

EXPERTS = ModelShape(8, 1024, 8, 8, 4096, 32000, gated=True, experts=8, topk=2, name="some")


def plan(**layout: object) -> TrainingPlan:
    return TrainingPlan(LLAMA, Layout(**layout), 8192, "h100-sxm", framework="torchtitan")  # type: ignore[arg-type]


def staged(stages: int, chunks: int, forward: float, backward: float) -> StagedTimes:
    rows = tuple((forward / chunks,) * chunks for _ in range(stages))
    back = tuple((backward / chunks,) * chunks for _ in range(stages))
    none = (0.0,) * stages
    return StagedTimes(
        Topology(stages, chunks, False, False, False, False, True), rows, back, 0.0, none, none, none
    )


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("micro_batches", [8, 16, 64])
def test_a_pipeline_takes_its_closed_form(stages: int, micro_batches: int):
    # arXiv 2104.04473, section 2.2: (m + p - 1)(f + b).
    step = staged_step_ns(staged(stages, 1, 1000.0, 2000.0), micro_batches, 0.0)
    assert step == pytest.approx((micro_batches + stages - 1) * 3000.0)


@pytest.mark.parametrize("chunks", [2, 4])
def test_virtual_stages_divide_the_bubble(chunks: int):
    step = staged_step_ns(staged(4, chunks, 1000.0, 2000.0), 16, 0.0)
    assert step == pytest.approx(16 * 3000.0 + 3 * 3000.0 / chunks)


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(4, 1, 6), (4, 2, 8), (8, 4, 16), (1, 1, 3)])
def test_a_schedule_has_every_pass_once_and_no_backward_before_its_forward(stages, chunks, micro_batches):
    for rank in range(stages):
        tasks = schedule(stages, rank, chunks, micro_batches)
        assert len(tasks) == len(set(tasks)) == 2 * chunks * micro_batches
        seen = set()
        for task in tasks:
            if task.backward:
                assert (task.chunk, task.micro_batch) in seen
            else:
                seen.add((task.chunk, task.micro_batch))


def test_parameters_are_the_published_ones():
    assert parameters(LLAMA) == pytest.approx(8.03e9, rel=0.002)
    mixtral = ModelShape(32, 4096, 32, 8, 14336, 32000, gated=True, experts=8, topk=2)
    assert parameters(mixtral) == pytest.approx(46.7e9, rel=0.005)
    assert parameters(mixtral, active=True) == pytest.approx(12.9e9, rel=0.02)


def test_groups_stand_where_their_strides_put_them():
    assert place_group(8, 1, 8) == place_group(8, 1, 16)
    across = place_group(16, 8, 8)
    assert (across.nodes, across.ranks_per_node, across.sharing) == (16, 1, 8)
    half = place_group(8, 4, 8)
    assert (half.nodes, half.ranks_per_node, half.sharing) == (4, 2, 4)


def tensor_ns(*, async_tp: bool) -> float:
    """What a block waits for tensor parallelism over 8 ranks under torchtitan, whose constants no fit has."""
    asked = plan(dp=8, tp=8, sharding="fsdp", async_tp=async_tp)
    groups = groups_of(asked, FabricNetwork(load_fabric("h100x8-ib400")))
    return phases_of(asked, TRAITS["torchtitan"], groups, fitted()).block_forward.exposed_ns["tensor"]


def test_asynchronous_tensor_parallelism_exposes_its_first_piece_and_what_overlapping_costs():
    contention = fitted().get("contention")
    slowed = (1 + 7 * contention) / 8
    assert tensor_ns(async_tp=True) == pytest.approx(slowed * tensor_ns(async_tp=False))


def test_launches_of_blocks_do_not_hide_behind_the_head():
    """A step of small blocks is bound by the host, and one with a large vocabulary takes its head longer."""
    small = ModelShape(24, 1024, 16, 16, 4096, 512, name="small")
    large = replace(small, vocab=204_800)

    def price(model: ModelShape) -> PlanPrice:
        made = TrainingPlan(model, Layout(dp=1), 1024, "a100-sxm-80gb", framework="vTrain")
        return price_plan(replace(made, precision="fp16"))

    more = price(large).compute_ns - price(small).compute_ns
    optimizer = price(large).optimizer_ns - price(small).optimizer_ns
    longer = price(large).step_ns.expected - price(small).step_ns.expected
    assert price(small).step_ns.expected > 2 * price(small).compute_ns
    assert longer == pytest.approx(more + optimizer, rel=0.1)


def test_more_work_takes_longer_and_the_parts_fit_the_step():
    small = price_plan(plan(dp=8, sharding="fsdp", micro_batch=1))
    large = price_plan(plan(dp=8, sharding="fsdp", micro_batch=2))
    assert 1.7 < large.step_ns.expected / small.step_ns.expected < 2.05
    assert large.step_ns.low < large.step_ns.expected < large.step_ns.high
    parts = large.compute_ns + sum(large.exposed_ns.values()) + large.bubble_ns + large.optimizer_ns
    assert parts <= large.step_ns.expected
    tokens = 2 * 8192 / large.step_ns.expected * 1e9
    assert large.tokens_per_s_gpu.expected == pytest.approx(tokens)
    full = price_plan(plan(dp=8, sharding="fsdp", micro_batch=2, checkpointing="full"))
    assert full.step_ns.expected > 1.15 * large.step_ns.expected
    assert full.hfu is not None
    assert full.mfu is not None
    assert full.hfu.expected == pytest.approx(4 / 3 * full.mfu.expected)


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_a_rank_adds_up_the_gradients_of_its_own_experts_only(ep: int):
    model = ModelShape(8, 1024, 8, 8, 4096, 32000, gated=True, experts=8, topk=2, name="some")
    constants = fitted().with_({"expert_gradient.nemo": 2.0, "memory.nemo": 1.0})

    def backward_ns(accumulation: int) -> float:
        layout = Layout(dp=8, ep=ep, sharding="zero1", micro_batch=1, accumulation=accumulation)
        one = TrainingPlan(model, layout, 4096, "h100-sxm", framework="nemo")
        groups = groups_of(one, FabricNetwork(load_fabric("h100x8-ib400")))
        return phases_of(one, TRAITS["nemo"], groups, constants).block_backward.compute_ns

    others = 4 * 1024**2 + 2 * 1024 + 8 * 1024
    experts = 8 * 3 * 1024 * 4096 / ep
    added = backward_ns(2) - backward_ns(1)
    bandwidth = card_of("h100-sxm").memory_gbps
    assert added == pytest.approx(
        (others + 2 * experts) * TRAITS["nemo"].accumulate_bytes / bandwidth, rel=1e-3
    )


@pytest.mark.parametrize(
    ("layout", "framework", "of_experts"),
    [
        (Layout(dp=8, ep=8, sharding="fsdp"), "torchtitan", 1),
        (Layout(dp=8, ep=2, sharding="fsdp"), "torchtitan", 1),
        (Layout(dp=4, tp=2, ep=8, sharding="fsdp"), "torchtitan", 1),
        (Layout(dp=4, tp=2, ep=2, sharding="zero1"), "megatron-bridge", 1),
        (Layout(dp=8, cp=2, ep=4, sharding="zero1"), "nemo", 1),
        (Layout(dp=4, tp=2, sharding="fsdp"), "torchtitan", 1),
        # Shards of two ranks are too few for eight expert parallel ones: each rank keeps its experts whole.
        (Layout(dp=8, ep=8, shard_size=2, sharding="fsdp"), "torchtitan", 1),
        (Layout(dp=8, ep=2, sharding="ddp"), "nemo", 4),
    ],
)
def test_all_ranks_together_hold_the_experts_as_often_as_they_are_copied(layout, framework, of_experts):
    one = TrainingPlan(EXPERTS, layout, 4096, "h100-sxm", framework=framework)
    shards = 1 if layout.sharding == "ddp" else (layout.shard_size or layout.dp) * layout.cp
    per_rank = local_experts(one, EXPERTS.layers) / one.expert_shards(shards)
    whole = EXPERTS.layers * EXPERTS.experts * 3 * EXPERTS.hidden * EXPERTS.ffn
    assert per_rank * layout.world_size == pytest.approx(of_experts * whole)


@pytest.mark.parametrize("sharding", ["fsdp", "zero1"])
def test_expert_parallelism_over_all_ranks_shards_experts_once(sharding: str):
    """The optimizer's share of experts is the same whether replicas or expert parallelism divide them."""

    def optimizer_ns(ep: int) -> float:
        layout = Layout(dp=8, ep=ep, sharding=sharding)  # type: ignore[arg-type]
        return price_plan(TrainingPlan(EXPERTS, layout, 4096, "h100-sxm", framework="nemo")).optimizer_ns

    assert optimizer_ns(8) == pytest.approx(optimizer_ns(1))


def test_a_shard_adds_up_its_experts_gradients_whichever_way_they_are_divided():
    constants = fitted().with_({"expert_gradient.nemo": 2.0, "memory.nemo": 1.0})

    def added_ns(ep: int) -> float:
        times = []
        for accumulation in (1, 2):
            layout = Layout(dp=8, ep=ep, sharding="fsdp", accumulation=accumulation)
            one = TrainingPlan(EXPERTS, layout, 4096, "h100-sxm", framework="nemo")
            groups = groups_of(one, FabricNetwork(load_fabric("h100x8-ib400")))
            times.append(phases_of(one, TRAITS["nemo"], groups, constants).block_backward.compute_ns)
        return times[1] - times[0]

    assert added_ns(8) == pytest.approx(added_ns(1))


def test_experts_have_a_band_of_their_own():
    dense = TrainingPlan(LLAMA, Layout(dp=8), 8192, "h100-sxm", framework="nemo")
    sparse = replace(dense, model=replace(LLAMA, experts=8, topk=2))
    assert (band_scope(dense), band_scope(sparse)) == ("nemo", "nemo.experts")
    parts = Parts(1e9, 1e9, {}, 0.0, 0.0, 0.0, 0.0)
    numbers = widths()
    assert half_width(sparse, parts)[1] == pytest.approx(numbers["slower.nemo.experts"])
    # Where no fit has seen experts, they make the band of the framework wider.
    other = replace(sparse, framework="torchtitan")
    assert half_width(other, parts)[0] == pytest.approx(numbers["faster"] + numbers["experts"])


def test_weak_scaling_never_gets_faster():
    steps = [price_plan(plan(dp=n, sharding="fsdp", micro_batch=1)).step_ns.expected for n in (32, 128, 512)]
    assert steps == sorted(steps)


def test_a_bubble_shrinks_with_micro_batches():
    few, many = (price_plan(plan(dp=1, tp=4, pp=4, accumulation=n)) for n in (8, 64))
    assert few.bubble_ns / few.step_ns.expected > 2 * many.bubble_ns / many.step_ns.expected


def test_a_measured_network_prices_by_node_count():
    table = {"all_gather": ((1, 200.0, 240.0, 260.0), (4, 40.0, 60.0, 80.0))}
    network = MeasuredNetwork("ours", table)
    near = network.time("all_gather", 1e9, place_group(8, 1, 8))
    far = network.time("all_gather", 1e9, place_group(32, 1, 8))
    assert near is not None
    assert far is not None
    assert near.expected_ns == pytest.approx(1e9 * 7 / 8 / 240 + 15_000)
    assert far.low_ns < far.expected_ns < far.high_ns
    slow = price_plan(plan(dp=32, sharding="fsdp", micro_batch=1), network)
    assert slow.step_ns.expected > price_plan(plan(dp=32, sharding="fsdp", micro_batch=1)).step_ns.expected


def test_a_part_of_a_node_has_less_bus_bandwidth_than_the_whole():
    table = {"all_reduce": ((1, 400.0, 440.0, 460.0), (2, 200.0, 240.0, 260.0))}
    parts = MeasuredNetwork("ours", table, part_shares=((2, 0.8), (4, 0.9), (8, 1.0)))

    def rate(ranks: int, per_node: int = 8) -> float:
        timed = parts.time("all_reduce", 1e9, place_group(ranks, 1, per_node))
        assert timed is not None
        return 2 * (ranks - 1) / ranks * 1e9 / (timed.expected_ns - 15_000)

    assert [rate(ranks) for ranks in (2, 4, 8)] == pytest.approx([0.8 * 440, 0.9 * 440, 440])
    assert 0.8 * 440 < rate(3) < 0.9 * 440
    # Across nodes a group's share is that of the network cards.
    assert parts.time("all_reduce", 1e9, place_group(16, 1, 8)) == MeasuredNetwork("ours", table).time(
        "all_reduce", 1e9, place_group(16, 1, 8)
    )


def test_a_vocabulary_cut_over_ranks_is_summed_once_forward_and_once_backward():
    constants = fitted()
    network = FabricNetwork(load_fabric("h100x8-ib400"))
    for ranks in (1, 4):
        asked = plan(tp=ranks, micro_batch=1)
        traits = TRAITS["torchtitan"]
        groups = groups_of(asked, network)
        passes = phases_of(asked, traits, groups, constants)
        waits = [each.exposed_ns.get("tensor", 0.0) for each in (passes.embedding, passes.head_backward)]
        scopes = (f"{traits.name}.{asked.gpu}", traits.name)
        hidden = asked.width_bytes * asked.sequence * LLAMA.hidden
        one = groups.time("all_reduce", hidden, groups.tensor, constants, *scopes).expected_ns
        assert waits == pytest.approx([one, one])
        assert (one > 0) == (ranks > 1)
        # The loss exchanges three numbers a token.
        loss = passes.head_forward.exposed_ns.get("tensor", 0.0)
        each = groups.time("all_reduce", 4 * asked.sequence, groups.tensor, constants, *scopes).expected_ns
        assert loss == pytest.approx(3 * each)


def test_kernels_of_lookup_and_loss_take_host_time():
    constants = fitted()
    network = FabricNetwork(load_fabric("h100x8-ib400"))
    asked = replace(plan(micro_batch=1), framework="nanotron")
    traits = TRAITS["nanotron"]
    passes = phases_of(asked, traits, groups_of(asked, network), constants)
    launch_ns = 1000 * constants.get("host_us", "nanotron")
    assert passes.embedding.host_ns == pytest.approx(2.2 * traits.embedding_kernels * launch_ns)
    assert passes.head_forward.host_ns == pytest.approx(traits.head_kernels * launch_ns)
    fewer = phases_of(asked, replace(traits, head_kernels=16), groups_of(asked, network), constants)
    assert fewer.head_forward.host_ns < passes.head_forward.host_ns


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "h1000"}, "no GPU named 'h1000'"),
        ({"precision": "int3"}, "unknown precision 'int3'"),
        ({"layout": Layout(dp=3, ep=2)}, "expert parallel 2 does not divide the 3 ranks of a stage"),
        ({"layout": Layout(pp=64)}, "64 x 1 pipeline stages for 32 blocks"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(change, message):
    with pytest.raises(UsageError, match=message):
        price_plan(replace(plan(dp=8), **change))
