"""`shardtoll check` and `shardtoll budget init`: exit codes, files, annotations, mistakes in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.cli.check import in_checkout
from shardtoll.ledger import Finding, Where
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.unit.cli.conftest import write_run

FOUR = 'max_collectives = 4\nno_implicit = ["head"]\n'


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


def test_what_is_over_is_printed_with_its_line_and_the_exit_code_is_1(shardtoll, run_folder: Path):
    Path("budget.toml").write_text(FOUR)
    ran = shardtoll("check", run_folder, "-o", "over.json", "-o", "over.md", "--width", "120")
    assert (ran.code, ran.err) == (1, "")
    assert "1 over budget, 1 unknown: 2 limits on 2 steps of 4 ranks" in ran.out
    assert "6 collectives, 4 collectives allowed" in ran.out
    assert "at train.py:42 (step), step 0, rank 0" in ran.out
    document = json.loads(Path("over.json").read_text())
    assert [one["limit_name"] for one in document["overruns"]] == ["max_collectives", "no_implicit"]
    assert (document["schema_version"], document["passed"]) == (1, False)
    assert Path("over.md").read_text().startswith("# shardtoll check: not passed\n")
    printed = shardtoll("check", run_folder, "--json")
    assert json.loads(printed.out) == document


def test_what_is_within_passes(shardtoll, run_folder: Path):
    Path("b.toml").write_text("max_collectives = 6\n")
    ran = shardtoll("check", run_folder, "--budget", "b.toml", "--github")
    assert (ran.code, ran.err) == (0, "")
    assert "within budget: 1 limit on 2 steps of 4 ranks" in ran.out
    assert "::error" not in ran.out
    Path("b.toml").write_text('no_implicit = ["head"]\n')
    assert shardtoll("check", run_folder, "--budget", "b.toml").code == 1
    assert shardtoll("check", run_folder, "--budget", "b.toml", "--allow-unknown").code == 0


def test_annotations_come_by_themselves_on_github(
    shardtoll, run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    Path("budget.toml").write_text(FOUR)
    assert "::error" not in shardtoll("check", run_folder).out
    Path("src/job").mkdir(parents=True)
    Path("src/job/train.py").touch()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(Path.cwd()))
    told = [line for line in shardtoll("check", run_folder).out.splitlines() if line.startswith("::")]
    assert told[0].startswith(
        "::error file=src/job/train.py,line=42,title=over%3A max_collectives and 1 more::6 collectives, 4"
    )
    assert "::" not in shardtoll("check", run_folder, "--no-github").out
    ran = shardtoll("check", run_folder, "--json")
    assert ran.err.startswith("::error")
    assert json.loads(ran.out)["passed"] is False


def test_several_runs_fail_when_one_does(shardtoll, run_folder: Path):
    write_run(Path("mended"), mended=True)
    Path("budget.toml").write_text("max_collectives = 0\n")
    assert shardtoll("check", "mended").code == 0
    ran = shardtoll("check", "mended", run_folder, "--json")
    assert ran.code == 1
    assert [json.loads(line)["passed"] for line in ran.out.splitlines()] == [True, False]


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (None, "cannot be read"),
        ("", "limits nothing"),
        ("skip_steps = 1\n", "limits nothing"),
        ("max_colectives = 1\n", "did you mean max_collectives?"),
        ("max_collectives = \n", "no TOML"),
        ("max_collectives = 1\nskip_steps = 9\n", "no finished step after the first 9"),
    ],
)
def test_an_unusable_budget_is_told_in_a_line(shardtoll, run_folder: Path, budget: str | None, said: str):
    if budget is not None:
        Path("budget.toml").write_text(budget)
    ran = shardtoll("check", run_folder)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_other_mistakes_are_told_in_a_line(shardtoll, run_folder: Path):
    Path("budget.toml").write_text(FOUR)
    for arguments in (
        ("check", "nowhere"),
        ("check", run_folder, "-o", "x.html"),
        ("check", run_folder, run_folder, "-o", "x.md"),
        ("budget", "init", run_folder),
        ("budget", "init", "nowhere", "-o", "new.toml"),
        ("budget", "init", run_folder, "-o", "nowhere/new.toml"),
        ("budget", "init", run_folder, "-o", "new.toml", "--slack", "much"),
        ("budget", "init", run_folder, "-o", "new.toml", "--slack", "-1%"),
        ("budget", "init", run_folder, "-o", "new.toml", "--slack", "nan"),
        ("budget", "init", run_folder, "-o", "new.toml", "--skip-steps", "2"),
    ):
        ran = shardtoll(*arguments)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert ran.err.count("\n") == 1, arguments
    assert not Path("new.toml").exists()
    assert Path("budget.toml").read_text() == FOUR


def test_a_run_keeps_the_budget_that_init_wrote(shardtoll, run_folder: Path):
    ran = shardtoll("budget", "init", run_folder)
    assert (ran.code, ran.err) == (0, "")
    assert "wrote budget.toml" in ran.out
    text = Path("budget.toml").read_text()
    assert "max_collectives = 6\n" in text
    without_time = "# max_step_ms: not written" in text
    assert ("no limit on the step's time: budget.toml says why" in ran.out) == without_time
    assert '[group."tp"]\n' in text
    assert shardtoll("check", run_folder).code == 0
    assert shardtoll("budget", "init", run_folder, "--force", "--slack", "50%").code == 0
    assert Path("budget.toml").read_text() != text
    assert shardtoll("check", run_folder).code == 0


def test_a_budget_of_a_run_with_wrong_results_says_that_it_allows_them(shardtoll):
    wrong = Finding("unsynced-parameter", "warning", "t", None, None, None, None, 1, (0,), Where())
    whole = sample_reports.report()
    tables = {**whole.tables, "notices": to_table("notices", [])}
    Path("x.json").write_text(replace(whole, findings=(wrong,), tables=tables).to_json())
    ran = shardtoll("budget", "init", "x.json", "-o", "made.toml")
    assert ran.code == 0
    assert ran.err == (
        "x.json has wrong results, which made.toml allows: unsynced-parameter. Fix them first, "
        "then write the budget anew with --force.\n"
    )
    assert '"unsynced-parameter"' not in Path("made.toml").read_text()


def test_names_of_a_run_stay_text(shardtoll):
    Path("x.json").write_text(sample_reports.hostile().to_json())
    Path("budget.toml").write_text(
        'max_collectives = 0\nno_implicit = ["*"]\nforbid = ["implicit-redistribute"]\n'
    )
    ran = shardtoll("check", "x.json", "--github", "-o", "x.md")
    assert ran.code == 1
    for text in (ran.out, Path("x.md").read_text()):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 200_000
    commands = [line for line in ran.out.splitlines() if line.startswith("::")]
    assert commands
    assert all(line.startswith(("::error ", "::warning ")) for line in commands)
    assert "<script>" not in Path("x.md").read_text()
    assert shardtoll("budget", "init", "x.json", "-o", "made.toml").code == 0
    assert shardtoll("check", "x.json", "--budget", "made.toml").code == 0


def test_files_are_found_by_the_end_of_their_path(tmp_path: Path):
    for name in ("a/job/train.py", "a/one.py", "b/one.py", ".git/train.py", "node_modules/job/train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = [
        "job/train.py",
        "one.py",
        "b/one.py",
        "none.py",
        str(tmp_path / "a/one.py"),
        "ob/train.py",
        "",
        "/",
    ]
    assert in_checkout(str(tmp_path), names) == {
        "job/train.py": "a/job/train.py",
        "b/one.py": "b/one.py",
        str(tmp_path / "a/one.py"): "a/one.py",
    }
