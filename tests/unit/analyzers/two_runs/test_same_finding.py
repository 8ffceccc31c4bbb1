"""Findings of two runs are the same by kind and place, wherever their lines went."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.two_runs import same_finding
from shardtoll.analyzers.two_runs.same_finding import likeness, paired, place
from shardtoll.ledger import Finding, Where

HERE: dict[str, Any] = {
    "phase": "forward",
    "module": "blocks.0.mlp",
    "parameter": None,
    "op": "aten.mm.default",
    "source": "src/train.py:42 (step)",
    "group": "3",
    "mesh_dim": "tp",
}


def found(
    kind: str = "implicit-redistribute", *, moved: int | None = None, count: int = 1, **changes: Any
) -> Finding:
    return Finding(
        kind, "warning", "a title", None, None, None, moved, count, (0,), Where(**{**HERE, **changes})
    )


@pytest.mark.parametrize("changes", [
    {},
    {"source": "src/train.py:57 (step)"},
    {"source": "/elsewhere/src/train.py:42 (step)"},
    {"group": "7"},
    {"source": None},
    {"module": None},
    {"mesh_dim": None},
    {"module": "layers.0.mlp"},
    {"source": "src/loop.py:10 (train_step)"},
])  # fmt: skip
def test_the_same_finding(changes: dict[str, Any]):
    assert paired([found()], [found(**changes)]) == {0: 0}


@pytest.mark.parametrize("changes", [
    {"kind": "redundant-collective"},
    {"phase": "backward"},
    {"op": "aten.bmm.default"},
    {"mesh_dim": "dp"},
    {"module": "head", "source": "src/train.py:80 (loss)"},
    {"module": "head", "source": None},
])  # fmt: skip
def test_another_finding(changes: dict[str, Any]):
    assert paired([found()], [found(**changes)]) == {}


def test_another_parameter_of_the_same_line_is_another_finding():
    assert likeness(found(parameter="a.weight"), found(parameter="b.weight")) is None
    assert likeness(found(parameter="a.weight"), found(parameter="a.weight", source="x.py:1 (f)")) is not None


def test_lines_of_one_function_are_paired_with_the_nearest():
    before = [found(source=f"train.py:{line} (step)") for line in (10, 20, 30)]
    after = [found(source=f"train.py:{line} (step)") for line in (31, 12)]
    assert paired(before, after) == {0: 1, 2: 0}


def test_a_pair_that_agrees_in_more_is_made_first():
    vague = found(module=None, source=None)
    assert paired([vague, found()], [found()]) == {1: 0}


def test_one_finding_after_is_the_rest_of_one_before_only():
    assert len(paired([found(), found()], [found()])) == 1


def test_what_was_moved_whole_is_the_same_if_bytes_and_count_are():
    elsewhere = {"module": "head", "source": "new.py:3 (other)"}
    assert paired([found(moved=512)], [found(moved=512, **elsewhere)]) == {0: 0}
    assert paired([found(moved=512)], [found(moved=256, **elsewhere)]) == {}
    assert paired([found(moved=512)], [found(moved=512, count=2, **elsewhere)]) == {}


def test_a_file_that_was_renamed_holds_the_same_findings():
    bare: dict[str, Any] = {"module": None, "mesh_dim": None, "source": "accum.py:21 (train_step)"}
    renamed = {**bare, "source": "accum2.py:22 (train_step)"}
    assert paired([found(**bare)], [found(**renamed)]) == {0: 0}
    assert paired([found(**bare)], [found(**{**renamed, "group": "9"})]) == {}
    assert paired([found(**bare)], [found(**{**renamed, "source": "accum2.py:22 (other)"})]) == {}
    both = [found("wide-dtype", **renamed), found(**bare)]
    assert paired(both, [found(**renamed)]) == {}, "the run before has that file too"


def test_findings_of_the_whole_step_are_the_same_by_kind():
    bare = Finding("pipeline-bubble", "info", "idle", 5, None, None, None, 1, (0,))
    assert paired([bare], [bare]) == {0: 0}


def test_a_place_in_words_has_no_line_and_no_folder():
    assert place(Where(**HERE)) == "blocks.0.mlp · aten.mm.default · train.py (step) · mesh dim tp · forward"
    assert place(Where(**{**HERE, "source": "C:\\x\\train.py:9"})).count("train.py (module)") == 1
    assert place(Where()) == "whole step"


KINDS = ("implicit-redistribute", "latency-bound")
PLACES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "module": st.sampled_from([None, "a", "b"]),
        "op": st.sampled_from([None, "x", "y"]),
        "source": st.sampled_from([None, "a.py:1 (f)", "a.py:7 (f)", "b.py:1 (g)", "c.py:3 (f)"]),
        "parameter": st.sampled_from([None, "w"]),
        "moved": st.sampled_from([None, 8, 16]),
        "count": st.sampled_from([1, 2]),
    }
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PLACES, max_size=9), st.lists(PLACES, max_size=9))
def test_pairs_are_those_of_comparing_each_with_each(before: list[Any], after: list[Any]):
    bills = [found(**each) for each in before], [found(**each) for each in after]
    assert paired(*bills) == two_by_two(*bills)


def two_by_two(before: list[Finding], after: list[Finding]) -> dict[int, int]:
    """Pair as `paired` does, by comparing every finding with every other one."""
    candidates = [
        (alike, -row, -to)
        for row, one in enumerate(before)
        for to, other in enumerate(after)
        if (alike := likeness(one, other)) is not None
    ]
    pairs: dict[int, int] = {}
    for _, row, to in sorted(candidates, reverse=True):
        if -row not in pairs and -to not in pairs.values():
            pairs[-row] = -to
    files = [
        {each.where.source.split(":")[0] for each in bill if each.where.source} for bill in (before, after)
    ]
    for rule in (
        same_finding._moved,
        partial(same_finding._renamed, files_before=files[0], files_after=files[1]),
    ):
        for row, one in enumerate(before):
            left = [to for to, other in enumerate(after) if to not in pairs.values() and rule(one, other)]
            if row not in pairs and left:
                pairs[row] = left[0]
    return pairs


@pytest.mark.parametrize("copies", [1, 50, 5_000])
def test_findings_of_one_place_are_compared_once_however_many_there_are(monkeypatch, copies: int):
    """A damaged or hostile report may repeat its findings thousands of times."""
    three = ({}, {"module": "head", "op": "y", "source": "b.py:1 (g)"}, {"kind": "latency-bound"})
    bill = [found(**each) for _ in range(copies) for each in three]
    calls = []
    monkeypatch.setattr(same_finding, "likeness", lambda *both: calls.append(both) or likeness(*both))
    assert paired(bill, bill) == {row: row for row in range(len(bill))}
    assert len(calls) == 9


def test_so_many_different_places_are_compared_and_the_others_found_by_equality(monkeypatch):
    monkeypatch.setattr(same_finding, "MOST_COMPARED", 10)
    bill = [found(module=f"m{number}", source=f"a.py:1 (f{number})") for number in range(40)]
    calls = []
    monkeypatch.setattr(same_finding, "likeness", lambda *both: calls.append(both) or likeness(*both))
    assert paired(bill, bill[::-1]) == {row: 39 - row for row in range(40)}
    assert len(calls) <= 100
