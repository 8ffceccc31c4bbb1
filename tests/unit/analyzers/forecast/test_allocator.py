"""The allocator's model: cases worked by hand from the documented rules, and invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.forecast.memory.allocator import AllocatorOptions, replay
from shardtoll.analyzers.forecast.memory.segments import rounded, segment_bytes

MIB = 1 << 20


def born(key: object, size: int, category: str = "other", stream: int = 0) -> tuple[object, int, str, int]:
    return (key, size, category, stream)


def freed(key: object) -> tuple[object, None, str, int]:
    return (key, None, "other", 0)


@pytest.mark.parametrize(
    ("size", "taken", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
    ],
)
def test_requests_are_rounded_and_get_a_segment_by_their_size(size: int, taken: int, segment: int) -> None:
    assert rounded(size) == taken
    assert segment_bytes(taken) == segment
    result = replay([born("a", size)])
    # A large segment's rest of at most 1 MiB stays with the block; any other rest is cut off.
    rest = segment - taken
    kept = segment if taken > MIB and rest <= MIB else taken
    assert (result.allocated_peak_bytes, result.reserved_peak_bytes) == (kept, segment)


def test_small_requests_share_a_segment_and_large_ones_do_not_use_it() -> None:
    events = [born(i, MIB) for i in range(3)] + [born("large", 2 * MIB)]
    assert replay(events).reserved_peak_bytes == 2 * 2 * MIB + 20 * MIB


def test_best_fit_takes_the_smallest_free_block() -> None:
    events = [born("a", 40 * MIB), born("b", 20 * MIB), freed("a"), freed("b"), born("c", 18 * MIB)]
    # c takes b's segment and leaves a's whole: 40 MiB fit without a new segment.
    assert replay([*events, born("d", 40 * MIB)]).reserved_peak_bytes == 60 * MIB


def test_neighbours_merge_so_that_a_larger_request_fits() -> None:
    events = [born("a", 30 * MIB), freed("a"), born("b", 14 * MIB), born("c", 16 * MIB)]
    assert replay([*events, freed("b"), freed("c"), born("d", 30 * MIB)]).reserved_peak_bytes == 30 * MIB
    # While c lives, nothing merges: the same request needs a segment of its own.
    assert replay([*events, freed("b"), born("d", 30 * MIB)]).reserved_peak_bytes == 60 * MIB


def test_each_stream_has_its_own_pool() -> None:
    events = [born("a", 30 * MIB), freed("a"), born("b", 30 * MIB, stream=1)]
    assert replay(events).reserved_peak_bytes == 60 * MIB


def test_cached_segments_are_freed_before_memory_runs_out() -> None:
    events = [born("a", 30 * MIB), freed("a"), born("b", 40 * MIB)]
    result = replay(events, AllocatorOptions(capacity_bytes=50 * MIB))
    assert (result.out_of_memory_at, result.retries, result.reserved_peak_bytes) == (None, 1, 40 * MIB)
    assert replay(events, AllocatorOptions(capacity_bytes=39 * MIB)).out_of_memory_at == 2


def test_a_segment_in_use_is_not_freed() -> None:
    events = [born("a", 30 * MIB), freed("a"), born("small", 12 * MIB), born("b", 30 * MIB)]
    assert replay(events, AllocatorOptions(capacity_bytes=50 * MIB)).out_of_memory_at == 3


def test_expandable_segments_grow_instead_of_fragmenting() -> None:
    events = [born("a", 30 * MIB), freed("a"), born("b", 50 * MIB), freed("b"), born("c", 70 * MIB)]
    assert replay(events).reserved_peak_bytes == 150 * MIB
    expandable = AllocatorOptions(expandable_segments=True)
    assert replay(events, expandable).reserved_peak_bytes == 80 * MIB  # pages of 20 MiB
    tight = AllocatorOptions(capacity_bytes=80 * MIB, expandable_segments=True)
    assert replay([*events, freed("c"), born("small", 1)], tight).reserved_peak_bytes == 80 * MIB


def test_a_retry_that_unmaps_the_requests_own_pages_asks_for_them_again() -> None:
    # 60 MiB are mapped, of which 20 stay in use. The retry unmaps the free 40: 75 more need 80, not 40.
    events = [born("a", 20 * MIB), born("b", 40 * MIB), freed("b"), born("c", 75 * MIB)]
    roomy = AllocatorOptions(capacity_bytes=100 * MIB, expandable_segments=True)
    assert (replay(events, roomy).reserved_peak_bytes, replay(events, roomy).retries) == (100 * MIB, 0)
    tight = replay(events, AllocatorOptions(capacity_bytes=92 * MIB, expandable_segments=True))
    assert (tight.out_of_memory_at, tight.reserved_peak_bytes) == (3, 60 * MIB)
    # Another stream's cached pages make room: what the retry took of this pool is reserved again.
    other = [born("x", 20 * MIB, stream=1), freed("x")]
    freeing = replay([*other, *events], AllocatorOptions(capacity_bytes=100 * MIB, expandable_segments=True))
    assert (freeing.out_of_memory_at, freeing.retries) == (None, 1)
    assert (freeing.allocated_peak_bytes, freeing.reserved_peak_bytes) == (95 * MIB, 100 * MIB)


def test_max_split_size_keeps_large_blocks_whole() -> None:
    events = [born("a", 100 * MIB), freed("a"), born("b", 30 * MIB)]
    assert replay(events).reserved_peak_bytes == 100 * MIB
    assert replay(events, AllocatorOptions(max_split_bytes=64 * MIB)).reserved_peak_bytes == 130 * MIB


def test_the_peak_is_split_by_category() -> None:
    events = [born("w", 20 * MIB, "parameters"), born("x", 10 * MIB, "activations"), freed("x"), freed("w")]
    result = replay(events, timeline=True)
    assert result.at_peak == {"parameters": 20 * MIB, "activations": 10 * MIB}
    assert [allocated // MIB for _, allocated, _ in result.timeline] == [20, 30, 20, 0]
    assert result.timeline[-1][2] == 30 * MIB


def test_storages_of_no_bytes_and_older_ones_change_nothing() -> None:
    assert replay([born("a", 0), freed("a"), freed("older")]).reserved_peak_bytes == 0
    with pytest.raises(ValueError, match="allocated already"):
        replay([born("a", 1), born("a", 1)])


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[object, int | None, str, int]]:
    events: list[tuple[object, int | None, str, int]] = []
    live: list[int] = []
    for key in range(draw(st.integers(1, 40))):
        while live and draw(st.booleans()):
            events.append(freed(live.pop(draw(st.integers(0, len(live) - 1)))))
        size = draw(st.sampled_from([1, 600, MIB, 3 * MIB, 9 * MIB, 12 * MIB, 33 * MIB])) + draw(
            st.integers(0, 5000)
        )
        events.append(born(key, size, stream=draw(st.integers(0, 1))))
        live.append(key)
    return events


@given(programs(), st.booleans())
def test_reserved_holds_what_is_live_and_never_exceeds_all_segments(
    events: list[tuple[object, int | None, str, int]], expandable: bool
) -> None:
    result = replay(events, AllocatorOptions(expandable_segments=expandable), timeline=True)
    live: dict[object, int] = {}
    peak = 0
    for (key, size, _, _), (_, allocated, reserved) in zip(events, result.timeline, strict=True):
        if size is None:
            del live[key]
        else:
            live[key] = rounded(size)
        needed = sum(live.values())
        # A large block may keep a rest of up to 1 MiB.
        assert needed <= allocated <= needed + len(live) * MIB
        assert allocated <= reserved
        peak = max(peak, allocated)
    assert result.allocated_peak_bytes == peak == sum(result.at_peak.values())
    if not expandable:
        assert result.reserved_peak_bytes <= sum(
            segment_bytes(rounded(size)) for _, size, _, _ in events if size is not None
        )


@given(programs(), st.booleans(), st.integers(1, 120))
def test_reserved_holds_what_is_allocated_within_a_capacity_too(
    events: list[tuple[object, int | None, str, int]], expandable: bool, capacity: int
) -> None:
    options = AllocatorOptions(capacity_bytes=capacity * MIB, expandable_segments=expandable)
    for _, allocated, reserved in replay(events, options, timeline=True).timeline:
        assert allocated <= reserved <= capacity * MIB


@given(programs())
def test_a_second_pass_over_the_same_program_needs_no_more(
    events: list[tuple[object, int | None, str, int]],
) -> None:
    keys = {key for key, size, _, _ in events if size is not None}
    gone = {key for key, size, _, _ in events if size is None}
    whole = [*events, *(freed(key) for key in sorted(keys - gone, key=str))]
    again = [((key, 2), size, category, stream) for key, size, category, stream in whole]
    once = replay(whole)
    assert replay([*whole, *again]).allocated_peak_bytes <= once.allocated_peak_bytes + len(keys) * MIB
