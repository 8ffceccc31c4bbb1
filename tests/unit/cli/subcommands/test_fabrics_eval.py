"""`shardtoll fabrics eval` on small sweeps made here: its JSON, its modes, its page, its one-line errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.unit.analyzers.sweeps import straight, sweep_text
from tests.unit.cli.test_help import HEAVY, in_process

POINT = {"bytes", "measured_us", "predicted_us", "low_us", "high_us"}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_text(sweep_text(straight(40, 300)))
    return path


@pytest.fixture
def document(shardtoll, tmp_path: Path):
    """Return what `-o x.json` holds."""

    def ran(*arguments: object) -> dict[str, Any]:
        out = tmp_path / "out.json"
        done = shardtoll("fabrics", "eval", *arguments, "-o", out)
        found = dict(json.loads(out.read_text()))
        # A table in which nothing at all is predicted is no success.
        said = any(point["predicted_us"] for one in found["sweeps"] for point in one["points"])
        assert done.code == (0 if said else 2)
        assert done.err.count("\n") == (0 if said else 1)
        assert said or done.err.startswith("shardtoll: nothing is predicted of ")
        return found

    return ran


def test_the_json_has_every_size_with_its_band(document, sweep: Path):
    (one,) = document(sweep)["sweeps"]
    assert (one["file"], one["fabric"], one["mode"]) == (str(sweep), "h100x8-ib400", "model")
    assert len(one["points"]) == 21
    for point in one["points"]:
        assert set(point) >= POINT
        assert point["measured_us"] == pytest.approx(40 + point["bytes"] / 300e3, rel=1e-4)
        assert 0 < point["low_us"] <= point["predicted_us"] <= point["high_us"]
        assert point["light_us"] <= point["low_us"]
    assert one["fitted_bytes"] == []
    assert one["calibrated_on"] == []


def test_the_same_file_is_calibrated_on_every_second_size(document, sweep: Path):
    (one,) = document(sweep, "--calibrate-on", sweep)["sweeps"]
    sizes = [1 << power for power in range(10, 31)]
    assert one["mode"] == "calibrated"
    assert [point["bytes"] for point in one["points"]] == sizes[1::2]
    assert one["fitted_bytes"] == sizes[::2]
    assert one["calibrated_on"] == [str(sweep)]


def test_a_copy_of_the_file_is_the_same_sweep(document, sweep: Path, tmp_path: Path):
    copy = tmp_path / "copy.csv"
    copy.write_text(sweep.read_text())
    (one,) = document(sweep, "--calibrate-on", copy)["sweeps"]
    assert one["mode"] == "calibrated"


def test_a_part_of_the_rows_is_the_same_sweep_and_a_coincidence_is_not(document, sweep: Path, tmp_path: Path):
    rows = sweep.read_text().splitlines(keepends=True)
    part, again = tmp_path / "part.csv", tmp_path / "again.csv"
    part.write_text("".join(rows[:6]))
    (one,) = document(sweep, "--calibrate-on", part)["sweeps"]
    assert (one["mode"], len(one["fitted_bytes"])) == ("calibrated", 11)
    another_run = sweep_text(straight(41, 301)).splitlines(keepends=True)
    again.write_text("".join((*rows[:4], *another_run[4:])))
    (one,) = document(sweep, "--calibrate-on", again)["sweeps"]
    assert (one["mode"], one["fitted_bytes"]) == ("transferred", [])


def test_a_scored_time_does_not_reach_its_prediction(document, sweep: Path):
    text = sweep.read_text()
    before = document(sweep, "--calibrate-on", sweep)["sweeps"][0]["points"]
    # 2 KiB is the second size.
    sweep.write_text(re.sub(r",2048,[\d.]+,", ",2048,9999,", text))
    after = document(sweep, "--calibrate-on", sweep)["sweeps"][0]["points"]
    assert after[0].pop("measured_us") == 9999
    before[0].pop("measured_us")
    assert after == before


def test_another_file_is_transferred(document, sweep: Path, tmp_path: Path):
    other = tmp_path / "other.csv"
    other.write_text(sweep_text(straight(60, 250), nodes=4, gpus=32))
    found = document(sweep, other, "--calibrate-on", other)
    first, second = found["sweeps"]
    assert (first["mode"], second["mode"]) == ("transferred", "calibrated")
    assert len(first["points"]) == 21
    assert first["calibrated_on"] == [str(other)]
    assert set(found["totals"]) == {"transferred", "calibrated"}


def test_other_hardware_is_refused_unless_a_fabric_is_named(document, sweep: Path, tmp_path: Path):
    other = tmp_path / "other.csv"
    other.write_text(sweep_text(straight(60, 25), hardware="4xA100-40, 2x Slingshot-11 200G (ALCF Polaris)"))
    (one,) = document(sweep, "--calibrate-on", other)["sweeps"]
    assert one["reason"].startswith("calibrated on other hardware, '4xA100-40, ")
    assert one["reason"].endswith(
        "; give sweeps of this hardware to --calibrate-on, or name the fabric of all with --fabric"
    )
    assert {point["predicted_us"] for point in one["points"]} == {None}
    (one,) = document(sweep, "--calibrate-on", other, "--fabric", "h100x8-ib400")["sweeps"]
    assert (one["mode"], one["calibrated_on"]) == ("transferred", [str(other)])


def test_unknown_hardware_has_no_prediction_and_a_reason(document, shardtoll, tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text(sweep_text(straight(40, 300), hardware="a machine"))
    (one,) = document(path)["sweeps"]
    assert one["fabric"] is None
    why = "neither an accelerator nor a machine that is known is named"
    assert one["reason"] == f"no fabric is known for this hardware ({why}); name one with --fabric"
    for point in one["points"]:
        assert (point["predicted_us"], point["low_us"], point["high_us"]) == (None, None, None)
    printed = shardtoll("fabrics", "eval", path).out
    assert "not predicted: no fabric is known for this hardware" in " ".join(printed.split())
    (one,) = document(path, "--fabric", "h100x8-ib400")["sweeps"]
    assert one["fabric"] == "h100x8-ib400"
    assert one["points"][0]["predicted_us"] > 0


def test_tables_fit_and_name_the_errors_by_band(shardtoll, sweep: Path):
    for width in (70, 120):
        ran = shardtoll("fabrics", "eval", sweep, "--width", width)
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= width
        flat = " ".join(ran.out.split())
        assert "model: errors over 1 sweep" in flat
        for band in ("<=64K", "128K-8M", "16-256M", ">=512M", "all 21"):
            assert band in flat
        assert re.search(r"below floor [\d.]+\s%.*, below light [\d.]+\s%", flat)


def test_many_sweeps_are_a_line_each(shardtoll, sweep: Path, tmp_path: Path):
    copies = []
    for number in range(6):
        copies.append(tmp_path / f"copy{number}.csv")
        copies[-1].write_text(sweep.read_text())
    out = shardtoll("fabrics", "eval", *copies, "--width", 120).out
    assert all(f"copy{number} " in out for number in range(6))
    assert "1.02 kB" not in out
    assert len(out.splitlines()) < 30


def test_json_is_printed_alone(shardtoll, sweep: Path, tmp_path: Path):
    page = tmp_path / "x.html"
    ran = shardtoll("fabrics", "eval", sweep, "--json", "-o", page)
    assert set(json.loads(ran.out)) == {"sweeps", "totals"}
    assert ran.err == f"wrote {page}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_every_example_of_the_help_runs(shardtoll, sweep: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(sweep.parent)
    text = in_process("fabrics", "eval", "--help").stdout
    examples = re.findall(r"^\s+(shardtoll fabrics eval .*)$", text, flags=re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        ran = shardtoll(*shlex.split(example)[1:])
        assert (ran.code, ran.err) == (0, ""), example
        assert ran.out


def test_help_imports_nothing_heavy():
    done = in_process("fabrics", "eval", "--help", after="print(*sys.modules, file=sys.stderr)")
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{tmp}/no.csv"], "{tmp}/no.csv does not exist: "),
        (["{tmp}"], "{tmp} is not a file: "),
        (["{tmp}/pipe"], "{tmp}/pipe is not a file: "),
        (["{tmp}/binary.csv"], "{tmp}/binary.csv cannot be read (not UTF-8 text): "),
        (["{tmp}/empty.csv"], "{tmp}/empty.csv has no column hardware, "),
        (["{tmp}/sweep.csv", "--fabric", "nonsense"], "no fabric named 'nonsense': "),
        (["{tmp}/sweep.csv", "--calibrate-on", "{tmp}/empty.csv"], "{tmp}/empty.csv has no column "),
        (["{tmp}/sweep.csv", "-o", "{tmp}/x.pdf"], "-o {tmp}/x.pdf ends in none of .json, .html: "),
        (["{tmp}/sweep.csv", "-o", "{tmp}/no/x.json"], "cannot write {tmp}/no/x.json (No such file or "),
    ],
)
def test_a_mistake_is_one_line(shardtoll, sweep: Path, arguments: list[str], said: str):
    folder = sweep.parent
    (folder / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (folder / "empty.csv").touch()
    os.mkfifo(folder / "pipe")
    ran = shardtoll("fabrics", "eval", *(part.format(tmp=folder) for part in arguments))
    assert ran.code == 2
    assert ran.err.startswith(f"shardtoll: {said.format(tmp=folder)}")
    assert ran.err.count("\n") == 1


def test_no_sweep_is_a_usage_error(shardtoll):
    ran = shardtoll("fabrics", "eval")
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_a_network_that_is_not_told_is_assumed_and_the_band_says_so(document, tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text(sweep_text(straight(40, 90), hardware="8xA100, somewhere", nodes=2, gpus=16))
    (one,) = document(path)["sweeps"]
    assert one["fabric"] == "a100x8-ib200"
    assert one["fabric_choice"].startswith("assumed: ")
    assert all(point["high_us"] >= 2 * point["predicted_us"] for point in one["points"])
    path.write_text(sweep_text(straight(40, 90), hardware="8xA100, 8x HDR200", nodes=2, gpus=16))
    (told,) = document(path)["sweeps"]
    assert [point["predicted_us"] for point in told["points"]] == [
        point["predicted_us"] for point in one["points"]
    ]
    # Of A100s on InfiniBand one source is known: the band is that of all machines and more, yet narrower.
    reach = [each["points"][-1]["high_us"] / each["points"][-1]["predicted_us"] for each in (one, told)]
    assert reach[1] < reach[0]


def test_one_gpu_is_refused(document, tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text(sweep_text(straight(40, 90), nodes=1, gpus=1))
    (one,) = document(path)["sweeps"]
    assert one["reason"] == "one GPU sends nothing; give a sweep of two or more"
    assert all(point["predicted_us"] is None for point in one["points"])


def test_a_copy_without_the_inplace_column_or_rounded_is_the_same_sweep(
    document, sweep: Path, tmp_path: Path
):
    bare, rounded = tmp_path / "bare.csv", tmp_path / "rounded.csv"
    bare.write_text(sweep_text(straight(40, 300), inplace=None))
    rounded.write_text(sweep_text(lambda size: float(f"{40 + size / 300e3:.4g}"), inplace=None))
    for copy in (bare, rounded):
        (one,) = document(sweep, "--calibrate-on", copy)["sweeps"]
        assert (one["mode"], len(one["fitted_bytes"])) == ("calibrated", 11)


def test_a_fabric_with_measured_curves_is_not_called_unfitted(document, sweep: Path, tmp_path: Path):
    own = tmp_path / "own.toml"
    times = "time_ns = [43000, 80000]\nmessage_bytes = [1048576, 8388608]\n"
    curve = f'[[curve]]\nop = "all_reduce"\nranks = 16\nnodes = 2\nsource = "a test"\n{times}'
    own.write_text(f'extends = "h100x8-ib400"\nname = "own"\n{curve}')
    (one,) = document(sweep, "--fabric", own)["sweeps"]
    assert (one["mode"], one["reason"]) == ("transferred", None)
    # 40 µs and bytes over 300 GB/s: the times of the sweep itself.
    own.write_text(own.read_text().replace("43000, 80000", "43495, 67962"))
    (one,) = document(sweep, "--fabric", own)["sweeps"]
    assert "of this very sweep" in one["reason"]
    assert {point["predicted_us"] for point in one["points"]} == {None}


def test_nothing_predicted_is_no_success_and_says_what_to_do(shardtoll, sweep: Path, tmp_path: Path):
    unknown = tmp_path / "unknown.csv"
    unknown.write_text(sweep_text(straight(40, 300), hardware="a machine"))
    ran = shardtoll("fabrics", "eval", unknown)
    assert ran.code == 2
    assert ran.err == (
        "shardtoll: nothing is predicted of 1 sweep: no fabric is known for this hardware (neither an "
        "accelerator nor a machine that is known is named): name one with --fabric\n"
    )
    assert "Noise: " not in ran.out
    ran = shardtoll("fabrics", "eval", unknown, sweep)
    flat = " ".join(ran.out.split())
    assert (ran.code, ran.err) == (0, "")
    assert "model: errors over 1 of 2 sweeps, no other is predicted" in flat
    assert "Noise: what out-of-place and in-place times of one sweep differ by" in flat


def test_one_node_is_not_called_a_transfer_to_the_network(document, shardtoll, sweep: Path, tmp_path: Path):
    node = tmp_path / "node.csv"
    node.write_text(sweep_text(straight(20, 400), nodes=1, gpus=8))
    (one,) = document(sweep, "--calibrate-on", node)["sweeps"]
    assert one["mode"] == "transferred"
    assert one["alone"].startswith("nothing of a sweep inside one node carries over to the network")
    flat = " ".join(shardtoll("fabrics", "eval", sweep, "--calibrate-on", node).out.split())
    assert "predicted by the model alone" in flat
    assert "transferred from" not in flat


def test_how_wide_the_bands_are_stands_beside_how_often_they_hold(document, shardtoll, sweep: Path):
    found = document(sweep)
    points = found["sweeps"][0]["points"]
    widths = [point["high_us"] / point["low_us"] for point in points]
    for errors in (found["totals"]["model"], found["sweeps"][0]["errors"]):
        assert errors[-1]["width"] == pytest.approx(statistics.median(widths), rel=1e-3)
    head = next(row for row in shardtoll("fabrics", "eval", sweep).out.splitlines() if "in band" in row)
    assert "width" in head
    assert f"{statistics.median(widths):.2f}x" in shardtoll("fabrics", "eval", sweep).out


def test_a_guessed_constant_of_the_library_that_was_used_is_named(document, shardtoll, tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text(
        sweep_text(straight(40, 90), hardware="AWS p5.48xlarge", nodes=2, gpus=16, collective="alltoall")
    )
    (one,) = document(path)["sweeps"]
    assert one["fabric"] == "aws-p5"
    assert one["guesses"] == ["nccl net_share.pairwise.efa"]
    assert "guesses: nccl net_share.pairwise.efa" in shardtoll("fabrics", "eval", path).out
