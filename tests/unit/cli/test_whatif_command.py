"""`shardtoll whatif`: what its arguments mean, and mistakes in them said in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def test_every_fix_given_counts_once(shardtoll: Callable[..., Any], run: Path) -> None:
    ran = shardtoll("whatif", run, "--json", "--fix", "1", "--fix", "1")
    assert ran.code == 0, ran.err
    assert [change["number"] for change in json.loads(ran.out)["changes"]] == [1]
    for fixes in (("--fix", "99", "--fix", "1"), ("--fix", "1", "--fix", "99")):
        ran = shardtoll("whatif", run, *fixes)
        assert ran.code == 2
        assert "there is no finding 99" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fix", "1", "--fix", "one"), "there is no finding one: give 1 to "),
        (("--fix", ""), "there is no finding '': give 1 to "),
        (("--batch-ready",), "--batch-ready: the record has no wait for a batch that makes a step longer"),
    ],
)
def test_a_mistake_is_one_line(
    shardtoll: Callable[..., Any], run: Path, arguments: tuple[str, ...], words: str
) -> None:
    ran = shardtoll("whatif", run, *arguments)
    assert ran.code == 2
    assert words in ran.err
    assert len(ran.err.strip().splitlines()) == 1
