"""The frame of an installed library stands beside the user's line that called it."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardtoll.profiler.live.cause.frames import Stack

LIBRARY = """
import functools
import sys

def fit(stack):
    return _inner(stack)

def _inner(stack):
    return stack.cause(sys._getframe())

def calls(function):
    return function()

def through_partial(stack):
    return functools.partial(_inner, stack)()
"""


@pytest.fixture
def acme(tmp_path: Path) -> ModuleType:
    file = tmp_path / "site-packages" / "acme" / "loops" / "fit.py"
    file.parent.mkdir(parents=True)
    file.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("acme_loops_fit", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_innermost_line_of_the_library_stands_with_the_users_line(acme: Any) -> None:
    cause = acme.fit(Stack())
    assert cause.library == "acme/loops/fit.py:9 (_inner)"
    assert "test_library_lines.py" in cause.source
    assert acme.through_partial(Stack()).library == "acme/loops/fit.py:9 (_inner)"


def test_a_library_that_calls_the_users_code_is_not_beside_it(acme: Any) -> None:
    stack = Stack()
    cause = acme.calls(lambda: stack.cause(sys._getframe()))
    assert "(<lambda>)" in cause.source
    assert cause.library is None


def test_pythons_own_library_is_none() -> None:
    stack = Stack()

    @functools.lru_cache
    def here(_: int) -> Any:
        return stack.cause(sys._getframe())

    assert here(1).library is None


def test_without_a_line_of_the_users_the_librarys_is_the_source(acme: Any) -> None:
    class Outermost(Stack):
        def classify(self, code: Any) -> Any:
            facts = super().classify(code)
            if "test_library_lines" in code.co_filename or facts.is_user:
                facts = self.known[id(code)] = type(facts)(code, None, None, False)
            return facts

    cause = acme.fit(Outermost())
    assert (cause.library, cause.source) == (None, "loops/fit.py:9 (_inner)")
