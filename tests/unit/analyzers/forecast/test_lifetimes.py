"""Storages from the first step on: what is born is freed once, and the recorded steps are as recorded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.dry.lifetimes import Happening, happenings
from shardtoll.analyzers.forecast.dry.memory import peak_memory
from shardtoll.analyzers.forecast.memory.workspaces import workspace_bytes
from shardtoll.ledger.records.dry import DryStorage

MB = 1 << 20
CARD = 80 << 30


def storage(
    born=0, freed=None, size=MB, *, step=0, category="temporary", phase="forward", freed_step=0,
    op="aten.mm.default",
):  # fmt: skip
    return DryStorage(
        step, 0, born, freed, None if freed is None else freed_step, size, category, phase=phase, op=op
    )


def weights(size=10 * MB):
    return storage(size=size, step=None, category="parameter", phase="other", op="aten.empty.memory_format")


def states(size=20 * MB):
    return storage(size=size, step=None, category="optimizer", phase="other", op="aten.zeros_like.default")


def alive(happened: Sequence[Happening]) -> list[int]:
    """The bytes that live after each of what happens; fails if any is born twice or freed unborn."""
    live: dict[object, int] = {}
    sums = []
    for each in happened:
        if each.born:
            assert each.key not in live
            live[each.key] = each.storage.bytes
        else:
            assert live.pop(each.key) == each.storage.bytes
        sums.append(sum(live.values()))
    return sums


def test_the_optimizers_states_come_after_the_first_backward():
    rows = [weights(), states(), storage(1, 4, 30 * MB), storage(2, 3, 40 * MB, phase="backward")]
    happened = list(happenings(rows))
    alive(happened)
    kinds = [(each.storage.category, each.storage.phase, each.born) for each in happened]
    assert kinds[0] == ("parameter", "other", True)
    first = kinds.index(("optimizer", "other", True))
    assert kinds[:first].count(("temporary", "backward", True)) == 1
    assert kinds.count(("temporary", "backward", True)) == 3
    assert [each.recorded for each in happened].index(True) > first


def test_each_step_frees_what_the_one_before_left():
    left = storage(3, None, 7 * MB)
    before = storage(0, 2, 7 * MB, step=None)
    sums = alive(list(happenings([weights(), before, left])))
    # The first step has nothing to free, and each later one frees before it makes its own.
    assert max(sums) == 17 * MB
    assert sums[-1] == 17 * MB


def test_what_a_step_leaves_and_no_row_knows_is_gone_before_the_next():
    sums = alive(list(happenings([weights(), storage(3, None, 7 * MB)])))
    assert max(sums) == 17 * MB
    assert sums[-1] == 17 * MB


def test_what_was_there_before_the_recording_counts_though_no_step_makes_it():
    """As a batch of another shape, or a buffer that the step deletes."""
    rows = [weights(), storage(0, 2, 50 * MB, step=None), storage(1, 3, 5 * MB)]
    assert peak_memory(rows, (), CARD, 32 * MB).allocated_bytes == (10 + 50 + 5 + 32) * MB


def test_a_step_in_which_nothing_is_born_holds_what_was_there():
    memory = peak_memory([weights()], (), CARD, 32 * MB)
    assert memory.allocated_bytes == 10 * MB
    assert sum(memory.at_peak.values()) == memory.allocated_bytes


def test_a_thread_has_a_workspace_from_its_first_matrix_product_on():
    """It lies behind the product's result, as torch asks for it when the kernel is called."""
    added = storage(0, 1, 5 * MB, op="aten.add.Tensor")
    assert peak_memory([added], (), CARD, 32 * MB).allocated_bytes == 5 * MB
    backward = storage(2, 3, 30 * MB, phase="backward", op="aten.add.Tensor")
    product = storage(4, 5, 6 * MB, phase="backward", op="aten.addmm.default")
    assert peak_memory([added, backward], (), CARD, 32 * MB).allocated_bytes == 30 * MB
    # From the first step's product on, the backward of each later one has it too.
    assert peak_memory([added, backward, product], (), CARD, 32 * MB).allocated_bytes == 62 * MB


@pytest.mark.parametrize(("freed", "most"), [(2, 8), (3, 13)])
def test_a_result_does_not_count_beside_operands_that_went_before_it(freed, most):
    """What is freed at an operator's place went before it ran; what it was given goes at the next place."""
    rows = [storage(1, freed, 5 * MB), storage(2, 9, 8 * MB)]
    assert max(alive(list(happenings(rows)))) == most * MB


def test_recorded_steps_are_replayed_as_often_as_three_steps_take():
    rows = [storage(1, 2), storage(1, 2, step=1, freed_step=1), storage(1, 2, step=2, freed_step=2)]
    happened = list(happenings(rows))
    assert len(happened) == 6
    assert all(each.recorded for each in happened)
    assert len(list(happenings(rows[:2]))) == 8
    assert len(list(happenings(rows[:1]))) == 6


