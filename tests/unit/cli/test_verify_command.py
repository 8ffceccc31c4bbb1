"""`shardtoll verify`: what it prints, writes, keeps and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.analyzers.two_runs.same_finding import numbered
from shardtoll.ledger import Report
from tests import sample_reports

BEFORE = sample_reports.report()


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two saved reports; the second has the third finding only."""
    after = replace(BEFORE, findings=BEFORE.findings[2:])
    paths = tmp_path / "before.json", tmp_path / "after.json"
    for path, report in zip(paths, (BEFORE, after), strict=True):
        path.write_text(report.to_json())
    return paths


def save(path: Path, report: Report) -> Path:
    path.write_text(report.to_json())
    return path


def test_what_is_gone_passes_and_is_scored(shardtoll, runs, tmp_path: Path):
    ran = shardtoll("verify", *runs, "--finding", "implicit-redistribute")
    assert (ran.code, ran.err) == (0, "")
    assert "passed: 1 of 1 finding gone, gradients unknown" in ran.out
    scores = tmp_path / "verify-scores.jsonl"
    assert f"--scores {scores}" in ran.out.replace("\n", "")
    shardtoll("verify", *runs, "--finding", "implicit-redistribute")
    ran = shardtoll("verify", "--history", "--scores", scores)
    assert ran.code == 0
    assert "1 of 1 verified fix gone" in ran.out


def test_numbers_are_those_of_the_printed_bill():
    assert numbered(BEFORE) == list(enumerate(BEFORE.findings, start=1))
    assert [number for number, _ in numbered(sample_reports.hostile())] == list(range(1, 12))


@pytest.mark.parametrize(
    "options", [("--finding", "1,2"), ("--finding", 1, "--finding", 2), ("--finding", "1-2")]
)
def test_several_findings_are_asked_for_in_any_form(shardtoll, runs, options: tuple):
    ran = shardtoll("verify", *runs, *options, "--no-scores")
    assert (ran.code, ran.err) == (0, "")
    assert "passed: 2 of 2 findings gone" in ran.out


def test_what_is_still_there_is_exit_code_1(shardtoll, runs, tmp_path: Path):
    ran = shardtoll("verify", *runs, "--finding", 3, "--no-scores")
    assert ran.code == 1
    assert "still there latency-bound" in ran.out
    assert not (tmp_path / "verify-scores.jsonl").exists()


@pytest.mark.parametrize("width", [40, 60, 80, 140, 200])
def test_it_fits_every_width(shardtoll, runs, width: int):
    ran = shardtoll("verify", *runs, "--no-scores", "--width", width)
    assert max(map(len, ran.out.splitlines())) <= width
    words = ran.out.split()
    for word in ("gone", "implicit-redistribute", "wrong-gradient", "saving"):
        assert word in words


def test_json_alone_stands_on_stdout(shardtoll, runs, tmp_path: Path):
    target = tmp_path / "v.json"
    ran = shardtoll("verify", *runs, "--json", "-o", target, "--scores", tmp_path / "s.jsonl")
    assert json.loads(ran.out) == json.loads(target.read_text())
    assert f"wrote {target}" in ran.err
    document = json.loads(ran.out)
    assert [one["verdict"] for one in document["findings"]] == ["gone", "gone"]
    assert document["saving"]["kept"] == "cannot be told" or document["saving"]["measured_ns"] == 0


def test_markdown(shardtoll, runs, tmp_path: Path):
    shardtoll("verify", *runs, "-o", tmp_path / "v.md", "--no-scores")
    text = (tmp_path / "v.md").read_text()
    assert text.startswith("# shardtoll verify: ")
    assert "| implicit-redistribute: " in text.replace("| 2 ", "")


def test_names_of_users_cannot_act(shardtoll, tmp_path: Path):
    path = save(tmp_path / "hostile.json", sample_reports.hostile())
    ran = shardtoll("verify", path, path, "-o", tmp_path / "v.md", "--no-scores")
    assert ran.code == 1
    assert "\x1b" not in ran.out
    text = (tmp_path / "v.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text


def test_runs_without_anything(shardtoll, tmp_path: Path):
    path = save(tmp_path / "empty.json", sample_reports.empty())
    ran = shardtoll("verify", path, path, "--no-scores")
    assert ran.code == 0
    assert "nothing to judge" in ran.out


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "verify needs two runs: give RUN_BEFORE and RUN_AFTER, or --history"),
    (["{0}"], "verify needs two runs: give RUN_BEFORE and RUN_AFTER, or --history"),
    (["{0}", "{1}", "--finding", "9"],
     "{0} has no finding '9': give 1 to 3, or one of wrong-gradient, implicit-redistribute, latency-bound"),
    (["{0}", "nope"], "there is no file or folder nope"),
    (["{0}", "{1}", "-o", "x.pdf"], "-o x.pdf ends in none of .json, .md: end the file's name"),
    (["{0}", "{1}", "--fabric", "a100x8"], "--fabric does not apply to {0}"),
    (["{0}", "{1}", "--scores", "no/s.jsonl"], "cannot write no/s.jsonl (No such file or directory): name"),
    (["{0}", "{1}", "--no-scores", "--scores", "s"], "--no-scores is given with --scores or --history"),
    (["--history", "{0}"], "--history is given with runs to verify"),
    (["--history", "--scores", "none"], "cannot read none (No such file or directory): verify a pair"),
])  # fmt: skip
def test_mistakes_are_one_line(shardtoll, runs, arguments: list[str], says: str):
    ran = shardtoll("verify", *(word.format(*runs) for word in arguments))
    assert ran.code == 2
    assert ran.err.startswith(f"shardtoll: {says.format(*runs)}")
    assert ran.err.count("\n") == 1


def test_a_place_for_the_score_is_looked_for_before_the_work(shardtoll, runs):
    ran = shardtoll("verify", *runs, "--scores", "no/s.jsonl")
    assert ran.out == ""


def test_the_history_names_damaged_lines(shardtoll, runs, tmp_path: Path):
    scores = tmp_path / "s.jsonl"
    shardtoll("verify", *runs, "--scores", scores)
    with scores.open("a") as file:
        file.write("{}\n" * 7)
    for width in (60, 140):
        ran = shardtoll("verify", "--history", "--scores", scores, "--width", width)
        assert "7 damaged lines left out: 2, 3, 4, 5, 6, ..." in ran.out
        assert "wrong-gradient" in ran.out
        assert max(map(len, ran.out.splitlines())) <= width
