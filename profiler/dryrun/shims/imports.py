"""Whether a program goes on if a package that it imports is not installed."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

_CAUGHT: Final = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
_HOLDERS: Final = (ast.stmt, ast.excepthandler, ast.match_case)
"""Nodes that hold statements, and statements themselves."""


def can_do_without(frame: FrameType | None, is_users: Callable[[FrameType], bool]) -> bool:
    """Whether the import that goes on now may fail: the program only looks, or catches the error.

    The handler may stand around the import itself, or around the import of the module that it is in. A
    handler that raises an error in turn does not count.
    """
    innermost = True
    while frame is not None:
        if frame.f_code.co_name == "find_spec" and frame.f_globals.get("__name__") == "importlib.util":
            return True
        if is_users(frame):
            if _is_caught(frame, only_imports=not innermost):
                return True
            innermost = False
        frame = frame.f_back
    return False


def _is_caught(frame: FrameType, *, only_imports: bool) -> bool:
    """Whether the frame's present line stands where an import may fail."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    for block in ast.walk(tree):
        if isinstance(block, ast.Try):
            catches = any(_catches(handler) for handler in block.handlers)
        else:
            catches = isinstance(block, ast.With) and any(map(_suppresses, block.items))
        if catches and any(_runs(part, frame.f_lineno, only_imports) for part in _body(block)):
            return True
    return False


def _body(block: ast.AST) -> list[ast.stmt]:
    return list(getattr(block, "body", ()))


def _runs(part: ast.stmt, line: int, only_imports: bool) -> bool:
    """Whether the line is in this part; a function that is defined there runs elsewhere."""
    return any(
        statement.lineno <= line <= (statement.end_lineno or statement.lineno)
        and (isinstance(statement, (ast.Import, ast.ImportFrom)) or not only_imports)
        for statement in _here(part)
    )


def _here(part: ast.AST) -> Iterator[ast.stmt]:
    if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    nested = [child for child in ast.iter_child_nodes(part) if isinstance(child, _HOLDERS)]
    if isinstance(part, ast.stmt) and not nested:
        yield part
    for child in nested:
        yield from _here(child)


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_is_error(kind) for kind in kinds) and not any(
        isinstance(part, ast.Raise) for part in ast.walk(handler)
    )


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    return (
        isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("suppress")
        and any(_is_error(kind) for kind in call.args)
    )


def _is_error(kind: ast.expr | None) -> bool:
    return kind is None or ast.unparse(kind) in _CAUGHT
