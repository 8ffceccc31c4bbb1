"""Databases that are damaged, of other programs, or meant to do harm: one line, and nothing in them runs."""

from __future__ import annotations

import os
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.collectives.devices import part_of, parts_of
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.file.trace_columns import Trace
from shardtoll.profiler.traces.nsys.columns import times
from shardtoll.profiler.traces.nsys.read_nsys import read_nsys
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.nsys_exports import ALL_REDUCE, Small, names

ROUNDS = 100


def outcome(path: Path) -> Trace | str:
    """Return what a file is read as, or the one line that refuses it."""
    try:
        return read_nsys(find([str(path)])[0])
    except TraceError as error:
        refusal = error
    assert "\n" not in refusal.message
    assert refusal.message.startswith(str(path))
    assert refusal.hint
    return refusal.message


def analyse(trace: Trace) -> None:
    """Make the ledger of each rank in a trace."""
    parts = parts_of(trace)
    table = load_table()
    for part in [part_of(trace, parts, nth) for nth in range(len(parts))] or [trace]:
        part.meta = replace(part.meta, rank=part.meta.rank or 0)
        rank_ledger(part, table)


@pytest.fixture
def whole(small: Small) -> Path:
    """A whole export with some of everything."""
    ids = {"NCCL communicator ID": 5}
    small.range("ncclCommInitRank", 1, 2, schema=1, values={**ids, "No. of ranks": 2, "Rank": 1})
    for step in range(20):
        at = 10_000 * step
        small.range(f"step {step}", at, at + 9000)
        small.range("aten::mm, op_id = 3", at + 100, at + 200)
        small.kernel("gemm", at + 500, at + 900, called=at + 150)
        small.range(
            "ncclAllReduce", at + 1000, at + 1300, schema=2, values={**ids, "Message size [bytes]": 64}
        )
        small.kernel(ALL_REDUCE, at + 1500, at + 1900, called=at + 1100)
    small.export.add("TARGET_INFO_GPU", id=0, name="NVIDIA A100", totalMemory=8 << 30, smCount=108)
    return small.write("rank1.sqlite")


def test_damaged_bytes_give_a_trace_or_one_line(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    damaged = tmp_path / "damaged.sqlite"
    read = 0
    for seed in range(ROUNDS):
        dice = random.Random(seed)
        bad = bytearray(data)
        for _ in range(dice.choice((1, 3, 30, 300))):
            bad[dice.randrange(16, len(bad))] = dice.randrange(256)
        if seed % 5 == 0:
            del bad[dice.randrange(100, len(bad)) :]
        damaged.write_bytes(bad)
        trace = outcome(damaged)
        if isinstance(trace, Trace):
            read += 1
            analyse(trace)
    assert 0 < read < ROUNDS


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_file_that_breaks_off_is_refused(whole: Path, tmp_path: Path, share: float) -> None:
    data = whole.read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(data[: int(len(data) * share)])
    told = outcome(cut)
    assert isinstance(told, str)
    assert "is a damaged SQLite database" in told


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("", "is an SQLite database without a table, none of Nsight Systems"),
        ("CREATE TABLE users (id)", "is an SQLite database with the tables users, none of Nsight Systems"),
        ("CREATE TABLE rocpd_string (id)", "is a database of rocprof (rocpd, SQLite)"),
        (
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (_id_ INTEGER PRIMARY KEY, start, end)",
            "is a database of nvprof (SQLite), the predecessor of Nsight Systems",
        ),
        (
            "CREATE TABLE StringIds (id, value)",
            "is an export of Nsight Systems without tables of CUDA or NVTX events",
        ),
        (
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)",
            "is an export of Nsight Systems without one CUDA or NVTX event",
        ),
        (
            "CREATE TABLE NVTX_EVENTS (start, end, text); INSERT INTO NVTX_EVENTS VALUES ('a', NULL, 5)",
            "is an export of Nsight Systems without one CUDA or NVTX event",
        ),
    ],
)
def test_other_databases_are_named(tmp_path: Path, script: str, what: str) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as made:
        made.executescript(f"{script}; PRAGMA user_version = 1;")
    made.close()
    told = outcome(path)
    assert isinstance(told, str)
    assert what in told


def test_views_and_computed_columns_are_no_data(whole: Path) -> None:
    with sqlite3.connect(whole) as made:
        made.executescript(
            """
            ALTER TABLE NVTX_EVENTS RENAME TO REAL_EVENTS;
            CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)
                SELECT start, start AS end, 59 AS eventType, 'x' AS text FROM n;
            ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN streamIdX AS (zeroblob(1000000000));
            """
        )
    made.close()
    trace = outcome(whole)
    assert isinstance(trace, Trace)
    assert len(trace.annotations.name) == 0
    assert "has no table NVTX_EVENTS" in dict(trace.notices)["tables-missing"]


def test_reading_writes_nothing(whole: Path) -> None:
    before = (whole.read_bytes(), sorted(os.listdir(whole.parent)))
    whole.chmod(0o400)
    assert isinstance(outcome(whole), Trace)
    assert (whole.read_bytes(), sorted(os.listdir(whole.parent))) == before


@pytest.mark.parametrize("name", ["a?b=c.sqlite", "50% #1.sqlite", "é.sqlite", "x y.sqlite"])
def test_names_are_no_addresses(whole: Path, name: str) -> None:
    moved = whole.rename(whole.with_name(name))
    assert isinstance(outcome(moved), Trace)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 31,
        b"\xff" * 4000,
        bytes(4000),
        (3).to_bytes(8, "little") + (2).to_bytes(8, "little") + (2**64 - 1).to_bytes(8, "little") + bytes(40),
    ],
)
def test_payloads_that_lie_say_nothing(small: Small, data: bytes) -> None:
    small.schemas()
    small.range("ncclAllReduce", 100, 200, binaryData=data)
    small.range("ncclAllReduce", 300, 400, jsonText="[" * 60_000)
    small.range(
        "ncclAllReduce", 500, 600, jsonText='{"Message size [bytes]": -5, "NCCL communicator ID": "x"}'
    )
    small.kernel(ALL_REDUCE, 700, 800, called=150)
    trace = small.trace()
    assert names(trace, trace.ops) == ["record_param_comms"] * 3
    assert {args.share_bytes for args in trace.comm_args} == {None}


def test_a_value_of_many_bytes_ends_the_reading(small: Small) -> None:
    small.kernel("gemm", 1000, 2000)
    small.range("x" * (20 << 20), 0, 10)
    told = outcome(small.write())
    if isinstance(told, str):
        assert "is a damaged SQLite database" in told


def test_the_least_number_is_no_time() -> None:
    begun, _, usable = times([-(2**63), 10], [20, 20])
    assert usable.tolist() == [False, True]
    assert begun.tolist() == [-(2**63), 10]
