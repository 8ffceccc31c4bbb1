"""Blocks of pipeline stages by weight: all dealt once, by a closed form, and the same for time and memory."""

from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.forecast.memory import rank_weights
from shardtoll.analyzers.forecast.plan.price_staged import stage_layers
from shardtoll.analyzers.forecast.plan.traits import traits_of
from shardtoll.analyzers.shared.stage_dealing import dealt_by_weight
from shardtoll.ledger.answers.training_plan import Layout, ModelShape, TrainingPlan

TIED = ModelShape(16, 2048, 32, 32, 8192, 131072, gated=True, tied=True)
"""A block weighs 67,108,864, the head four times that: a quarter of all is five blocks."""


def test_a_stage_is_full_at_its_equal_share() -> None:
    assert dealt_by_weight(TIED, 2) == (10, 6)
    assert dealt_by_weight(TIED, 4) == (5, 5, 5, 1)


@given(st.integers(1, 80), st.sampled_from((1, 2, 4, 8)), st.integers(1, 160), st.data())
def test_all_blocks_are_dealt_and_no_early_stage_is_far_above_its_share(
    layers: int, heads: int, thousands: int, data: st.DataObject
) -> None:
    model = ModelShape(layers, 64 * heads, heads, heads, 256 * heads, 1000 * thousands, gated=True)
    stages = data.draw(st.integers(1, layers))
    dealt = dealt_by_weight(model, stages)
    assert sum(dealt) == layers
    assert len(dealt) == stages
    head = model.vocab * model.hidden / (4 * model.hidden**2 + 3 * model.ffn * model.hidden)
    share = (layers + head) / stages
    assert max(dealt[:-1], default=0) <= share + 1


def test_time_and_memory_of_a_stage_are_those_of_the_same_blocks() -> None:
    for stages in (2, 4, 8, 16):
        layout = Layout(pp=stages, accumulation=stages)
        plan = TrainingPlan(TIED, layout, 4096, "h100-sxm", framework="nanotron")
        by_time = stage_layers(plan, traits_of("nanotron"))
        assert list(by_time) == rank_weights.stage_layers(TIED, stages, True)
