"""Two steps are of one sequence when every collective's key and each group's growth agree, and only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from shardtoll.profiler.live.capture.sequence import MOST, Template, Templates, grown, key_of
from shardtoll.profiler.live.cause.pending import NOWHERE, Message, PendingCollective, Place, Region


@dataclass(frozen=True)
class Seen:
    """What is told of one collective; `python` false: C++ issued it."""

    op: str = "all_reduce"
    group: str = "world"
    dtype: str = "float32"
    reduce_op: str | None = "SUM"
    root: int | None = None
    phase: str = "forward"
    module: str | None = "layer"
    node: int | None = None
    implicit: bool = False
    message_bytes: int = 64
    python: bool = True
    growth: int = 1


STEP = (Seen(), Seen("all_gather", "tp", module="up"), Seen(phase="backward", node=3, module=None))
WHOLE: Mapping[str, int | None] = {"world": 2, "tp": 1}


def run(
    templates: Templates, seen: Sequence[Seen], base: int = 0, *, watched: bool = True
) -> tuple[Region, list[PendingCollective | None]]:
    """Play a step; return its region and what each of Python's collectives was found to repeat."""
    start: dict[str, int | None] = {"world": base, "tp": 2 * base}
    region = Region(0, 0, start, watched=watched)
    counts = dict(start)
    templates.begin()
    found = []
    for at, each in enumerate(seen):
        before = counts[each.group]
        assert before is not None
        place = Place(each.phase, module=each.module, source=f"train.py:{at}")
        size = each.message_bytes
        message = Message(each.op, each.group, 2, each.dtype, size, size, each.reduce_op, each.root)
        pending = PendingCollective(message, NOWHERE if watched else place, at, before, growth=each.growth)
        if each.python:
            said = (each.phase, each.module, each.node, each.implicit, None, None)
            pending.key = key_of(pending, region, said)
            found.append(templates.follow(pending.key))
        counts[each.group] = pending.seq = before + each.growth
        if each.python or not watched:
            region.collectives.append(pending)
    return region, found


