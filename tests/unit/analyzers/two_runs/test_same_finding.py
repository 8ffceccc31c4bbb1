"""Findings of two runs are the same by kind and place, wherever their lines went."""

from __future__ import annotations

from typing import Any

import pytest

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
