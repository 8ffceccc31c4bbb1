"""Joining gloo's spans to records: by name and order, with each of a group's threads serving that group."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest
import torch

from shardtoll.profiler.live.session.session import audit
from shardtoll.profiler.live.times.spans import Issued, RawSpan, SpanRecorder, compiles, join

MS = 1_000_000


def test_spans_join_in_order_of_issue() -> None:
    issued = [
        Issued("all_reduce", "0", 1 * MS),
        Issued("all_gather", "0", 2 * MS),
        Issued("all_reduce", "0", 3 * MS),
    ]
    spans = [
        RawSpan("gloo:all_reduce", 1 * MS, 2 * MS, 1),
        RawSpan("gloo:all_gather", 2 * MS, 3 * MS, 2),
        RawSpan("gloo:all_reduce", 4 * MS, 5 * MS, 1),
    ]
    assert join(spans, issued) == spans


def test_a_reduce_scatter_shows_as_an_all_reduce() -> None:
    spans = [RawSpan("gloo:all_reduce", 1 * MS, 2 * MS, 1)]
    assert join(spans, [Issued("reduce_scatter", "0", 1 * MS)]) == spans


def test_a_span_cannot_begin_before_its_issue() -> None:
    assert join([RawSpan("gloo:all_reduce", 1 * MS, 2 * MS, 1)], [Issued("all_reduce", "0", 9 * MS)]) == [
        None
    ]


def test_a_record_without_a_span_stays_unknown() -> None:
    assert join([], [Issued("all_reduce", "0", 1)]) == [None]


def test_threads_tell_groups_apart() -> None:
    """Group b's second collective starts before group a's second: the thread says whose span it is."""
    issued = [
        Issued("all_reduce", "a", 1 * MS),
        Issued("all_reduce", "b", 5 * MS),
        Issued("all_reduce", "a", 10 * MS),
        Issued("all_reduce", "b", 11 * MS),
    ]
    spans = [
        RawSpan("gloo:all_reduce", 2 * MS, 3 * MS, 1),
        RawSpan("gloo:all_reduce", 6 * MS, 7 * MS, 2),
        RawSpan("gloo:all_reduce", 12 * MS, 13 * MS, 2),
        RawSpan("gloo:all_reduce", 14 * MS, 15 * MS, 1),
    ]
    joined = join(spans, issued)
    assert joined == [spans[0], spans[1], spans[3], spans[2]]


def test_other_events_are_left_alone() -> None:
    spans = [RawSpan("Torch-Compiled Region: 0/0", 1, 2, 1), RawSpan("gloo:barrier", 1 * MS, 2 * MS, 1)]
    assert join(spans, [Issued("barrier", "0", 1 * MS)]) == [spans[1]]


def test_spans_that_two_groups_could_own_are_unknown_not_swapped() -> None:
    """Both groups have one collective in flight and no thread is known yet."""
    issued = [Issued("all_reduce", "a", 1 * MS), Issued("all_reduce", "b", 1 * MS)]
    spans = [RawSpan("gloo:all_reduce", 2 * MS, 3 * MS, 2), RawSpan("gloo:all_reduce", 2 * MS, 9 * MS, 1)]
    assert join(spans, issued) == [None, None]
    assert join(spans, issued, {1: "a", 2: "b"}) == [spans[1], spans[0]]


def test_threads_learnt_in_one_region_serve_the_next() -> None:
    threads: dict[int, str] = {}
    for thread, group in ((1, "a"), (2, "b")):
        join(
            [RawSpan("gloo:all_reduce", 2 * MS, 3 * MS, thread)],
            [Issued("all_reduce", group, 1 * MS)],
            threads,
        )
    assert threads == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    ("backends", "expected"),
    [({}, False), ({1: None}, False), ({1: None, 2: "inductor"}, True), (None, True)],
)
def test_whether_anything_was_compiled_is_told_from_the_compilers_backends(
    monkeypatch: pytest.MonkeyPatch, backends: dict[int, Any] | None, expected: bool
) -> None:
    module = types.ModuleType("eval_frame")
    if backends is not None:
        module.cached_backends = backends  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", module)
    assert compiles() is expected


def test_this_torch_lists_the_backends_it_has_compiled_with() -> None:
    program = (
        "import torch, torch._dynamo\n"
        "from shardtoll.profiler.live.times.spans import compiles\n"
        "before = compiles()\n"
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))\n"
        "print(before, compiles())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_a_recording_is_not_stopped_in_backward_where_the_engine_would_bring_it_back() -> None:
    """The check after every test fails where a callback of the profiler's stays (tests/leftovers.py)."""
    spans = SpanRecorder()
    x = torch.ones(2, requires_grad=True)
    stopped: list[object] = []
    x.register_hook(lambda _: stopped.append((spans.stop(), spans.running, spans.start())))
    assert spans.start()
    x.sum().backward()
    assert stopped == [(None, False, False)]
    assert spans.start()
    assert spans.running
    assert spans.stop() == []


def test_a_session_that_ends_steps_in_backward_leaves_no_recording_behind() -> None:
    x = torch.ones(2, requires_grad=True)
    with audit(level="survey") as session:
        session.begin_step()
        x.register_hook(lambda _: session.end_step())
        x.sum().backward()
    assert len(session.ledger.tables["steps"]) == 1


def test_no_recording_begins_while_a_range_is_open_that_began_under_an_earlier_one() -> None:
    spans = SpanRecorder()
    undo = spans.patch_ranges()
    try:
        assert spans.start()
        with torch.autograd.profiler.record_function("the user's own"):
            assert spans.stop() is not None
            # The range would write into the recording that is gone, once another one goes on.
            assert not spans.start()
        assert spans.start()
        assert spans.stop() is not None
        with torch.autograd.profiler.record_function("begun under none"):
            assert spans.start()
            assert spans.stop() is not None
    finally:
        spans.stop()
        undo()


def test_a_recording_may_begin_as_soon_as_a_range_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """`shardtoll run` ends a step and begins the next one as the optimizer's own range ends."""
    spans = SpanRecorder()
    leave = torch.autograd.profiler.record_function.__exit__
    restarted: list[bool] = []

    def leave_and_restart(span: Any, *args: Any) -> None:
        leave(span, *args)
        assert spans.stop() is not None
        restarted.append(spans.start())

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__exit__", leave_and_restart)
    undo = spans.patch_ranges()
    try:
        assert spans.start()
        with torch.autograd.profiler.record_function("Optimizer.step"):
            pass
        assert restarted == [True]
    finally:
        spans.stop()
        undo()
