"""What `shardtoll serve` shows at a path: run folders that grow, lists, saved reports, traces, mistakes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.cli.inputs import serve_list, serve_source
from shardtoll.cli.inputs.serve_source import Served, make_source
from shardtoll.cli.inputs.traces import TraceOptions
from shardtoll.ledger import FabricError, RankWriter, Report, UsageError, read_run
from shardtoll.ledger.disk.run_files import stacks_path
from tests import sample_reports, small_traces
from tests.unit.cli.test_hang_command import hung
from tests.unit.ledger.conftest import Make

make = Make()
WAIT_S = 30.0
"""Never waited for in full: work ends long before."""


@pytest.fixture
def served(monkeypatch):
    """Make sources that look at files whenever they are asked, and close them all."""
    monkeypatch.setattr(serve_source, "LOOK_S", 0.0)
    made = []

    def one(path: Path | str, **given) -> Served:
        made.append(make_source(str(path), **given))
        return made[-1]

    yield one
    for source in made:
        source.close()


def until(source: Served, name: str, fits) -> object:
    """Poll as a browser does until the state fits."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        snapshot = source.report(name, 1.0)
        if fits(snapshot):
            return snapshot
        time.sleep(0.01)
    raise AssertionError(f"it never came: {snapshot}")


def steps(snapshot) -> list[int]:
    return sorted(set(snapshot.report.steps["step"])) if snapshot.report else []


def test_a_run_that_is_being_written_shows_its_new_steps(served, tmp_path):
    writer = RankWriter(tmp_path / "run", 0, "one")
    writer.describe(make.run(world_size=1), [make.group(ranks=(0,))])
    writer.append(make.rows(0))
    source = served(tmp_path / "run")
    (entry,) = source.runs()
    assert (source.single, entry.name, entry.kind, entry.world_size) == (True, "run", "live", 1)
    first = until(source, "run", lambda now: steps(now) == [0])
    assert first.live
    assert source.report("run").version == first.version
    writer.append(make.rows(1))
    second = until(source, "run", lambda now: steps(now) == [0, 1] and not now.analysing)
    assert second.version != first.version
    assert steps(first) == [0]
    writer.close(make.run(world_size=1), [make.group(ranks=(0,))])
    until(source, "run", lambda now: not now.live)
    (entry,) = source.runs()
    assert (entry.kind, entry.steps) == ("run", 2)
    shutil.rmtree(tmp_path / "run")
    gone = until(source, "run", lambda now: now.error is not None)
    assert "cannot be read" in gone.error
    assert steps(gone) == [0, 1]


def test_a_run_that_hangs_says_so_first(served, tmp_path):
    folder = tmp_path / "run"
    writer = RankWriter(folder, 0, "one")
    writer.describe(make.run(world_size=2), [make.group(ranks=(0, 1))])
    writer.append(make.rows(0))
    source = served(folder)
    before = until(source, "run", lambda now: steps(now) == [0] and not now.analysing)
    assert all(finding.kind != "hang" for finding in before.report.findings)
    # Rows come no more; the watchdog of a rank that stands still writes its stacks.
    hung(folder)
    stacks_path(folder, 0).write_text("rank 0 stands still", encoding="utf-8")
    after = until(source, "run", lambda now: now.version != before.version and not now.analysing)
    assert after.report.findings[0].kind == "hang"
    writer.close(make.run(world_size=2), [make.group(ranks=(0, 1))])


def test_the_same_analysis_as_reports_with_the_fabric_that_is_named(served, tmp_path):
    from shardtoll.analyzers import run as analyze
    from shardtoll.cli.inputs.inputs import named_fabric

    folder = make.written(tmp_path / "run")
    shown = until(served(folder, fabric="loopback-gloo"), "run", lambda now: now.report is not None)
    assert shown.report.to_json() == analyze(read_run(folder), named_fabric("loopback-gloo")).to_json()
    assert shown.report.fabric.name == "loopback-gloo"
    with pytest.raises(FabricError, match="nowhere"):
        make_source(str(folder), "nowhere")


