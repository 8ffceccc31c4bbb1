from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.dashboards.page import page
from shardtoll.ledger import Report, analyze, read_run
from tests import sample_reports
from tests.unit.cli.conftest import write_run


def test_the_bill_of_a_run_is_what_report_show_prints(
    shardtoll, run_folder: Path, capsys: pytest.CaptureFixture[str]
):
    ran = shardtoll("report", run_folder, "--all", "--width", 80)
    analyze(read_run(run_folder)).show(80)
    bill = capsys.readouterr().out
    assert ran.code == 0
    assert "the step, mean of 2 steps" in bill
    assert ran.out == f"{bill}\nas a page: shardtoll report {run_folder} -o report.html\n"
    assert ran.err == ""


def test_width_is_obeyed(shardtoll, run_folder: Path):
    lines = shardtoll("report", run_folder, "--width", 60, "-o", run_folder / "x.json").out.splitlines()
    # A command that may be copied stays whole, on its own line.
    *screen, command, written = lines
    assert command == f"shardtoll report {run_folder} --all"
    assert written.startswith("wrote ")
    assert max(map(len, screen)) <= 60


def test_output_files(shardtoll, run_folder: Path, tmp_path: Path):
    names = ["x.html", "x.json", "x.csv"]
    targets = [argument for name in names for argument in ("-o", tmp_path / name)]
    ran = shardtoll("report", run_folder, *targets)
    report = analyze(read_run(run_folder))
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == page.render(report)
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == report.to_json()
    written = [*names, "x.steps.csv", "x.findings.csv"]
    assert ran.out.endswith("".join(f"wrote {tmp_path / name}\n" for name in written))
    assert all((tmp_path / name).stat().st_size for name in written)


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_says_only_what_was_written(shardtoll, run_folder: Path, tmp_path: Path, option: str):
    ran = shardtoll("report", run_folder, "-o", tmp_path / "x.html", "-o", tmp_path / "x.md", option)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"wrote {tmp_path / 'x.html'}\nwrote {tmp_path / 'x.md'}\n"


@pytest.mark.parametrize("more", [[], ["--json", "-o", "x.html"]])
def test_quiet_with_nothing_to_write_or_with_json_is_a_mistake(shardtoll, run_folder: Path, more: list[str]):
    ran = shardtoll("report", run_folder, "--quiet", *more)
    assert (ran.code, ran.out) == (2, "")
    assert "--quiet" in ran.err
    assert "Traceback" not in ran.err


def test_a_saved_report_is_shown_again(shardtoll, tmp_path: Path):
    path = tmp_path / "saved.json"
    path.write_text(sample_reports.report().to_json(), encoding="utf-8")
    ran = shardtoll("report", path)
    assert ran.code == 0
    assert "error wrong-gradient" in ran.out
    again = shardtoll("report", path, "--json")
    assert again.out == sample_reports.report().to_json() + "\n"


def test_a_saved_report_packed_with_gzip_is_shown_too(shardtoll, tmp_path: Path):
    text = sample_reports.report().to_json()
    path = tmp_path / "saved.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert shardtoll("report", path, "--json").out == text + "\n"
    path.write_bytes(gzip.compress(text.encode())[:200])
    ran = shardtoll("report", path)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert str(path) in ran.err


def test_json_alone_on_stdout(shardtoll, run_folder: Path, tmp_path: Path):
    ran = shardtoll("report", run_folder, "--json", "-o", tmp_path / "x.csv")
    assert json.loads(ran.out)["schema_version"] == 1
    assert Report.from_json(ran.out).run.world_size == 4
    names = ("x.csv", "x.steps.csv", "x.findings.csv")
    assert ran.err == "".join(f"wrote {tmp_path / name}\n" for name in names)


def test_several_paths_one_after_the_other(shardtoll, run_folder: Path, tmp_path: Path):
    second = write_run(tmp_path / "runs" / "b")
    ran = shardtoll("report", run_folder, second)
    assert ran.out.index(f"== {run_folder}\n") < ran.out.index(f"\n\n== {second}\n")
    assert ran.out.count(" ranks · ") == 2
    assert len(shardtoll("report", run_folder, second, "--json").out.splitlines()) == 2