def growth_of(seen: Sequence[Seen]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in seen:
        total[each.group] = total.get(each.group, 0) + each.growth
    return total


def learn(
    templates: Templates, seen: Sequence[Seen], *, growth: Mapping[str, int | None] | None = None
) -> tuple[Template, bool]:
    region, _ = run(templates, seen, watched=False)
    return templates.learn(region, growth_of(seen) if growth is None else growth)


def test_a_step_that_repeats_another_has_its_places_whatever_the_numbers_before() -> None:
    templates = Templates()
    template, new = learn(templates, STEP)
    assert new
    for base in (0, 5, 1000):
        region, found = run(templates, STEP, base)
        places = [each.place.source for each in found if each is not None]
        assert places == ["train.py:0", "train.py:1", "train.py:2"]
        at_end = {"world": base + 2, "tp": 2 * base + 1, "idle": 0}
        assert templates.end(grown(region, at_end)) is template
    assert not learn(templates, STEP)[1]


CHANGED: dict[str, Sequence[Seen]] = {
    "order": (STEP[1], STEP[0], STEP[2]),
    "op": (replace(STEP[0], op="all_gather"), *STEP[1:]),
    "group": (replace(STEP[0], group="tp"), *STEP[1:]),
    "dtype": (STEP[0], replace(STEP[1], dtype="bfloat16"), STEP[2]),
    "reduction": (replace(STEP[0], reduce_op="AVG"), *STEP[1:]),
    "root": (replace(STEP[0], root=1), *STEP[1:]),
    "phase": (replace(STEP[0], phase="recompute"), *STEP[1:]),
    "module": (STEP[0], replace(STEP[1], module="down"), STEP[2]),
    "node": (*STEP[:2], replace(STEP[2], node=4)),
    "implicit": (replace(STEP[0], implicit=True), *STEP[1:]),
    "one more at the end": (*STEP, STEP[0]),
    "one more at the start": (STEP[1], *STEP),
    "one less at the end": STEP[:2],
    "one less at the start": STEP[1:],
    "none": (),
}


@pytest.mark.parametrize("what", sorted(CHANGED))
def test_a_step_that_differs_repeats_nothing(what: str) -> None:
    templates = Templates()
    learn(templates, STEP)
    region, found = run(templates, CHANGED[what])
    same = [a == b for a, b in zip(CHANGED[what], STEP, strict=False)]
    agreed = same.index(False) if False in same else min(len(CHANGED[what]), len(STEP))
    assert [each is not None for each in found] == [at < agreed for at in range(len(found))]
    # Not even where the groups' counts happen to agree.
    assert templates.end(growth_of(STEP)) is None
    assert templates.end(grown(region, growth_of(CHANGED[what]))) is None
    # A step after it is free to repeat.
    assert None not in run(templates, STEP)[1]


@pytest.mark.parametrize("growth", [{"world": 3, "tp": 1}, {"world": 2}, {**WHOLE, "dp": 1}, {}])
def test_growth_that_differs_is_another_sequence(growth: dict[str, int | None]) -> None:
    templates = Templates()
    learn(templates, STEP)
    run(templates, STEP)
    assert templates.end(growth) is None
    assert templates.end(WHOLE) is not None


def test_sizes_are_measured_and_no_part_of_the_key() -> None:
    templates = Templates()
    template, _ = learn(templates, STEP)
    run(templates, [replace(each, message_bytes=7) for each in STEP])
    assert templates.end(WHOLE) is template


WITH_CPP = (*STEP, Seen(python=False), Seen("broadcast", "tp", python=False))
WITH_CPP_GROWTH = {"world": 3, "tp": 2}


def test_what_cpp_issues_is_taken_over_where_every_count_is_known_and_equal() -> None:
    templates = Templates()
    template, _ = learn(templates, WITH_CPP)
    assert not template.all_seen
    assert template.numbers == (1, 1, 2, 3, 2)
    assert None not in run(templates, WITH_CPP)[1]
    assert templates.end({"world": 3, "tp": 2}) is template
    assert templates.end({"world": 2, "tp": 2}) is None


def test_what_cpp_issues_is_not_taken_over_where_a_group_does_not_count() -> None:
    unknown: dict[str, int | None] = {"world": 3, "tp": None}
    templates = Templates()
    learn(templates, WITH_CPP, growth=unknown)
    run(templates, WITH_CPP)
    assert templates.end(unknown) is None
    # Where Python issues everything nothing has to be proven.
    templates = Templates()
    template, _ = learn(templates, STEP, growth=unknown)
    run(templates, STEP)
    assert templates.end(unknown) is template


def test_two_that_begin_alike_are_told_apart_where_they_part() -> None:
    templates = Templates()
    short, _ = learn(templates, STEP)
    longer = (*STEP, Seen("barrier"))
    long, _ = learn(templates, longer)
    run(templates, STEP)
    assert templates.end(growth_of(STEP)) is short
    run(templates, longer)
    assert templates.end(growth_of(longer)) is long


def test_one_learnt_again_replaces_the_earlier_and_is_new_only_in_what_cpp_issues() -> None:
    templates = Templates()
    learn(templates, WITH_CPP)
    assert not learn(templates, WITH_CPP)[1]
    bigger = (*WITH_CPP[:-1], replace(WITH_CPP[-1], message_bytes=128))
    latest, new = learn(templates, bigger)
    assert new
    run(templates, WITH_CPP)
    assert templates.end(growth_of(WITH_CPP)) is latest


def test_of_many_sequences_the_first_learnt_are_forgotten() -> None:
    templates = Templates()
    steps = [(Seen(module=f"layer {at}"),) for at in range(MOST + 3)]
    for step in steps:
        learn(templates, step)
    known = [run(templates, step)[1][0] is not None for step in steps]
    assert known == [False] * 3 + [True] * MOST


def test_what_was_excluded_or_came_from_elsewhere_is_no_growth_of_the_step() -> None:
    other: Any = run(Templates(), [Seen()])[0].collectives[0]
    region = Region(0, 0, {"world": 10, "tp": None}, uncounted={"world": 2}, elsewhere=[other])
    assert grown(region, {"world": 15, "tp": 4, "late": 1, "idle": 0}) == {"world": 2, "tp": None, "late": 1}
