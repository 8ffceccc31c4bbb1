"""Calibration on real process groups, and whether real collectives afterwards lie in the bands it gave."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from shardtoll.analyzers.roofline import Cost, collective_cost, load_fabric, one_node
from shardtoll.ledger.records.volume import OPS
from tests.live import calibrate_programs as programs
from tests.live import warm
from tests.live.launch import run_ranks

pytestmark = [pytest.mark.live, pytest.mark.slow]

RANKS = 4
SIZES = [3_000, 100_000, 700_000, 5_000_000]
"""Other than those that are calibrated."""


def shardtoll(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [warm.python(), "-c", "from shardtoll.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=200, check=False)


def costs(toml: Path) -> Callable[[str, int], Cost]:
    fabric = load_fabric(toml)

    def cost(op: str, size: int) -> Cost:
        found = collective_cost(fabric, op, size, one_node(RANKS))
        assert found is not None
        return found

    return cost


def test_real_collectives_lie_in_the_band_of_a_calibration_and_not_in_a_scaled_one(tmp_path: Path) -> None:
    """What ran afterwards, at other sizes, from the last rank's begin to the last rank's end.

    Nine of ten is what the band is made for; a machine may be busier now than a minute ago, so fewer are
    asked for here. That the same times do not fit curves 100 times quicker or slower shows it can fail.
    """
    ran = shardtoll("calibrate", "--nproc", str(RANKS), "--seconds", "8", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    cost = costs(tmp_path / "fabric.toml")
    seen = run_ranks(programs.collectives, RANKS, SIZES, 10)
    times = []
    for calls in zip(*seen, strict=True):
        op, size, *_ = calls[0]
        times.append((op, size, max(call[3] for call in calls) - max(call[2] for call in calls)))

    def held(scale: float) -> float:
        bands = [(cost(op, size).low_ns * scale, cost(op, size).high_ns * scale) for op, size, _ in times]
        inside = [low <= time <= high for (low, high), (_, _, time) in zip(bands, times, strict=True)]
        return sum(inside) / len(inside)

    widths = sorted(cost(op, size).high_ns / cost(op, size).low_ns for op, size, _ in times)
    shares = {scale: held(scale) for scale in (1.0, 0.01, 100.0)}
    middle = widths[len(widths) // 2]
    print(f"{len(times)} collectives, {shares[1.0]:.1%} in the band, which is {middle:.1f} wide")
    assert {cost(op, size).basis for op, size, _ in times} == {"measured"}
    assert shares[1.0] >= 0.8, shares
    assert max(shares[0.01], shares[100.0]) < 0.5, shares


def test_torchrun_measures_the_groups_of_each_mesh_dimension_and_writes_a_fabric(tmp_path: Path) -> None:
    command = [
        *(warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"),
        *("-m", "shardtoll.profiler.calibrate", "--mesh", "dp=2,tp=2", "--sizes", "1000,50000"),
        *("--limit-s", "3", "-o", "made/fabric.toml"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "medians" in ran.stdout or "every median" in ran.stdout
    fabric = load_fabric(tmp_path / "made" / "fabric.toml")
    assert fabric.measured
    assert fabric.provenance.startswith("measured on this machine (")
    # gloo does all there are, and both dimensions' groups have the same placement: one curve.
    assert {(curve.op, curve.ranks, curve.nodes) for curve in fabric.curves} == {(op, 2, 1) for op in OPS}
    for curve in fabric.curves:
        assert "groups of dp, tp" in curve.source
        # Four groups' times a round; a message's sizes need no whole element for each rank.
        assert all(point.samples >= 4 * 6 for point in curve.points)
        sizes = [0] if curve.op == "barrier" else [1000, 50000]
        assert [point.message_bytes for point in curve.points] == sizes
        cost = collective_cost(fabric, curve.op, 1000, one_node(2))
        assert cost is not None
        assert cost.basis == "measured"
        assert 0 < cost.floor_ns <= cost.time_ns <= cost.high_ns


@pytest.mark.parametrize(("limit_s", "sizes"), [("60", {2, 4}), ("0.001", {4})])
def test_parts_of_a_host_are_measured_too_if_there_is_time(
    tmp_path: Path, limit_s: str, sizes: set[int]
) -> None:
    command = [
        *(warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"),
        *("-m", "shardtoll.profiler.calibrate", "--ops", "all_reduce,broadcast,send", "--sizes", "1000"),
        *("--limit-s", limit_s, "--target", "100", "-o", "fabric.toml"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    curves = load_fabric(tmp_path / "fabric.toml").curves
    assert {curve.ranks for curve in curves if curve.op in ("all_reduce", "broadcast")} == sizes
    assert {curve.ranks for curve in curves if curve.op in ("send", "recv")} == {2}
    assert ("left out, as the time did not suffice: groups of 2 ranks" in ran.stdout) == (2 not in sizes)


def test_points_of_torchrun_become_the_same_curves(tmp_path: Path) -> None:
    command = [
        *(warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "shardtoll.profiler.calibrate", "--ops", "all_reduce,send", "--sizes", "1000,50000"),
        *("--limit-s", "1", "-o", "points.json"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    ran = shardtoll("calibrate", "--from-points", "points.json", "-o", "mine.toml", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = {
        curve.op: [p.message_bytes for p in curve.points]
        for curve in load_fabric(tmp_path / "mine.toml").curves
    }
    assert found == {op: [1000, 50000] for op in ("all_reduce", "send", "recv")}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "x.csv"], "neither .toml nor .json"),
        (["-o", "x.toml", "--ops", "allreduce"], "no collective"),
        (["-o", "x.toml", "--mesh", "dp=3"], "does not fit 1 ranks"),
        (["-o", "x.toml"], "nobody to send to"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    import os

    from tests.live.launch import free_port

    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ran = subprocess.run(
        [warm.python(), "-m", "shardtoll.profiler.calibrate", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
        check=False,
        env={**os.environ, **alone},
    )
    assert ran.returncode == 2, ran.stderr
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
