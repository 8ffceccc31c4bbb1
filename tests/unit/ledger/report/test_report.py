from __future__ import annotations

import gzip
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from shardtoll.ledger import SCHEMA_VERSION, FabricInfo, Report, SchemaError, analyze, merge
from shardtoll.ledger.report import report as module
from shardtoll.ledger.report.entry_points import EntryPoint
from shardtoll.ledger.report.report import MOST_BYTES
from shardtoll.ledger.tables.tables import NOT_IN_JSON, SCHEMAS, to_table

RUN = "world_size backend device torch hosts mesh source ranks_seen"
FABRIC = "name provenance"
STEP = "step rank duration_ns compute_ns exposed_comm_ns exposed_copy_ns idle_ns unattributed_ns"
COLLECTIVE = """step rank group group_size mesh_dim seq op dtype message_bytes wire_bytes start_ns duration_ns
    exposed_ns wait_ns transfer_ns busbw_gbps floor_ns phase implicit placements_from placements_to
    caused_by_op module parameter source"""
FINDING = """kind severity title toll_ns floor_ns saving_ns bytes count ranks where evidence remedy
    confidence figures rows parameters cause places also saving_low_ns saving_high_ns replayed"""
WHERE = "phase module parameter op source group mesh_dim library"
"""The fields of `report -o x.json` that others may rely on (schema version 1)."""


@pytest.fixture
def report(make) -> Report:
    ledger = merge([make.ledger(rank) for rank in range(2)])
    findings = (make.finding(), make.finding(kind="straggler", toll_ns=None, saving_ns=None, remedy=None))
    tables = {**ledger.tables, **{name: SCHEMAS[name].empty_table() for name in NOT_IN_JSON}}
    return Report(ledger.run, FabricInfo("loopback-gloo", "measured here"), ledger.groups, tables, findings)


def test_a_report_survives_json(report):
    again = Report.from_json(report.to_json())
    assert again == report
    assert again.to_json() == report.to_json()


def test_json_has_every_field_of_the_contract(report):
    document = json.loads(report.to_json())
    assert document["schema_version"] == SCHEMA_VERSION == 1
    assert set(RUN.split()) <= set(document["run"])
    assert set(FABRIC.split()) == set(document["fabric"])
    assert len(document["steps"]) == 4
    assert len(document["collectives"]) == 8
    assert len(document["findings"]) == 2
    assert all(set(STEP.split()) <= set(row) for row in document["steps"])
    assert all(set(COLLECTIVE.split()) <= set(row) for row in document["collectives"])
    assert all(set(FINDING.split()) == set(row) for row in document["findings"])
    assert all(set(WHERE.split()) == set(row["where"]) for row in document["findings"])


def test_unknown_is_null_in_json_never_nan(make, report):
    unknown = dict.fromkeys(
        ("seq", "dtype", "message_bytes", "wire_bytes", "start_ns", "duration_ns", "exposed_ns", "source")
    )
    tables = {**report.tables, "collectives": to_table("collectives", [make.collective(None, **unknown)])}
    text = Report(report.run, report.fabric, report.groups, tables, report.findings).to_json()

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} in the report")

    (row,) = json.loads(text, parse_constant=refuse)["collectives"]
    assert all(row[name] is None for name in unknown)
    assert row["busbw_gbps"] is None
    assert row["step"] is None


def test_a_table_with_nan_makes_no_report(report):
    table = report.tables["collectives"]
    index = table.schema.get_field_index("busbw_gbps")
    nan = pa.array([float("nan")] * table.num_rows)
    tables = {**report.tables, "collectives": table.set_column(index, table.schema.field(index), nan)}
    with pytest.raises(ValueError, match="busbw_gbps holds NaN"):
        Report(report.run, report.fabric, report.groups, tables, report.findings)


def test_the_verdict_names_errors_then_the_headline_then_the_first_finding(make, report):
    (warning, *_), error = report.findings, make.finding(severity="error", title="gradients differ.")
    late = "Rank 7 is late, not the network."
    assert replace(report, findings=()).verdict == "Nothing found."
    assert replace(report, findings=(), headline=late).verdict == late
    assert replace(report, headline=late).verdict == late
    assert report.verdict == f"First on the bill: {warning.title} (900 ns per step)."
    unpriced = replace(warning, toll_ns=None, saving_ns=None)
    assert replace(report, findings=(unpriced,)).verdict.endswith(" (cost unknown).")
    wrong = replace(report, findings=(error, error, warning))
    assert wrong.verdict == "2 errors to fix first: gradients differ."
    assert replace(wrong, headline=late).verdict == f"{wrong.verdict} {late}"


