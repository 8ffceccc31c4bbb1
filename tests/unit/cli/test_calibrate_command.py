"""`shardtoll calibrate` on files: nccl-tests' output and points become a fabric that reports can use."""

from __future__ import annotations

import json

import pytest

from shardtoll.analyzers.roofline import load_fabric, measured_cost, one_node
from shardtoll.cli.jobs.calibration import MOST_BYTES
from shardtoll.profiler.calibrate.mesh import parse_mesh
from tests.unit.profiler.calibrate.test_nccl_tests import POINTS, printed


def points(**changes):
    timing = {
        "op": "all_reduce",
        "ranks": 4,
        "nodes": 1,
        "sharing": 1,
        "source": "a test",
        "times_ns": {"64": [100, 110, 120], "4096": [200, 220, 240]},
    }
    facts = {"device": "cpu", "backend": "gloo", "hosts": ["a"], "world_size": 4}
    return {"facts": facts, "provenance": "measured on this machine (a)", "timings": [{**timing, **changes}]}


def test_nccl_tests_files_become_a_fabric(shardtoll, tmp_path, monkeypatch):
    (tmp_path / "ar.txt").write_text(printed("all_reduce", POINTS))
    (tmp_path / "ag.txt").write_text(printed("all_gather", POINTS))
    monkeypatch.chdir(tmp_path)
    ran = shardtoll("calibrate", "--from-nccl-tests", "ar.txt", "ag.txt", "-o", "mine.toml")
    assert ran.code == 0, ran.err
    fabric = load_fabric(tmp_path / "mine.toml")
    assert fabric.measured
    assert fabric.name == "mine"
    assert [(curve.op, curve.ranks) for curve in fabric.curves] == [("all_reduce", 8), ("all_gather", 8)]
    assert "NVIDIA H100 80GB HBM3" in fabric.provenance
    sizes = len(POINTS)
    assert f": {2 * sizes} sizes, {4 * sizes} times in ar.txt and 1 more" in fabric.provenance
    assert f"wrote mine.toml, {2 * sizes} medians in 2 curves: " in ran.out
    shown = " ".join(shardtoll("fabrics", "show", "mine.toml").out.split())
    assert f"{2 * sizes} medians in 2 curves go before the model" in shown
    cost = measured_cost(fabric.curves, "all_gather", 1048576, one_node(8), None)
    assert cost is not None
    assert cost.time_ns == pytest.approx((44200 * 44900) ** 0.5, rel=1e-4)


def test_points_become_a_fabric(shardtoll, tmp_path, monkeypatch):
    (tmp_path / "points.json").write_text(json.dumps(points()))
    monkeypatch.chdir(tmp_path)
    ran = shardtoll("calibrate", "--from-points", "points.json", "-o", "mine.toml")
    assert ran.code == 0, ran.err
    fabric = load_fabric(tmp_path / "mine.toml")
    assert fabric.provenance == "measured on this machine (a)"
    assert fabric.intra == load_fabric("loopback-gloo").intra
    assert [point.time_ns for point in fabric.curves[0].points] == [110, 220]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from-nccl-tests"], "no FILE is given"),
        (["bad.txt"], "is given"),
        (["--from-nccl-tests", "--from-points", "bad.txt"], "two kinds"),
        (["--from-points", "bad.txt", "bad.txt"], "2 files"),
        (["--from-nccl-tests", "bad.txt"], "no table of nccl-tests"),
        (["--from-nccl-tests", "missing.txt"], "cannot be read"),
        (["--from-nccl-tests", "."], "cannot be read"),
        (["--from-points", "bad.txt"], "holds no points"),
        (["--from-nccl-tests", "bad.txt", "--fabric", "nowhere"], "no fabric named"),
        (["--mesh", "dp=3"], "does not fit 4 ranks"),
        (["-o", "no/q.toml"], "cannot write no/q.toml (No such file or directory)"),
        (["-o", "bad.txt/q.toml"], "cannot write bad.txt/q.toml (Not a directory)"),
        (["-o", "q.json"], "-o q.json does not end in .toml"),
        (["-o", "q"], "-o q does not end in .toml"),
        (["--mesh", "dp"], "is not a mesh"),
        (["--from-nccl-tests", "good.txt", "--ranks", "2"], "busbw"),
    ],
)
def test_mistakes_are_one_line(shardtoll, tmp_path, monkeypatch, arguments, says):
    (tmp_path / "bad.txt").write_text("hello\n")
    (tmp_path / "good.txt").write_text(printed("all_reduce", POINTS))
    monkeypatch.chdir(tmp_path)
    ran = shardtoll("calibrate", *arguments)
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    assert not (tmp_path / "fabric.toml").exists()


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", "null", '{"facts": 1}', "[" * 100_000,
        json.dumps(points(times_ns={"64": [0]})),
        json.dumps(points(times_ns={"64": [True]})),
        json.dumps(points(times_ns={"x": [5]})),
        json.dumps(points(times_ns={})),
        json.dumps(points(op="allreduce")),
        json.dumps(points(ranks="4")),
        json.dumps(points(ranks=10**400)) [:-5],
        json.dumps({**points(), "timings": []}),
        json.dumps(points(more=1)),
    ],
)  # fmt: skip
def test_points_that_are_none_are_told_in_one_line(shardtoll, tmp_path, monkeypatch, text):
    (tmp_path / "points.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    ran = shardtoll("calibrate", "--from-points", "points.json")
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    assert "points" in ran.err


def test_a_huge_file_is_refused(shardtoll, tmp_path, monkeypatch):
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    monkeypatch.chdir(tmp_path)
    ran = shardtoll("calibrate", "--from-nccl-tests", "huge.txt")
    assert ran.code == 2
    assert "larger than" in ran.err


def test_a_message_counts_once_and_no_heading_is_empty(shardtoll, tmp_path, monkeypatch):
    made = points(op="send", ranks=2)
    made["timings"].append({**made["timings"][0], "op": "recv"})
    (tmp_path / "points.json").write_text(json.dumps(made))
    monkeypatch.chdir(tmp_path)
    ran = shardtoll("calibrate", "--from-points", "points.json", "-o", "mine.toml")
    assert ran.out.startswith("wrote mine.toml, 2 medians in 1 curve: ")
    shown = shardtoll("fabrics", "show", "mine.toml").out
    assert shown.startswith("mine\n")
    assert "2 medians in 1 curve go before the model" in " ".join(shown.split())
    assert "\nnodes\n" not in shown
    assert "\nnodes\n" in shardtoll("fabrics", "show", "aws-p5").out


def test_sizes_that_noise_hides_are_told(shardtoll, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flat = {str(64 << (2 * power)): [1000, 1100, 1200, 1300, 1400, 1500] for power in range(4)}
    (tmp_path / "points.json").write_text(json.dumps(points(times_ns=flat)))
    out = shardtoll("calibrate", "--from-points", "points.json").out
    assert "1 of 1 curve do not tell sizes apart: all_reduce between 4 ranks has one time from 64 B to" in out
    (tmp_path / "points.json").write_text(json.dumps(points()))
    assert "tell" not in shardtoll("calibrate", "--from-points", "points.json").out


def test_the_mesh_of_the_help_fits_its_ranks():
    assert parse_mesh("dp=2,tp=2", 4) == {"dp": 2, "tp": 2}
