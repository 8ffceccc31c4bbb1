"""Remedies that remove or replace a collective are executed: no result and no gradient changes by a bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.live import remedy_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

CASES = tuple(programs.cases(None))  # type: ignore[arg-type]


@cache
def applied(ranks: int) -> list[dict[str, Any]]:
    return run_ranks(programs.applied, ranks, limit_s=200)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_code_gives_what_the_needless_collective_gave(case: str, ranks: int) -> None:
    for answer in applied(ranks):
        assert len(answer[case]["titles"]) == 1
        assert answer[case]["changed"] == [], answer[case]["code"]


@pytest.mark.parametrize("case", CASES)
def test_no_code_says_that_something_is_itself(case: str) -> None:
    code = applied(2)[0][case]["code"]
    for line in code.splitlines():
        target, _, value = line.partition("#")[0].partition(" = ")
        assert target.strip() != value.strip(), line


def test_one_call_for_many_gives_each_tensor_what_it_got_alone() -> None:
    for answer in run_ranks(programs.one_by_one_and_coalesced, 2):
        assert all(answer.values()), answer
        assert len(answer) == 6