@pytest.mark.parametrize("others", [0, 1])
def test_the_verdict_of_a_job_that_hangs_is_the_hang_whatever_error_comes_first(make, report, others):
    hang = make.finding(kind="hang", severity="error", title="rank 1 died.", toll_ns=None, saving_ns=None)
    before = [make.finding(kind="non-finite", severity="error", title="gradients are NaN.")] * others
    hung = replace(report, findings=(hang, *before), headline="Rank 7 is late, not the network.")
    assert [finding.kind for finding in hung.findings] == ["non-finite"] * others + ["hang"]
    said = ["1 error to fix first: rank 1 died.", "2 errors to fix first: rank 1 died."]
    assert hung.verdict == said[others]


def test_frames_and_notices_come_from_the_tables(report):
    assert report.steps["duration_ns"].sum() == 4000
    assert report.collectives["op"].unique().tolist() == ["all_reduce"]
    assert report.computes["flops"].tolist() == [65536] * 4
    assert [notice.rank for notice in report.notices] == [0, 0, 1, 1]


def test_a_report_file_is_loaded(report, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(report.to_json())
    assert Report.load(path) == report


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", '"report"', '{"steps": []}', "[1]"])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(SchemaError) as caught:
        Report.from_json(text, "x.json")
    assert str(caught.value) == "x.json is not a shardtoll report: write one with `-o report.json`"


@pytest.mark.parametrize("version", [2, 0, "1", None])
def test_another_schema_version_is_refused(report, version):
    document = {**json.loads(report.to_json()), "schema_version": version}
    with pytest.raises(SchemaError) as caught:
        Report.from_json(json.dumps(document), "x.json")
    assert caught.value.message == f"x.json has schema version {version}, this shardtoll reads 1"
    assert caught.value.hint == "upgrade shardtoll, or write the report again with this version"


@pytest.mark.parametrize(
    "damage",
    [
        {"run": None},
        {"run": {}},
        {"fabric": {"name": "x"}},
        {"groups": [{}]},
        {"findings": [{"kind": "straggler"}]},
        {"steps": None},
        {"steps": {"step": 1}},
        {"steps": [1]},
        {"steps": "none"},
        {"steps": [{}]},
        {"steps": [{"step": 2**70}]},
        {"collectives": [{"step": "first"}]},
        {"collectives": [{"busbw_gbps": float("nan")}]},
    ],
)
def test_a_damaged_report_is_refused(report, damage):
    document = {**json.loads(report.to_json()), **damage}
    with pytest.raises(SchemaError) as caught:
        Report.from_json(json.dumps(document), "x.json")
    assert caught.value.message.startswith("x.json is damaged (")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("table", "column", "value", "reason"),
    [
        ("steps", "duration_ns", -1, "steps.duration_ns holds -1"),
        ("collectives", "message_bytes", -8, "collectives.message_bytes holds -8"),
        ("collectives", "rank", -1, "collectives.rank holds -1"),
        (
            "collectives",
            "phase",
            "sideways",
            "collectives.phase holds none of forward, backward, recompute, optimizer, other",
        ),
    ],
)
def test_a_row_that_no_record_would_hold_is_refused(report, table, column, value, reason):
    document = json.loads(report.to_json())
    document[table][0][column] = value
    with pytest.raises(SchemaError) as caught:
        Report.from_json(json.dumps(document), "x.json")
    assert caught.value.message == f"x.json is damaged ({reason})"


def test_an_instant_may_lie_before_the_runs_epoch(report):
    document = json.loads(report.to_json())
    document["collectives"][0]["start_ns"] = -5
    assert Report.from_json(json.dumps(document)).collectives["start_ns"][0] == -5


def test_a_report_of_an_earlier_version_has_no_lead_ups_and_stalls(report):
    document = json.loads(report.to_json())
    for later in ("leadups", "stalls", "values", "parameters", "device_ops"):
        del document[later]
    for row in document["collectives"]:
        del row["kernel"]
    for row in document["computes"]:
        del row["moved_bytes"]
    read = Report.from_json(json.dumps(document))
    assert (len(read.leadups), len(read.stalls)) == (0, 0)
    assert (len(read.values), len(read.parameters)) == (0, 0)
    assert read.collectives["kernel"].isna().all()


def test_steps_of_an_earlier_version_were_all_surveyed(report):
    document = json.loads(report.to_json())
    for step in document["steps"]:
        del step["level"]
    assert set(Report.from_json(json.dumps(document)).steps["level"]) == {"survey"}


def test_a_step_of_no_known_level_is_refused(report):
    document = json.loads(report.to_json())
    document["steps"][0]["level"] = "guess"
    with pytest.raises(SchemaError, match="level holds none of survey, watch"):
        Report.from_json(json.dumps(document), "x.json")


@pytest.mark.parametrize("name", ["run", "fabric", "groups", "findings", "steps", "notices"])
def test_a_report_that_lacks_a_part_is_refused(report, name):
    document = json.loads(report.to_json())
    del document[name]
    with pytest.raises(SchemaError, match=f"x.json is damaged \\('{name}'\\)"):
        Report.from_json(json.dumps(document), "x.json")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "binary.json"):
        with pytest.raises(SchemaError, match="cannot be read as a report") as caught:
            Report.load(path)
        assert str(path) in caught.value.message