def test_the_named_fabric_is_used(shardtoll, run_folder: Path, tmp_path: Path):
    from shardtoll.analyzers.roofline import load_fabric, to_toml

    named = json.loads(shardtoll("report", run_folder, "--json", "--fabric", "pcie-gen4").out)
    assert named["fabric"]["name"] == "pcie-gen4"
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(load_fabric("a100x8")).replace('"a100x8"', '"mine"'), encoding="utf-8")
    own = json.loads(shardtoll("report", run_folder, "--json", "--fabric", path).out)
    assert own["fabric"]["name"] == "mine"
    floors = [[row["floor_ns"] for row in document["collectives"]] for document in (named, own)]
    assert floors[0] != floors[1]


@pytest.mark.parametrize("found", ["none", "here", "next to the run", "in the run"])
@pytest.mark.parametrize("given", [None, "pcie-gen4", "mine.toml"])
def test_files_have_the_floors_of_the_terminal(
    shardtoll,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: str,
    given: str | None,
):
    from shardtoll.analyzers.roofline import load_fabric, to_toml

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        to_toml(load_fabric("a100x8")).replace('"a100x8"', '"mine"'), encoding="utf-8"
    )
    places = {"here": tmp_path, "next to the run": run_folder.parent, "in the run": run_folder}
    if found in places:
        here = replace(load_fabric("loopback-gloo"), hosts=read_run(run_folder).run.hosts)
        (places[found] / "fabric.toml").write_text(to_toml(here), encoding="utf-8")
    options = [] if given is None else ["--fabric", given]
    ran = shardtoll("report", "runs/a", "--all", *options, "-o", "x.json", "-o", "x.md", "--width", 140)
    report = Report.load(tmp_path / "x.json")
    name = {"pcie-gen4": "pcie-gen4", "mine.toml": "mine"}.get(given or "", report.fabric.name)
    assert report.fabric.name == name
    assert f"fabric {name}: " in ran.out
    # What was written is shown as it was printed, floors and all.
    again = shardtoll("report", "x.json", "--all", "--width", 140).out
    assert again.partition("\nas a page")[0].strip() == ran.out.partition("wrote ")[0].partition(
        "\nfabric.toml is not used")[0].partition("\nruns/")[0].strip()  # fmt: skip
    told = [line for line in ran.out.splitlines() if "is not used for the floors without --fabric" in line]
    assert len(told) == (found != "none" and given is None)
    if told:
        file = {"here": "fabric.toml", "next to the run": "runs/fabric.toml"}.get(found, "runs/a/fabric.toml")
        assert told[0].startswith(f"{file} is not used")
        assert told[0].endswith(f": shardtoll report runs/a --fabric {file}")
    command = " ".join(["shardtoll report runs/a", *options])
    page = shardtoll("report", "runs/a", "--all", *options).out.splitlines()[-1]
    assert page == f"as a page: {command} -o report.html"
    first = shardtoll("report", "runs/a", *options, "--width", 140).out.splitlines()
    more = f"More: {command} --all (one finding: --finding 1; page: -o bill.html)"
    assert first[-2 if told else -1] == more
    if told:
        assert first[-1] == f"For measured floors: --fabric {file}"


