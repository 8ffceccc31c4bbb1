from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardtoll.profiler.live.cause.accounting import Span, share_exposed, union
from shardtoll.profiler.traces.collectives.steps import Steps
from shardtoll.profiler.traces.rank.split import COMM, COMPUTE, IDLE, Busy, gaps, split

END = 40
NONE = 2
pieces = st.tuples(st.integers(0, 3), st.integers(0, END), st.integers(0, 12), st.integers(0, NONE))


def columns(*rows):
    return [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.zeros(0, np.int64)] * 3


def made(works, windows):
    layers = tuple(
        Busy(
            *columns(
                *sorted(
                    (start, min(start + length, END), owner)
                    for at, start, length, owner in works
                    if at == layer
                )
            )
        )
        for layer in range(4)
    )
    start, end, place = columns(*windows)
    return layers, Steps((0, 1), start, end, place, marked=True)


def brute(layers, steps):
    """Layer and owner of every single nanosecond; exposed instants have no owner."""
    for at in range(END):
        for number, busy in enumerate(layers):
            owners = busy.owner[(busy.start_ns <= at) & (at < busy.end_ns)]
            if len(owners):
                yield at, number, int(owners.min())
                break
        else:
            inside = (steps.start_ns <= at) & (at < steps.end_ns)
            yield at, IDLE, int(steps.place[inside][0]) if inside.any() else NONE


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces, max_size=12), st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 10)))
@example([(1, 0, 7, 0), (1, 0, 7, 1), (1, 3, 4, 2), (0, 5, 1, 0)], (1, 2, 3))
def test_equals_a_count_of_every_nanosecond(works, shape):
    first, second, gap = shape
    windows = [(2, 3 + first, 0), (3 + first + gap, 4 + first + gap + second, 1)]
    layers, steps = made(works, windows)
    result = split(layers, steps, 0, max(END, windows[1][1]))
    parts = np.zeros((NONE + 1, 5), np.int64)
    starts = {}
    exposed = []
    for at, layer, owner in brute(layers, steps):
        if layer == COMM:
            exposed.append((at, at + 1))
        else:
            parts[owner, layer] += 1
            starts.setdefault(owner, at)
    late = range(END, windows[1][1])
    parts[1, IDLE] += sum(windows[1][0] <= at for at in late)
    parts[0, IDLE] += sum(at < windows[0][1] for at in late)
    parts[NONE, IDLE] += sum(windows[0][1] <= at < windows[1][0] for at in late)
    comm = layers[COMM]
    spans = [
        Span(at, int(s), int(e)) for at, (s, e) in enumerate(zip(comm.start_ns, comm.end_ns, strict=True))
    ]
    shares, ownerless = share_exposed(union(exposed), spans)
    assert ownerless == 0
    assert result.exposed_ns.tolist() == [shares.get(at, 0) for at in range(len(spans))]
    for at, owner in enumerate(comm.owner):
        parts[owner, COMM] += shares.get(at, 0)
    assert result.parts_ns.tolist() == parts.tolist()
    assert result.parts_ns.sum() == result.edges_ns[-1] - result.edges_ns[0]
    for owner, at in starts.items():
        assert result.first_ns[owner] <= at


def one(*works, windows=((0, 10, 0), (10, 20, 1))):
    layers, steps = made(works, windows)
    return split(layers, steps, 0, 20)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6), st.integers(-9, 30), st.integers(0, NONE)),
                max_size=8))  # fmt: skip
def test_idle_time_before_work_that_was_launched_already_is_that_works(works):
    works = sorted(
        (start, start + length, min(queued, start), owner) for start, length, queued, owner in works
    )
    steps = Steps((0, 1), *columns((2, 15, 0), (15, 33, 1)), marked=True)
    table = np.array(works, np.int64).reshape(-1, 4)
    start, end, queued, owner = table.T
    nothing = Busy(*columns())
    layers = (Busy(start, end, owner), nothing, nothing, nothing)
    result = split(layers, steps, 0, END, gaps(start, end, queued, owner, steps))
    idle = [0] * (NONE + 1)
    for at in range(END):
        if any(begun <= at < done for begun, done, _, _ in works):
            continue
        following = min((work for work in works if work[0] > at), key=lambda w: (w[0], w[2]), default=None)
        if following is not None and following[2] <= at:
            mine = {w[3] for w in works if w[0] == following[0] and w[2] == following[2]}
            idle[result.owner[np.searchsorted(result.edges_ns, at, side="right") - 1]] += 1
            assert result.owner[np.searchsorted(result.edges_ns, at, side="right") - 1] in mine
        else:
            idle[0 if 2 <= at < 15 else 1 if 15 <= at < 33 else NONE] += 1
    assert result.parts_ns[:, IDLE].tolist() == idle


def test_uneven_shares_go_to_earlier_rows():
    result = one((1, 0, 7, 0), (1, 0, 7, 0), (1, 0, 7, 1))
    assert result.exposed_ns.tolist() == [3, 2, 2]
    assert result.parts_ns[:, COMM].tolist() == [5, 2, 0]


def test_late_work_of_a_step_stays_with_the_step_that_launched_it():
    result = one((0, 12, 4, 0), (0, 14, 5, 1))
    assert result.parts_ns[:, COMPUTE].tolist() == [4, 3, 0]
    assert result.first_ns.tolist() == [0, 10, 20]
    assert result.parts_ns[:, IDLE].tolist() == [10, 3, 0]


def test_work_of_no_step_is_in_no_step():
    result = one((0, 0, 4, NONE), (3, 2, 4, 0))
    assert result.parts_ns[NONE].tolist() == [4, 0, 0, 0, 0]
    assert result.parts_ns[0].tolist() == [0, 0, 0, 2, 4]
    assert result.first_ns[0] == 4


def test_nothing_at_all():
    result = one()
    assert result.parts_ns.tolist() == [[0, 0, 0, 0, 10], [0, 0, 0, 0, 10], [0] * 5]
    assert result.exposed_ns.tolist() == []