def test_fragments_of_the_first_step_stay_reserved():
    """States that come to lie in the segment of an activation: the next step's has no room there."""
    rows = [
        weights(),
        states(100 * MB),
        storage(1, 4, 150 * MB),
        storage(2, 3, 30 * MB, phase="backward"),
    ]
    memory = peak_memory(rows, (), CARD, 32 * MB)
    held = memory.reserved_bytes.expected - memory.outside_bytes
    assert held >= memory.allocated_bytes
    assert memory.allocated_bytes == (10 + 100 + 150 + 30 + 64) * MB
    assert sum(memory.at_peak.values()) == memory.allocated_bytes
    # 100 of the 150 MB are the states' now.
    assert held >= (150 + 150) * MB


def test_cached_segments_are_freed_before_a_step_is_said_not_to_fit():
    """torch frees what it has cached, and asks again, before it fails."""
    rows = [
        weights(),
        storage(1, 2, 40 * MB, op="aten.add.Tensor"),
        storage(3, 4, 60 * MB, op="aten.add.Tensor"),
    ]
    roomy = peak_memory(rows, (), CARD, 32 * MB)
    outside = roomy.outside_bytes
    assert (roomy.reserved_bytes.expected, roomy.retries, roomy.fits) == (outside + 110 * MB, 0, True)
    # 40 MB are freed once; from then on the segment of 60 MB serves both.
    tight = peak_memory(rows, (), outside + 80 * MB, 32 * MB)
    assert (tight.reserved_bytes.expected, tight.retries) == (outside + 70 * MB, 1)
    assert tight.allocated_bytes == roomy.allocated_bytes
    # The band still reaches up to what it takes with room: it may fit.
    assert tight.reserved_bytes.high == roomy.reserved_bytes.high
    assert tight.fits is None
    # Nothing helps where tensors alone are too much; what it needs is said as if there were room.
    small = peak_memory(rows, (), outside + 65 * MB, 32 * MB)
    assert (small.reserved_bytes, small.retries, small.fits) == (roomy.reserved_bytes, 0, False)
    # Without a known capacity there is no limit.
    assert peak_memory(rows, (), 0, 32 * MB).reserved_bytes == roomy.reserved_bytes


def test_growing_segments_hold_all_that_is_allocated_within_a_limit_too():
    """95 MiB have to live: no retry makes 92 enough, whatever it unmaps."""
    rows = [
        weights(20 * MB),
        storage(1, 2, 40 * MB, op="aten.add.Tensor"),
        storage(3, 4, 75 * MB, op="aten.add.Tensor"),
    ]
    settings = "expandable_segments:True"
    roomy = peak_memory(rows, (), CARD, 32 * MB, settings)
    small = peak_memory(rows, (), roomy.outside_bytes + 92 * MB, 32 * MB, settings)
    assert small.allocated_bytes == 95 * MB
    assert (small.reserved_bytes, small.retries, small.fits) == (roomy.reserved_bytes, 0, False)


def most_at_once(rows: Sequence[DryStorage]) -> int:
    """The most bytes that live at once in recorded steps, from the rows alone: by each place in the order."""

    def lives(row: DryStorage, step: int, place: int) -> bool:
        """Whether it lives while the operator at that place has just allocated its result."""
        begun = row.step is None or (row.step, row.born) <= (step, place)
        if row.freed is None or row.freed_step is None:
            return begun
        went, here = (row.freed_step, row.freed), (step, place)
        at_once = (row.step, row.born) == went == here
        return begun and (here < went or at_once)

    before = sum(row.bytes for row in rows if row.step is None)
    places = [(step, place) for step in (0, 1) for place in range(16)]
    return max(before, *(sum(row.bytes for row in rows if lives(row, *at)) for at in places))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, 0, 1]),
            st.integers(0, 6),
            st.one_of(st.none(), st.integers(0, 6)),
            st.integers(1, 3),
            st.sampled_from(["parameter", "optimizer", "activation"]),
            st.sampled_from(["forward", "backward"]),
        ),
        max_size=12,
    )
)
def test_any_storages_are_born_and_freed_once_and_the_peak_is_theirs(drawn):
    rows = [storage(0, 15, MB, step=1, freed_step=1)]
    for step, born, span, size, category, phase in drawn:
        freed_step = None if span is None else max(step or 0, 1 if span > 3 else 0)
        freed = None if span is None else (born if step is not None and freed_step == step else 0) + span
        first = 0 if step is None else born
        rows.append(DryStorage(step, 0, first, freed, freed_step, size * MB, category, phase=phase))
    alive(list(happenings(rows)))
    memory = peak_memory(rows, (), CARD, 32 * MB)
    # Beside it a workspace for each thread; of blocks less than a MiB is not split off.
    peak = most_at_once(rows)
    assert peak + 32 * MB <= memory.allocated_bytes <= peak + 64 * MB + len(rows) * MB


def test_workspaces_are_those_of_torch_by_kind_of_gpu():
    small = 2 * 4 * MB + 8 * (16 << 10)
    sizes = {
        name: workspace_bytes(card_of(name).gpu.capability)
        for name in ("a100-sxm-80gb", "h100-sxm", "b200-sxm")
    }
    assert sizes == {"a100-sxm-80gb": small, "h100-sxm": 32 * MB, "b200-sxm": 32 * MB}
    assert workspace_bytes((9, 4)) == 128 * MB
    assert workspace_bytes(None) == small
