"""What a user can mend is one line on stderr and exit code 2; each line's text is held here."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import sample_reports
from tests.unit.cli.conftest import write_run

LOOK = "name traces, a run folder, as given as out= to audit(), or a report written with -o report.json"


@pytest.fixture
def told(shardtoll):
    """The one line a command is refused with."""

    def run(*arguments: object) -> str:
        ran = shardtoll("report", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("shardtoll: ")
        assert ran.err.endswith("\n")
        assert ran.err.count("\n") == 1
        return str(ran.err[len("shardtoll: ") : -1])

    return run


def test_bad_path(told, tmp_path: Path):
    assert told(tmp_path / "nope") == f"there is no file or folder {tmp_path}/nope: {LOOK}"


def test_empty_folder(told, tmp_path: Path):
    assert told(tmp_path) == f"{tmp_path} holds neither a shardtoll run nor traces: {LOOK}"


def test_newer_run_folder(told, run_folder: Path):
    path = run_folder / "run.rank00002.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, "store_version": 99}))
    assert told(run_folder) == (
        f"{path} has store version 99, this shardtoll reads 1: "
        "upgrade shardtoll, or run the job again with this version"
    )


def test_newer_report(told, tmp_path: Path):
    path = tmp_path / "r.json"
    document = json.loads(sample_reports.report().to_json())
    path.write_text(json.dumps({**document, "schema_version": 2}))
    assert told(path) == (
        f"{path} has schema version 2, this shardtoll reads 1: "
        "upgrade shardtoll, or write the report again with this version"
    )


def test_truncated_parquet(told, run_folder: Path):
    path = run_folder / "collectives.rank00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert re.fullmatch(
        rf"{path} is damaged or cut short \(.+\): "
        r"run the job again, or remove that rank's files to report the others",
        told(run_folder),
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"{", "breaks off outside the events before the first whole event"),
        (b"[]", "holds no events"),
        (b"null", "is not JSON: it begins with b'null'"),
        (b"{}", "is JSON without traceEvents, so no trace"),
        (b'{"a": 1}', "is JSON without traceEvents, so no trace"),
        (b"not json", "is not JSON: it begins with b'not json'"),
        (b"\xff\xfe\x00\x01", r"is not JSON: it begins with b'\xff\xfe\x00\x01'"),
    ],
)
def test_what_is_neither_report_nor_trace(told, tmp_path: Path, content: bytes, reason: str):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    assert told(path) == f"{path} {reason}: name a trace that torch.profiler exported"


def test_deeply_nested_garbage(told, tmp_path: Path):
    path = tmp_path / "r.json"
    path.write_text("[" * 200_000)
    assert told(path).startswith(f"{path} ")


@pytest.mark.parametrize(
    "change",
    [
        {"run": None},
        {"run": {}},
        {"fabric": {}},
        {"steps": 1},
        {"steps": [{"step": 0}]},
        {"collectives": "x"},
        {"findings": [{}]},
        {"findings": None},
        {"groups": [{"name": "x"}]},
    ],
)
def test_damaged_report(told, tmp_path: Path, change: dict[str, object]):
    path = tmp_path / "r.json"
    document = json.loads(sample_reports.report().to_json())
    path.write_text(json.dumps({**document, **change}))
    assert re.fullmatch(rf"{path} is damaged \(.+\): write it again with `-o report.json`", told(path))


def test_traces_without_a_trace(told, tmp_path: Path):
    empty = tmp_path / "rank0.json"
    empty.write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}))
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(empty.read_bytes()))
    for path in (empty, packed):
        assert told(path, "--no-cache").startswith(f"{path} ")
    line = told(tmp_path, "--no-cache")
    assert line.startswith(f"none of the 2 traces in {tmp_path} can be read: {empty} ")
    assert "and 1 more" in line


def test_many_unreadable_traces_are_counted(told, tmp_path: Path):
    for rank in range(8):
        (tmp_path / f"rank{rank}.json").write_text("{")
    line = told(tmp_path, "--no-cache", "-j", 1)
    assert line.count(f"{tmp_path}/rank") >= 1
    assert "; and 7 more: " in line


def test_a_pipe_is_not_waited_for(told, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.json")
    assert told(tmp_path / "pipe.json") == f"{tmp_path}/pipe.json is neither a file nor a folder: {LOOK}"


def test_a_pipe_in_the_place_of_a_runs_file_is_not_waited_for(told, run_folder: Path):
    about = run_folder / "run.rank00000.json"
    about.unlink()
    os.mkfifo(about)
    assert told(run_folder).startswith(f"{about} is damaged (not a regular file): ")


def test_a_folder_of_several_runs_names_them_first(told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As `shardtoll demo` leaves one for each attempt; by short names, as errors are cut."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("d/one/run"))
    write_run(Path("d/two/run"))
    assert told("d") == "d holds 2 runs: name one of them, as d/one/run"
    Path("d/calibration.json").write_text("{}")
    assert told("d") == (
        "d holds 2 runs: name one of them, as d/one/run: no trace there can be read "
        "(d/calibration.json is JSON without traceEvents, so no trace)"
    )


def test_the_only_run_in_a_folder_is_reported(shardtoll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("d/one/run"))
    alone = shardtoll("report", "d/one", "--json")
    assert (alone.code, alone.out) == (0, shardtoll("report", "d/one/run", "--json").out)
    Path("d/one/report.json").write_text(sample_reports.empty().to_json())
    besides = shardtoll("report", "d/one", "--json")
    assert (besides.code, besides.out) == (0, alone.out)
    (line,) = besides.err.splitlines()
    assert line.startswith("shardtoll: d/one/report.json ")
    assert line.endswith(": the run d/one/run is reported")
    assert len(line) <= 300


def test_a_glob_that_matches_nothing(told, tmp_path: Path):
    assert told(f"{tmp_path}/*.json").startswith(f"{tmp_path}/*.json matches no trace file: ")


def test_kernel_names_that_cannot_be_read(told, tmp_path: Path):
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    assert told(tmp_path / "rank0.json", "--kernels", tmp_path / "no.toml") == (
        f"{tmp_path}/no.toml cannot be read (No such file or directory): "
        "name a TOML file of kernel names with --kernels"
    )


def test_a_report_that_mentions_trace_events_is_a_report(shardtoll, tmp_path: Path):
    path = tmp_path / "r.json"
    notice = {"rank": 0, "kind": "traceEvents", "text": "none here", "step": None}
    document = json.loads(sample_reports.empty().to_json())
    path.write_text(json.dumps({**document, "notices": [notice]}))
    assert shardtoll("report", path).code == 0


def test_output_of_an_unknown_kind(told, run_folder: Path):
    known = ".html, .json, .csv, .parquet, .md, .prom, .sarif, .perfetto.json, .perfetto.json.gz"
    for name in ("x.pdf", "x", "x.perfetto"):
        assert told(run_folder, "-o", name) == (
            f"-o {name} ends in none of {known}: end the file's name in one of them"
        )


@pytest.mark.parametrize("command", ["run", "dryrun"])
def test_a_folder_as_output_names_the_option_for_folders(shardtoll, tmp_path: Path, command: str):
    script = tmp_path / "train.py"
    script.write_text("")
    (said,) = shardtoll(command, "-o", "runs/a", script).err.splitlines()
    assert said.endswith(": end the file's name in one of them, or keep the run in a folder by --out runs/a")
    assert "--out" not in shardtoll(command, "-o", "x.pdf", script).err


def test_output_of_several_paths(told, run_folder: Path):
    assert told(run_folder, run_folder, "-o", "x.json") == (
        "-o is given with 2 paths: report them one by one, each to its own file"
    )


def test_output_named_twice(told, run_folder: Path):
    assert told(run_folder, "-o", "x.json", "-o", "x.json") == "-o names x.json twice: name each file once"


def test_unknown_fabric(told, run_folder: Path):
    line = told(run_folder, "--fabric", "nosuch")
    assert line.startswith("no fabric named 'nosuch': name one that `shardtoll fabrics` lists, as ")
    assert "h100x8-ib400" in line


def test_fabric_for_a_saved_report(told, tmp_path: Path):
    path = tmp_path / "r.json"
    path.write_text(sample_reports.report().to_json())
    assert told(path, "--fabric", "a100x8") == (
        f"--fabric does not apply to {path}, a saved report that has its floors already: "
        "name the run folder or the traces instead"
    )


def test_control_characters_in_a_path_do_not_reach_the_terminal(told, tmp_path: Path):
    assert told(tmp_path / "a\x1b]31m\nb") == f"there is no file or folder {tmp_path}/a\\x1b]31m b: {LOOK}"


def test_what_is_no_mistake_of_the_user_keeps_its_traceback(shardtoll, run_folder: Path, monkeypatch):
    from shardtoll.dashboards.terminal import terminal

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(terminal, "show", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        shardtoll("report", run_folder, "--all")


def test_output_that_cannot_be_written_is_told_before_the_bill(told, run_folder: Path, tmp_path: Path):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").touch()
    for name, why in (
        ("no/x.json", "No such file or directory"),
        ("folder.json", "Is a directory"),
        ("file/x.json", "Not a directory"),
    ):
        line = told(run_folder, "-o", tmp_path / name)
        assert line == f"cannot write {tmp_path}/{name} ({why}): name a file in a folder that exists"


def test_a_failed_check_has_its_own_exit_code(shardtoll, run_folder: Path, monkeypatch):
    from shardtoll.ledger import CheckFailed
    from shardtoll.ledger.report import report

    def over(*_: object) -> None:
        raise CheckFailed("over budget", "mend it")

    monkeypatch.setattr(report, "ANALYZE", SimpleNamespace(load=lambda: over))
    ran = shardtoll("report", run_folder)
    assert (ran.code, ran.err) == (1, "shardtoll: over budget: mend it\n")


@pytest.mark.parametrize(
    "command",
    [
        ["report", "PATH"],
        ["serve", "PATH"],
        ["whatif", "PATH"],
        ["verify", "PATH", "PATH"],
        ["compare", "PATH", "PATH"],
        ["hang", "PATH"],
        ["check", "PATH", "--budget", "PATH"],
        ["budget", "init", "PATH"],
        ["calibrate", "PATH"],
        ["fabrics", "show", "PATH"],
        ["fabrics", "eval", "PATH"],
        ["forecast", "run", "PATH", "--world", "8"],
        ["forecast", "eval", "PATH"],
        ["advise", "PATH"],
        ["run", "PATH"],
        ["dryrun", "PATH", "--world", "2", "--gpu", "h100-sxm"],
    ],
    ids=lambda command: " ".join(command[:2]).removesuffix(" PATH"),
)
def test_no_command_waits_for_what_is_no_file(shardtoll, tmp_path: Path, command: list[str]):
    """A pipe, a device without an end, links that lead to themselves, names longer than any."""
    pipe, loop, endless = (tmp_path / f"{name}.toml" for name in ("pipe", "loop", "endless"))
    os.mkfifo(pipe)
    loop.symlink_to(loop.name)
    endless.symlink_to("/dev/zero")
    for path in (pipe, loop, endless, "x" * 5_000 + ".toml", "/".join(["y" * 200] * 30)):
        ran = shardtoll(*[str(path) if word == "PATH" else word for word in command])
        assert ran.code == 2, ran
        assert ran.err.startswith("shardtoll: "), ran.err
        assert ran.err.count("\n") == 1
        assert len(ran.err) <= 301


@pytest.mark.parametrize("ending", [".kernels.toml", ".budget.toml", ".fabric.toml"])
def test_nor_does_an_option(shardtoll, run_folder: Path, tmp_path: Path, ending: str):
    trace = tmp_path / "rank0.json"
    trace.write_text('{"traceEvents": []}')
    pipe, endless = tmp_path / f"pipe{ending}", tmp_path / f"endless{ending}"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    commands = {
        ".kernels.toml": ("report", trace, "--kernels"),
        ".budget.toml": ("check", run_folder, "--budget"),
        ".fabric.toml": ("report", run_folder, "--fabric"),
    }
    for path in (pipe, endless):
        ran = shardtoll(*commands[ending], path)
        assert (ran.code, ran.err.count("\n")) == (2, 1), ran
