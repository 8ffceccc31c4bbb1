from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.csv as arrow_csv
import pytest

from shardtoll.dashboards.exports import csv_file, json_file
from shardtoll.dashboards.page import notebook, page
from shardtoll.dashboards.words import files
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports


def test_json_reads_back(tmp_path: Path):
    report = sample_reports.report()
    assert json_file.write(report, tmp_path / "x.json") == [tmp_path / "x.json"]
    assert Report.load(tmp_path / "x.json").to_json() == report.to_json()


def test_html_file_is_the_page(tmp_path: Path):
    report = sample_reports.report()
    assert page.write(report, tmp_path / "x.html") == [tmp_path / "x.html"]
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == page.render(report)


def test_csv_holds_every_collective_and_finding(tmp_path: Path):
    report = sample_reports.report()
    names = ("x.csv", "x.steps.csv", "x.findings.csv")
    assert csv_file.write(report, tmp_path / "x.csv") == [tmp_path / name for name in names]
    with (tmp_path / "x.steps.csv").open(encoding="utf-8", newline="") as file:
        steps = list(csv.DictReader(file))
    assert [(row["step"], row["rank"], row["level"]) for row in steps[3:5]] == [
        ("0", "3", "survey"),
        ("1", "0", "survey"),
    ]
    assert sum(int(row["exposed_comm_ns"]) for row in steps) == 8 * 12_000_000 + 2 * 3_000_000
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = report.tables["collectives"].to_pylist()
    assert len(rows) == len(wanted)
    assert list(rows[0]) == list(wanted[0])
    assert rows[3]["message_bytes"] == str(1 << 21)
    with (tmp_path / "x.findings.csv").open(encoding="utf-8", newline="") as file:
        findings = list(csv.DictReader(file))
    assert [(row["rank_on_bill"], row["kind"]) for row in findings] == [
        ("1", "wrong-gradient"),
        ("2", "implicit-redistribute"),
        ("3", "latency-bound"),
    ]
    assert [row["toll_ns"] for row in findings] == ["", "9400000", "820000"]
    assert findings[1]["ranks"] == "0 1 2 3"


def test_csv_cells_are_no_formulas(tmp_path: Path):
    report = sample_reports.report()
    names = ['=HYPERLINK("http://evil","x")', "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\r=1", "a=b", "gemm -1"]
    row = sample_reports.collective(0, 0, 0, 8)
    rows = [replace(row, kernel=name, busbw_gbps=None, mesh_dim=None) for name in names]
    tables = {**report.tables, "collectives": to_table("collectives", rows)}
    findings = (replace(report.findings[0], title="=1+1"), *report.findings[1:])
    csv_file.write(replace(report, tables=tables, findings=findings), tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    assert [cell["kernel"] for cell in cells] == ["'" + name for name in names[:7]] + names[7:]
    assert {cell["mesh_dim"] for cell in cells} == {""}
    with (tmp_path / "x.findings.csv").open(encoding="utf-8", newline="") as file:
        assert "'=1+1" in [line["title"] for line in csv.DictReader(file)]


def test_csv_tells_unknown_from_empty(tmp_path: Path):
    csv_file.write(sample_reports.report(), tmp_path / "x.csv")
    options = arrow_csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    table = arrow_csv.read_csv(tmp_path / "x.csv", convert_options=options)
    modules = set(table.column("module").to_pylist())
    assert modules == {"blocks.0.mlp", "", None}
    assert table.column("message_bytes").null_count == 1


def test_hostile_names_survive_in_csv_and_json(tmp_path: Path):
    report = sample_reports.hostile()
    csv_file.write(report, tmp_path / "x.csv")
    with (tmp_path / "x.findings.csv").open(encoding="utf-8", newline="") as file:
        titles = {row["title"] for row in csv.DictReader(file)}
    assert sample_reports.HOSTILE["close"] in titles
    assert sample_reports.HOSTILE["lines"] in titles
    json_file.write(report, tmp_path / "x.json")
    written = json.loads((tmp_path / "x.json").read_text())["findings"]
    assert [finding["title"] for finding in written] == [finding.title for finding in report.findings]
    assert {finding["title"] for finding in written} == set(sample_reports.HOSTILE.values())


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(UsageError) as told:
        files.write(tmp_path / "missing" / "x.json", b"1")
    assert str(told.value) == (
        f"cannot write {tmp_path}/missing/x.json (No such file or directory): "
        "name a file in a folder that exists"
    )
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        files.write(tmp_path / "folder.json", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def test_notebook_fragment_has_tables_and_no_script():
    html = sample_reports.report()._repr_html_()
    assert html == notebook.render(sample_reports.report())
    tags = set(re.findall(r"<([a-z0-9]+)", html))
    assert tags == {
        "div",
        "p",
        "b",
        "bdi",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "br",
        "h2",
        "ul",
        "li",
    }
    assert html.index("wrong-gradient") < html.index("implicit-redistribute")
    assert "9.40 ms" in html
    hostile = notebook.render(sample_reports.hostile())
    assert set(re.findall(r"<([a-z0-9]+)", hostile)) == tags
    empty = notebook.render(sample_reports.empty())
    assert "<bdi>Nothing found.</bdi></p><p><bdi>Checked: 0 collectives, 0 matmul-like operators" in empty


def test_importing_the_package_imports_no_renderer():
    program = "import sys, shardtoll.dashboards; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"plotly", "pandas", "rich", "torch", "pyarrow", "shardtoll.dashboards.page.page"}
