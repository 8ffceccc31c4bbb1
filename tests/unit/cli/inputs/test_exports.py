"""Every ending that `-o` takes, and every example of docs/exports.md."""

from __future__ import annotations

import ast
import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

from shardtoll.cli.inputs.outputs import WRITERS
from shardtoll.ledger import Report
from tests import trace_events

DOCS = (Path(__file__).parents[4] / "docs" / "exports.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.+)$", DOCS, flags=re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```$", DOCS, flags=re.MULTILINE | re.DOTALL)


def test_every_ending_is_documented_and_has_an_example():
    told = re.findall(r"`(\.[a-z.]+)`", DOCS.split("\n\n")[2])
    assert told == [".html", ".json", *list(WRITERS)[2:]]
    endings = {word.partition("bill")[2] for line in COMMANDS for word in shlex.split(line, comments=True)}
    assert endings - {""} == {*WRITERS} - {".html", ".json", ".perfetto.json"}


@pytest.mark.parametrize("line", COMMANDS)
def test_every_example_writes_its_file(
    line: str, shardtoll, run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(run_folder.parent.parent)
    words = shlex.split(line, comments=True)
    ran = shardtoll(*words[1:])
    assert (ran.code, ran.err) == (0, "")
    written = re.findall(r"^wrote (.+)$", ran.out, flags=re.MULTILINE)
    assert written[0] == words[-1]
    # The comment names the files beside it.
    assert set(re.findall(r"bill\.[a-z.]+[a-z]", line)) <= set(written)
    assert all(Path(name).stat().st_size for name in written)


def test_the_python_of_the_docs_runs_or_calls_what_exists(
    shardtoll, run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(run_folder.parent.parent)
    shardtoll("report", run_folder, "-o", "bill.parquet")
    frames, trackers = PYTHON
    exec(compile(frames, "exports.md", "exec"), {})
    assert "blocks.0.mlp" in capsys.readouterr().out
    called = {node.attr for node in ast.walk(ast.parse(trackers)) if isinstance(node, ast.Attribute)}
    assert {"to_wandb", "to_mlflow", "to_tensorboard"} <= called
    assert all(hasattr(Report, name) for name in called if name.startswith("to_"))


def test_the_whole_name_chooses_whatever_its_case(shardtoll, run_folder: Path, tmp_path: Path):
    names = ["x.perfetto.json", "y.Perfetto.JSON.gz", "perfetto.json", "x.v2.JSON", "trace.perfetto.md"]
    ran = shardtoll("report", run_folder, *(word for name in names for word in ("-o", tmp_path / name)))
    assert ran.code == 0
    trace = (tmp_path / "x.perfetto.json").read_text()
    assert trace_events.check(trace)
    assert gzip.decompress((tmp_path / "y.Perfetto.JSON.gz").read_bytes()).decode() == trace
    for name in ("perfetto.json", "x.v2.JSON"):
        assert json.loads((tmp_path / name).read_text())["schema_version"] == 1
    assert (tmp_path / "trace.perfetto.md").read_text().startswith("## shardtoll")


@pytest.mark.parametrize(
    "name", ["x", "x.gz", "x.json.gz", ".json", ".perfetto.json", "x.perfetto", "x.csv.zip"]
)
def test_another_ending_is_one_line_that_names_them_all(
    name: str, shardtoll, run_folder: Path, tmp_path: Path
):
    ran = shardtoll("report", run_folder, "-o", tmp_path / name)
    if name == ".perfetto.json":
        # A report: the ending alone is no name of a trace.
        assert ran.code == 0
        return
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    for ending in WRITERS:
        assert ending in ran.err
    assert not (tmp_path / name).exists()


def test_a_saved_report_becomes_every_format(shardtoll, run_folder: Path, tmp_path: Path):
    shardtoll("report", run_folder, "-o", tmp_path / "bill.json")
    for ending in WRITERS:
        direct, later = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
        assert shardtoll("report", run_folder, "-o", direct).code == 0
        assert shardtoll("report", tmp_path / "bill.json", "-o", later).code == 0
        if ending not in (".html", ".json"):
            assert direct.read_bytes() == later.read_bytes(), ending
