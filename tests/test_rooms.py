"""What rooms export: type checkers and Python see the same names, and each can be read."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOTS = ("ledger", "profiler", "analyzers", "dashboards", "cli")
HERE = Path(__file__).parents[1]


def _rooms() -> list[Path]:
    """Return the `__init__.py` of every room that exports lazily."""
    doors = sorted(path for root in ROOTS for path in (HERE / root).rglob("__init__.py"))
    return [path for path in doors if "exports(" in path.read_text(encoding="utf-8")]


def _name(door: Path) -> str:
    return ".".join(["shardtoll", *door.parent.relative_to(HERE).parts])


def _checked(tree: ast.Module) -> set[tuple[str, str]]:
    """Return (module, name) of what the room imports for type checkers."""
    return {
        (str(node.module), str(alias.asname))
        for outer in tree.body
        if isinstance(outer, ast.If)
        for node in outer.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _exported(tree: ast.Module, room: str) -> set[tuple[str, str]]:
    """Return (module, name) of what the room hands to `exports`."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "exports"
    ]
    (call,) = calls
    names: dict[str, str] = ast.literal_eval(call.args[1])
    return {(f"{room}.{module}", name) for module, several in names.items() for name in several.split()}


def test_some_room_exports() -> None:
    assert HERE / "ledger" / "__init__.py" in _rooms()


@pytest.mark.parametrize("door", _rooms(), ids=_name)
def test_type_checkers_and_python_see_the_same_names(door: Path) -> None:
    tree = ast.parse(door.read_text(encoding="utf-8"))
    assert _checked(tree) == _exported(tree, _name(door))


@pytest.mark.parametrize("door", _rooms(), ids=_name)
def test_every_export_can_be_read_and_hides_no_module(door: Path) -> None:
    room = import_module(_name(door))
    for module, name in _exported(ast.parse(door.read_text(encoding="utf-8")), _name(door)):
        assert getattr(room, name) is getattr(import_module(module), name)
        assert name in dir(room)
        assert not (door.parent / f"{name}.py").exists()
        assert not (door.parent / name).exists()


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"module 'shardtoll\.ledger' has no attribute 'Tax'"):
        import_module("shardtoll.ledger").Tax  # noqa: B018


def test_the_ledger_is_imported_without_its_tables() -> None:
    code = "import sys, shardtoll.ledger as room; print(*sys.modules); room.UsageError; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after = (set(line.split()) for line in shown.splitlines())
    assert "shardtoll.ledger.records.errors" in after - before
    assert not {"pyarrow", "numpy", "pandas"} & after
