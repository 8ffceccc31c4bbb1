"""Bus bandwidth against what nccl-tests itself printed: its own logs, and every sweep that is shared."""

from __future__ import annotations

import csv

import pandas as pd
import pytest

from shardtoll.analyzers.context.fill import add_busbw
from shardtoll.ledger.records.volume import busbw_factor
from tests.shared_inputs import shared

OURS = {"alltoall": "all_to_all", "sendrecv": "send"}
"""nccl-tests' programs whose names are not ours."""

# As printed: program, ranks, size (B), time (us), algbw, busbw (GB/s). The first seven: nccl-tests 2.17.8,
# github.com/xxrjun/nccl-tests-cluster@56089cac nccl_N10_G1.log; then rccl-tests 2.17.9, README of
# github.com/prasad-nair-amd/rapido; last github.com/coreweave/nccl-tests/pull/43.
PRINTED = [
    ("all_reduce", 10, 33554432, 1405.25, 23.88, 42.98),
    ("all_reduce", 10, 17179869184, 632480, 27.16, 48.89),
    ("all_gather", 10, 33554400, 721.94, 46.48, 41.83),
    ("all_gather", 10, 17179869120, 321112, 53.50, 48.15),
    ("reduce_scatter", 10, 17179869120, 316586, 54.27, 48.84),
    ("alltoall", 10, 17179869120, 346210, 49.62, 44.66),
    ("sendrecv", 10, 17179869184, 691104, 24.86, 24.86),
    ("all_reduce", 8, 1024, 34.29, 0.03, 0.05),
    ("all_reduce", 8, 134217728, 611.47, 219.50, 384.13),
    ("alltoall", 8, 16777216, 59.45, 282.19, 246.91),
    ("all_reduce", 72, 536870912, 1806.7, 297.16, 586.06),
]


def busbw(program: str, ranks: int, size: int, time_us: float) -> float:
    """Return what a report shows for one such call."""
    frame = pd.DataFrame(
        {
            "op": [OURS.get(program, program)],
            "group_size": [ranks],
            "message_bytes": pd.array([size], dtype="Int64"),
            "transfer_ns": pd.array([round(time_us * 1000)], dtype="Int64"),
            "whole_ns": pd.array([round(time_us * 1000)], dtype="Int64"),
            "busbw_gbps": pd.array([None], dtype="Float64"),
        }
    )
    return float(add_busbw(frame)["busbw_gbps"].iloc[0])


@pytest.mark.parametrize(("program", "ranks", "size", "time_us", "algbw", "printed"), PRINTED)
def test_a_report_shows_the_busbw_that_nccl_tests_printed(program, ranks, size, time_us, algbw, printed):
    # Two decimals are printed, and of the time it was computed from four or more figures.
    assert busbw(program, ranks, size, time_us) == pytest.approx(printed, abs=0.005 + 1e-4 * printed)
    factor = busbw_factor(OURS.get(program, program), ranks)
    assert factor is not None
    assert algbw * factor == pytest.approx(printed, abs=0.005 * (1 + factor))


def _shared() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for path in sorted(shared("sweeps").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as lines:
            table = list(csv.DictReader(lines))
        rows += [row for row in table if "busbw_GBps" in row]
    return rows


def test_every_row_of_every_shared_sweep():
    rows = _shared()
    assert len({row["collective"] for row in rows}) >= 5
    off = []
    for row in rows:
        program, ranks, size = row["collective"], int(row["gpus"]), int(row["bytes"])
        factor = busbw_factor(OURS.get(program, program), ranks)
        assert factor is not None
        told = float(row["busbw_GBps"])
        by_factor = float(row["algbw_GBps"]) * factor
        by_time = busbw(program, ranks, size, float(row["time_us"]))
        # The files keep five figures.
        if not (by_factor == pytest.approx(told, rel=1e-4) and by_time == pytest.approx(told, rel=1e-4)):
            off.append((program, ranks, size, told, by_factor, by_time))
    assert off == []
