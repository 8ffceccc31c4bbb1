"""What docstrings refer to exists, and each text below a name belongs to that name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("ledger", "profiler", "analyzers", "dashboards", "cli")
HERE = Path(__file__).parents[1]
REFERENCE = re.compile(rf"`((?:{'|'.join(ROOTS)})(?:\.[A-Za-z_]+)+)`")
FILES = sorted(path for root in ROOTS for path in (HERE / root).rglob("*.py"))


def texts(tree: ast.Module) -> Iterator[tuple[ast.stmt | None, ast.Expr]]:
    """Yield the strings that stand alone, each with the statement before it; None: it is a docstring."""
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        body = getattr(node, "body", None)
        for place, statement in enumerate(body if isinstance(body, list) else ()):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield (None if place == 0 and documented else body[place - 1]), statement


def loose(tree: ast.Module) -> list[int]:
    """Return the lines of texts that do not follow the name they describe."""
    return [
        text.lineno
        for before, text in texts(tree)
        if before is not None
        and not (isinstance(before, (ast.Assign, ast.AnnAssign)) and before.end_lineno == text.lineno - 1)
    ]


def exists(reference: str) -> bool:
    """Whether a dotted name is a room or a module of ours, or begins with a module."""
    path = HERE
    for part in reference.split("."):
        path = path / part
        if path.with_suffix(".py").exists():
            return True
    return (path / "__init__.py").exists()


def test_each_text_follows_what_it_describes() -> None:
    places = [
        f"{path.relative_to(HERE)}:{line}"
        for path in FILES
        for line in loose(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert places == []


def test_a_text_without_its_name_is_seen() -> None:
    source = (
        '"""Module."""\nimport math\n\n"""Of nothing."""\nHALF = 0.5\n"""A half."""\n\n"""Left over."""\n'
    )
    assert loose(ast.parse(source)) == [4, 8]


def test_modules_that_texts_name_exist() -> None:
    named = {
        (str(path.relative_to(HERE)), name)
        for path in FILES
        for name in REFERENCE.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert sorted((path, name) for path, name in named if not exists(name)) == []
    assert not exists("ledger.told")
    assert exists("ledger.records.levels.exposure_told")