def test_a_folder_of_runs_is_a_list_that_says_of_each_what_it_costs_or_why_not(served, tmp_path):
    make.written(tmp_path / "good")
    make.written(tmp_path / "group" / "inner", rank=0)
    damaged = make.written(tmp_path / "damaged")
    (damaged / "steps.rank00000.parquet").write_bytes(b"no parquet")
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "run.rank00000.json").write_text("{")
    first, *others = sample_reports.report().findings
    # An error stands first on the bill, wherever it stands in the report.
    bill = [replace(one, severity="warning") for one in others] + [replace(first, severity="error")]
    (tmp_path / "saved.json").write_text(replace(sample_reports.report(), findings=bill).to_json())
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "run.rank00000.json")
    source = served(tmp_path)
    assert not source.single
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = {entry.name: entry for entry in source.runs()}
        if all(entry.steps is not None or entry.error for entry in found.values()):
            break
        time.sleep(0.02)
    assert set(found) == {"good", "group/inner", "damaged", "worse", "saved.json"}
    assert found["saved.json"].kind == "report"
    assert found["saved.json"].dearest == first.title
    # A run and the report saved of it are told apart by their fabrics.
    assert found["saved.json"].fabric == sample_reports.report().fabric.name
    assert found["good"].fabric
    assert (found["good"].kind, found["good"].world_size, found["good"].steps) == ("run", 4, 2)
    assert "damaged or cut short" in found["damaged"].error
    assert "damaged" in found["worse"].error
    assert all("\n" not in (entry.error or "") for entry in found.values())
    assert steps(until(source, "group/inner", lambda now: now.report is not None)) == [0, 1]
    make.written(tmp_path / "new")
    assert steps(until(source, "new", lambda now: now.report is not None)) == [0, 1]


@pytest.mark.parametrize("name", ["", "..", "../run", "/etc/passwd", "run\0", "x" * 10_000, "<script>"])
def test_a_name_is_only_ever_looked_up_in_the_list(served, tmp_path, name):
    make.written(tmp_path / "run")
    snapshot = served(tmp_path / "run").report(name, 1.0)
    assert snapshot.report is None
    assert snapshot.error == "there is no run of that name here (any more)"
    assert not snapshot.analysing


def test_a_saved_report_is_read_again_when_it_changes(served, tmp_path):
    path = tmp_path / "bill.json"
    path.write_text(sample_reports.report().to_json())
    source = served(path)
    first = until(source, "bill.json", lambda now: now.report is not None)
    assert (first.live, first.report) == (False, sample_reports.report())
    path.write_text("no report")
    broken = until(source, "bill.json", lambda now: now.error is not None)
    assert "is not a shardtoll report" in broken.error
    assert (broken.report, broken.version) == (first.report, first.version)
    path.write_text(sample_reports.empty().to_json())
    mended = until(source, "bill.json", lambda now: now.report == sample_reports.empty())
    assert (mended.error, mended.version != first.version) == (None, True)


def test_traces_are_shown_as_report_reads_them(served, tmp_path):
    small_traces.write_job(tmp_path / "traces")
    source = served(tmp_path / "traces", options=TraceOptions(cache=False))
    (entry,) = source.runs()
    assert (source.single, entry.name, entry.kind) == (True, "traces", "traces")
    shown = until(source, "traces", lambda now: now.report is not None)
    assert shown.report.run.source == "trace"


def test_few_reports_stay_in_memory_and_the_oldest_asked_for_goes_first(served, tmp_path, monkeypatch):
    monkeypatch.setattr(serve_source, "MOST_REPORTS", 2)
    names = ["a", "b", "c"]
    for name in names:
        make.written(tmp_path / name)
    source = served(tmp_path)
    for name in names:
        until(source, name, lambda now: now.report is not None)
    kept = [name for name, state in source._list.states.items() if state.report is not None]
    assert sorted(kept) == ["b", "c"]
    assert steps(until(source, "a", lambda now: now.report is not None)) == [0, 1]


def test_the_last_good_report_is_served_while_a_newer_one_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(serve_source, "LOOK_S", 0.0)
    path = tmp_path / "run"
    make.written(path)
    going, allowed, made = threading.Event(), threading.Event(), []

    def slow(ledger) -> Report:
        made.append(ledger)
        if len(made) > 1:
            going.set()
            assert allowed.wait(WAIT_S)
        return sample_reports.report()

    source = Served(str(path), slow)
    try:
        first = until(source, "run", lambda now: now.report is not None)
        make.written(path, run_id="two", steps=5)
        assert source.report("run").analysing
        assert going.wait(WAIT_S)
        meanwhile = source.report("run")
        assert (meanwhile.report, meanwhile.version, meanwhile.analysing) == (
            first.report,
            first.version,
            True,
        )
        allowed.set()
        until(source, "run", lambda now: not now.analysing and now.version != first.version)
    finally:
        allowed.set()
        source.close()


def test_an_analysis_that_fails_is_one_line_and_the_next_run_is_still_read(tmp_path, monkeypatch):
    monkeypatch.setattr(serve_source, "LOOK_S", 0.0)
    for name in ("bad", "good"):
        make.written(tmp_path / name, steps=1 + (name == "good"))

    def analyze(ledger) -> Report:
        if ledger.tables["steps"].num_rows == 1:
            raise ZeroDivisionError("by\nzero")
        return sample_reports.report()

    source = Served(str(tmp_path), analyze)
    try:
        bad = until(source, "bad", lambda now: now.error is not None)
        assert bad.error == "the analysis failed (ZeroDivisionError: by)"
        assert not bad.analysing
        until(source, "good", lambda now: now.report is not None)
    finally:
        source.close()