def test_a_file_that_is_too_large_or_a_pipe_is_refused_unread(tmp_path):
    """A sparse file of 3 GB would fill the memory; a pipe would be waited for without end."""
    with (tmp_path / "huge.json").open("wb") as file:
        file.write(b'{"schema_version":1')
        file.truncate(MOST_BYTES + 1)
    os.mkfifo(tmp_path / "pipe.json")
    for name, why in (("huge.json", "larger than 2,000,000,000 bytes"), ("pipe.json", "not a regular file")):
        with pytest.raises(SchemaError, match=why) as caught:
            Report.load(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(SchemaError, match="not a regular file"):
        Report.load(Path("/dev/zero"))


def test_a_report_of_the_most_bytes_is_read(report, tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text(report.to_json())
    monkeypatch.setattr("shardtoll.ledger.report.report.MOST_BYTES", path.stat().st_size)
    assert Report.load(path) == report
    monkeypatch.setattr("shardtoll.ledger.report.report.MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(SchemaError, match="larger than"):
        Report.load(path)


def test_a_report_packed_with_gzip_is_read(report, tmp_path, monkeypatch):
    path, text = tmp_path / "report.json.gz", report.to_json().encode()
    path.write_bytes(gzip.compress(text))
    assert Report.load(path) == report
    path.write_bytes(gzip.compress(text)[:-600])
    with pytest.raises(SchemaError, match="damaged gzip file: it ends early"):
        Report.load(path)
    path.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]))
    assert Report.load(path) == report
    path.write_bytes(b"\x1f\x8b" + text)
    with pytest.raises(SchemaError, match="damaged gzip file"):
        Report.load(path)
    path.write_bytes(gzip.compress(text))
    monkeypatch.setattr("shardtoll.ledger.report.report.MOST_BYTES", len(text) - 1)
    with pytest.raises(SchemaError, match="unpacked, larger than"):
        Report.load(path)


def test_show_analyze_exports_and_notebooks_go_through_entry_points(make, report, monkeypatch):
    calls: list[tuple[object, ...]] = []

    def stand_in(name):
        def called(*given, **named):
            calls.append((name, *given, named))
            return "<p>bill</p>" if name == "NOTEBOOK" else report

        return called

    for name in ("SHOW", "ANALYZE", "NOTEBOOK", "WANDB", "MLFLOW", "TENSORBOARD"):
        # The name is bound now, not when it is loaded.
        monkeypatch.setattr(module, name, SimpleNamespace(load=partial(stand_in, name)))
    ledger = make.ledger()
    report.show(width=80)
    assert analyze(ledger, "fabric") is report
    assert report._repr_html_() == "<p>bill</p>"
    report.to_wandb("run", 2)
    report.to_mlflow()
    report.to_tensorboard("folder")
    assert calls == [
        ("SHOW", report, {"width": 80}),
        ("ANALYZE", ledger, "fabric", {}),
        ("NOTEBOOK", report, {}),
        ("WANDB", report, "run", 2, {}),
        ("MLFLOW", report, None, None, {}),
        ("TENSORBOARD", report, "folder", 0, {}),
    ]


ENTRY_POINTS = [point for point in vars(module).values() if isinstance(point, EntryPoint)]


@pytest.mark.parametrize("point", ENTRY_POINTS, ids=lambda point: point.name)
def test_every_entry_point_is_a_function_that_says_it_is(point):
    function = point.load()
    assert point.entry(function) is function
    assert any(line.startswith("@") and line.endswith(".entry") for line in source_of(function))


def source_of(function) -> list[str]:
    return Path(inspect.getsourcefile(function)).read_text().splitlines()


def test_an_entry_point_refuses_another_function():
    with pytest.raises(ValueError, match=r"is not shardtoll.dashboards.terminal.terminal:show"):
        module.SHOW.entry(source_of)


def test_the_ledger_imports_none_of_the_entry_points():
    """Reading the file, not trusting the linter alone: it names the ledger's users only as text."""
    source = Path(module.__file__).read_text()
    imports = re.findall(r"^\s*(?:import|from) shardtoll\.(\w+)", source, flags=re.MULTILINE)
    assert set(imports) == {"ledger"}


def test_a_report_is_shown_without_an_import_of_dashboards_by_the_user(report, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(report.to_json())
    program = (
        "import sys\n"
        "from shardtoll.ledger import Report\n"
        "report = Report.from_json(open(sys.argv[1]).read())\n"
        "assert not any(name.startswith('shardtoll.dashboards') for name in sys.modules)\n"
        "report.show(width=80)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert "the bill" in ran.stdout
