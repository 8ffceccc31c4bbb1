"""`shardtoll compare` on real runs: what was planted is named, whatever the machine does meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.analyzers.compare.compare import compare
from shardtoll.ledger import Report, analyze, read_run
from tests.live import compare_programs as programs
from tests.live.launch import run_ranks
from tests.unit.analyzers.counted_alike import agree

pytestmark = pytest.mark.live


def report(folder: Path, planted: str = "none", level: str = "survey") -> Report:
    run_ranks(programs.train, 2, str(folder), planted, level)
    return analyze(read_run(folder))


def test_a_planted_all_gather_and_a_planted_format_are_named(tmp_path: Path):
    plain, again = report(tmp_path / "a"), report(tmp_path / "b")
    same = compare(plain, again, ("a", "b"))
    assert {one.what for one in same.sites} <= {"none", "time"}
    assert not any(one.work.changed or one.formats for one in same.modules)
    gathered = compare(plain, report(tmp_path / "c", "all_gather"), ("a", "c"))
    (added,) = [one for one in gathered.sites if one.what in ("added", "removed", "dtype", "size", "count")]
    assert (added.what, added.op, added.calls.difference) == ("added", "all_gather", 1)
    assert added.source is not None
    assert "compare_programs.py" in added.source
    assert any(cause.text.startswith("added all_gather") for cause in gathered.causes)
    narrow = compare(plain, report(tmp_path / "d", "bfloat16"), ("a", "d"))
    changed = [one for one in narrow.sites if one.what not in ("none", "time")]
    assert {(one.what, one.op, one.dtypes) for one in changed} == {
        ("dtype", "all_reduce", ("float32", "bfloat16"))
    }
    assert "float32 -> bfloat16 in all_reduce" in " ".join(cause.text for cause in narrow.causes)


def test_compare_and_verify_count_alike_whatever_the_level(tmp_path: Path):
    runs = [report(tmp_path / "a"), report(tmp_path / "b", "all_gather", "schedule")]
    runs.append(report(tmp_path / "c", "all_gather", "watch"))
    for before, after, more in ((0, 1, 1), (1, 2, 0)):
        calls = agree(runs[before], runs[after])["collectives"]
        assert calls == (5 - more, 5, None, (False, False))