def test_what_is_nothing_to_show_is_a_usage_error_and_an_empty_folder_waits_for_runs(served, tmp_path):
    with pytest.raises(UsageError, match="there is no file or folder"):
        make_source(str(tmp_path / "missing"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "readme.txt").write_text("x")
    with pytest.raises(UsageError, match="neither a shardtoll run nor traces"):
        make_source(str(tmp_path / "other"))
    (tmp_path / "empty").mkdir()
    source = served(tmp_path / "empty")
    assert (source.runs(), source.single) == ([], False)
    make.written(tmp_path / "empty" / "first")
    until(source, "first", lambda now: now.report is not None)


def test_a_list_is_bounded_and_links_in_it_lead_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(serve_list, "MOST_ENTRIES", 10)
    for number in range(20):
        make.written(tmp_path / f"run{number:02}", steps=1)
    places, single = serve_list.look(str(tmp_path), time.time())
    assert (len(places), single) == (10, False)
    (tmp_path / "odd.json").symlink_to("/dev/zero")
    assert "odd.json" not in {place.name for place in serve_list.look(str(tmp_path), 0.0)[0]}


def test_links_that_lead_out_of_the_folder_are_not_listed(served, tmp_path):
    whole, other = tmp_path / "runs", tmp_path / "private"
    make.written(other / "run")
    (other / "bill.json").write_text(sample_reports.report().to_json())
    make.written(whole / "a")
    (whole / "bill.json").write_text(sample_reports.report().to_json())
    # What stays inside is followed.
    (whole / "latest").symlink_to("a")
    (whole / "last.json").symlink_to(whole / "bill.json")
    (whole / "run").symlink_to(other / "run")
    (whole / "all").symlink_to(other)
    (whole / "other.json").symlink_to("../private/bill.json")
    (whole / "loop.json").symlink_to("loop.json")
    (whole / "mixed").mkdir()
    for path in (other / "run").iterdir():
        (whole / "mixed" / path.name).symlink_to(path)
    # The folder may be named by a link itself, and what a link leads to may be named.
    (tmp_path / "link").symlink_to(whole)
    for named in (whole, tmp_path / "link"):
        found = {place.name for place in serve_list.look(str(named), 0.0)[0]}
        assert found == {"a", "latest", "bill.json", "last.json"}
    assert served(whole).report("run", 1.0).error == "there is no run of that name here (any more)"
    assert serve_list.look(str(whole / "mixed"), 0.0)[1]


def test_a_large_saved_report_is_read_only_when_it_is_asked_for(served, tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    path.write_text(sample_reports.report().to_json())
    (tmp_path / "small.json").write_text(sample_reports.empty().to_json())
    assert {place.size_bytes for place in serve_list.look(str(tmp_path), 0.0)[0]} == {
        one.stat().st_size for one in tmp_path.iterdir()
    }
    monkeypatch.setattr(serve_source, "MOST_LISTED_BYTES", path.stat().st_size - 1)
    source = served(tmp_path)
    deadline = time.monotonic() + WAIT_S
    # The large one is newer or as new, and would come first or next.
    while {entry.name: entry.steps for entry in source.runs()}["small.json"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert source._next() is None
    assert {entry.name: entry.steps for entry in source.runs()}["large.json"] is None
    assert until(source, "large.json", lambda now: now.report is not None).report == sample_reports.report()


def test_a_run_of_an_older_version_is_told_in_the_list(tmp_path):
    folder = make.written(tmp_path / "old")
    about = folder / "run.rank00000.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "store_version": 99}))
    (place,), _ = serve_list.look(str(tmp_path), time.time())
    assert "store version 99" in place.error


def test_the_ranks_of_a_saved_report_are_known_before_it_is_read(tmp_path):
    (tmp_path / "saved.json").write_text(sample_reports.report().to_json())
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(sample_reports.report().to_json().encode()))
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents":[]}'))
    (tmp_path / "other.json").write_text('{"schema_version":1,"more":1}')
    places, _ = serve_list.look(str(tmp_path), 0.0)
    sizes = {place.name: place.world_size for place in places}
    assert sizes == {"saved.json": 4, "packed.json.gz": 4, "other.json": None}


def test_closing_does_not_wait_for_an_analysis(tmp_path):
    make.written(tmp_path / "run")
    going, allowed = threading.Event(), threading.Event()

    def slow(ledger) -> Report:
        going.set()
        assert allowed.wait(WAIT_S)
        return sample_reports.report()

    source = Served(str(tmp_path / "run"), slow)
    try:
        source.report("run")
        assert going.wait(WAIT_S)
        assert source.close()
        assert not allowed.is_set()
    finally:
        allowed.set()
    # Once it came to its end nothing is left.
    source._worker.join(WAIT_S)
    assert not source.close()
