"""The picture of the house is today's, nothing imports in a circle, and the contract refuses a new arrow."""

from __future__ import annotations

import ast
import re
from copy import deepcopy

import pytest

pytest.importorskip("importlinter", reason="import-linter comes with the lint extra")
from docs import house

PATHS = re.compile(r"`((?:ledger|profiler|analyzers|dashboards|cli|samples|tests|benchmarks|docs)/[\w./-]*)`")

NAMES = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def test_the_picture_is_todays_and_nothing_imports_in_a_circle(capsys):
    assert house.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arrows", "named"),
    [
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, {"a", "b", "c"}),
        ({"a": ["b"], "b": ["a"], "c": ["a"]}, {"a", "b"}),
    ],
)
def test_a_circle_is_named(arrows, named):
    assert set(house.circle(arrows)) == named


def test_a_chain_is_no_circle():
    assert house.circle({"a": ["b", "c"], "b": ["c"]}) is None


def test_a_picture_leaves_out_what_other_arrows_say():
    assert house.bare({"a": ["b", "c"], "b": ["c"], "c": []}) == {"a": {"b"}, "b": {"c"}, "c": set()}


def contract():
    lines = house.listed(house.room_arrows(house.house()))
    return house.MeantArrows("rooms", {}, {"arrows": lines})


def test_the_contract_holds_todays_arrows():
    assert contract().check(house.house(), verbose=False).kept


def test_an_arrow_that_nobody_meant_breaks_the_contract():
    graph = deepcopy(house.house())
    graph.add_import(importer="shardtoll.ledger.records.errors", imported="shardtoll.ledger.disk.run_reader")
    checked = contract().check(graph, verbose=False)
    assert not checked.kept
    assert checked.metadata["not meant"] == [("ledger.records", "ledger.disk")]


def test_an_arrow_that_nothing_draws_any_more_breaks_the_contract():
    lines = [*house.listed(house.room_arrows(house.house())), "ledger.records -> ledger.disk"]
    checked = house.MeantArrows("rooms", {}, {"arrows": lines}).check(house.house(), verbose=False)
    assert not checked.kept
    assert checked.metadata["meant, but nothing imports so"] == [("ledger.records", "ledger.disk")]


@pytest.mark.parametrize(
    ("sentence", "lost"),
    [
        ("Start reading in `first`.", None),
        ("Start reading in `inner.second`, which calls `first`.", None),
        ("Start reading in `inner`.", None),
        ("Start reading in `gone`.", "no gone to start reading in"),
        ("It may import `first`.", "does not say"),
    ],
)
def test_a_room_names_an_existing_module_to_start_reading_in(tmp_path, sentence, lost):
    inner = tmp_path / "inner"
    inner.mkdir()
    for path in (tmp_path / "first.py", inner / "__init__.py", inner / "second.py"):
        path.touch()
    (tmp_path / "__init__.py").write_text(f'"""A room.\n\n{sentence}\n"""\n', encoding="utf-8")
    lines = house.lost_starts([tmp_path])
    assert len(lines) == (lost is not None)
    assert all(lost in line for line in lines)


def test_a_folder_of_data_needs_no_module_to_start_reading_in(tmp_path):
    (tmp_path / "__init__.py").write_text('"""Tables."""\n', encoding="utf-8")
    assert house.lost_starts([tmp_path]) == []


def test_every_path_that_contributing_names_exists():
    written = house.PAGE.read_text(encoding="utf-8")
    named = [path for path in PATHS.findall(written) if not re.search("NAME|KIND", path)]
    assert len(named) > 20
    missing = [path for path in named if not (house.ROOT / path).exists()]
    assert not missing


def names_in(tree):
    """Return the functions, classes (with their methods) and constants of a module."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_every_name_that_contributing_points_at_exists():
    pointers = NAMES.findall(house.PAGE.read_text(encoding="utf-8"))
    assert len(pointers) > 15
    missing = [
        f"{path}:{name}"
        for path, name in pointers
        if not (house.ROOT / path).exists()
        or name not in names_in(ast.parse((house.ROOT / path).read_text(encoding="utf-8")))
    ]
    assert not missing
