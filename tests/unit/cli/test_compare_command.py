"""`shardtoll compare`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from shardtoll.ledger.answers.comparison import Comparison
from tests.unit.analyzers.compare_runs import CALLS, made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    paths = folder / "a.json", folder / "b.json"
    for path, report in zip(paths, (made(0, steps=14), made(1, steps=14, calls=CALLS[:2])), strict=True):
        path.write_text(report.to_json())
    return paths


def test_the_first_line_is_the_answer(shardtoll, runs):
    ran = shardtoll("compare", *runs, "--width", 200)
    assert (ran.code, ran.err) == (0, "")
    assert "removed reduce_scatter by FSDP.reduce in head at train.py:30 (step)" in ran.out.split("\n")[0]
    same = shardtoll("compare", runs[0], runs[0])
    assert (same.code, same.out.split(":")[0]) == (0, "no change beyond noise")


def test_json_alone_stands_on_stdout_and_has_its_fields(shardtoll, runs, tmp_path: Path):
    target = tmp_path / "c.json"
    ran = shardtoll(
        "compare", *runs, "--json", "-o", target, "-o", tmp_path / "c.md", "-o", tmp_path / "c.html"
    )
    document = json.loads(ran.out)
    assert document == json.loads(target.read_text())
    assert ran.err.count("wrote ") == 3
    assert set(document) == {"schema_version", *(field.name for field in fields(Comparison))}
    assert document["verdict"] == "changed"
    assert (tmp_path / "c.md").read_text().startswith("# shardtoll compare: changed")
    assert (tmp_path / "c.html").read_text().startswith("<!DOCTYPE html>")


def test_every_field_of_the_json_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "compare.md").read_text(encoding="utf-8")
    for field in fields(Comparison):
        assert f"`{field.name}`" in text, field.name


def test_equal_work(shardtoll, runs):
    ran = shardtoll(
        "compare", *runs, "--work-before", 100, "--work-after", 200, "--unit", "samples", "--json"
    )
    document = json.loads(ran.out)
    assert document["unit"] == "100 samples"
    assert document["step"]["after"] < 0.6 * document["step"]["before"]


@pytest.mark.parametrize(("arguments", "says"), [
    (["{0}", "nope"], "there is no file or folder nope"),
    (["{0}", "{1}", "-o", "x.pdf"], "-o x.pdf ends in none of .html, .json, .md: end the file's name"),
    (["{0}", "{1}", "--fabric", "a100x8"], "--fabric does not apply to {0}"),
    (["{0}", "{1}", "--work-before", "1"], "one of --work-before and --work-after is missing: give the work"),
    (["{0}", "{1}", "--work-before", "0", "--work-after", "1"], "--work-before and --work-after must be"),
    (["{0}", "{1}", "--work-before", "nan", "--work-after", "1"], "--work-before and --work-after must be"),
    (["{0}", "{1}", "--warm-up", "99"], "--warm-up 99 leaves no step of a run of 14: leave out fewer"),
    (["{0}", "{1}", "--scaling", "up"], "--scaling up is not known: give strong or weak"),
    (["{0}", "{1}", "--scaling", "weak", "--work-before", "1", "--work-after", "1"], "--scaling is given"),
])  # fmt: skip
def test_mistakes_are_one_line(shardtoll, runs, arguments: list[str], says: str):
    ran = shardtoll("compare", *(word.format(*runs) for word in arguments))
    assert ran.code == 2
    assert ran.err.startswith(f"shardtoll: {says.format(*runs)}")
    assert ran.err.count("\n") == 1