def test_a_fabric_of_another_machine_is_not_advised(
    shardtoll, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from shardtoll.analyzers.roofline import load_fabric, to_toml

    monkeypatch.chdir(tmp_path)
    elsewhere = replace(load_fabric("loopback-gloo"), hosts=("another",))
    for text in (to_toml(elsewhere), to_toml(load_fabric("a100x8")), "no fabric"):
        (tmp_path / "fabric.toml").write_text(text, encoding="utf-8")
        assert "For measured floors" not in shardtoll("report", "runs/a").out
        assert "is not used for the floors" not in shardtoll("report", "runs/a", "--all").out


def test_a_fabric_is_not_looked_for_where_no_file_can_be():
    from shardtoll.cli.inputs.kinds import Input
    from shardtoll.cli.report import _unused_fabric

    assert _unused_fabric([Input("traces", [f"{'a' * 300}*/rank*.json"])]) is None


def test_a_killed_rank_is_reported_and_not_an_error(shardtoll, run_folder: Path):
    for path in run_folder.glob("*.rank00003.*"):
        path.unlink()
    ran = shardtoll("report", run_folder)
    assert ran.code == 0
    assert "rank 3 of 4 left no records" in ran.out
    assert "missing: rank 3 left no records" in shardtoll("report", run_folder, "--all").out


def test_the_first_screen_is_all_that_is_printed(shardtoll, run_folder: Path):
    ran = shardtoll("report", run_folder, "--width", 100)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert len(lines) <= 24
    report = analyze(read_run(run_folder))
    for number, finding in enumerate(report.findings[:5], start=1):
        assert any(line.startswith(f" {number} {finding.severity} {finding.kind}") for line in lines)
    assert "how it was measured" not in ran.out


def test_one_finding_is_shown_whole(shardtoll, run_folder: Path):
    (first, *_) = analyze(read_run(run_folder)).findings
    ran = shardtoll("report", run_folder, "--finding", 1, "--width", 300)
    assert ran.code == 0
    assert ran.out.startswith(f" 1 {first.severity} {first.kind}")
    assert first.remedy is not None
    for text in (first.title, first.remedy.text, *(item.label for item in first.evidence)):
        assert text in ran.out
    assert " 2 " not in ran.out.split("remedy")[0]


def test_sections_are_shown_by_name_in_the_order_given(shardtoll, run_folder: Path):
    ran = shardtoll("report", run_folder, "--show", "late, steps", "--width", 100)
    assert ran.code == 0
    assert ran.out.index("the late rank of each collective") < ran.out.index("the step, mean of 2 steps")
    assert "the bill" not in ran.out
    assert "hta: nothing on record" in shardtoll("report", run_folder, "--show", "hta").out


@pytest.mark.parametrize("options", [("--finding", "2,1"), ("--finding", 2, "--finding", 1)])
def test_several_findings_are_shown_whole_in_the_order_asked(shardtoll, tmp_path: Path, options: tuple):
    path = tmp_path / "saved.json"
    path.write_text(sample_reports.report().to_json())
    ran = shardtoll("report", path, *options, "--width", 100)
    assert (ran.code, ran.err) == (0, "")
    each = [shardtoll("report", path, "--finding", number, "--width", 100).out for number in (2, 1)]
    assert ran.out == f"{each[0]}\n{each[1]}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--finding", 99), "there is no finding 99: give 1 to "),
        (("--finding", 0), "there is no finding 0: give 1 to "),
        (("--finding", "1,late"), "there is no finding late: give 1 to "),
        (("--show", "late,x"), "--show has no section 'x': give some of steps, hardware, bill"),
        (("--show", "late", "--all"), "--all and --show contradict each other: give one of them"),
        (("--finding", 1, "--all"), "--finding and --all contradict each other: give one of them"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(shardtoll, run_folder: Path, options: tuple, said: str):
    ran = shardtoll("report", run_folder, *options)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert said in line


def test_an_empty_bill_has_no_finding_to_show(shardtoll, tmp_path: Path):
    path = tmp_path / "saved.json"
    path.write_text(sample_reports.empty().to_json(), encoding="utf-8")
    assert "the bill is empty" in shardtoll("report", path, "--finding", 1).err
    assert "no findings in 0 steps" in shardtoll("report", path).out


def test_where_output_is_ascii_the_first_screen_is(run_folder: Path):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", "from shardtoll.cli import main; main()", "report", str(run_folder)],
        capture_output=True,
        timeout=60,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin", "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    assert b"?" not in done.stdout
    assert b" | " in done.stdout
    assert b"##" in done.stdout


def test_output_that_cannot_hold_a_letter_gets_a_question_mark(run_folder: Path):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", "from shardtoll.cli import main; main()", "report", str(run_folder), "--all"],
        capture_output=True,
        timeout=60,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert b"?" in done.stdout
