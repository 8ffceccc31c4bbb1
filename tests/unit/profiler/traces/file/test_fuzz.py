"""Whatever the bytes: a consistent trace, or one line that says what is wrong. Never anything else.

What can be read is analysed as its rank, and of every tenth file a whole report is made.

A few hundred mutations run each time; `make fuzz` runs 20 000, with another seed each day.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardtoll.analyzers import run as analyze
from shardtoll.ledger import Ledger
from shardtoll.ledger.records.errors import TraceError
from shardtoll.ledger.tables.tables import to_records
from shardtoll.profiler.traces import read_traces
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.events import read_events
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import TraceFile
from shardtoll.profiler.traces.file.trace_columns import Trace
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.profiler.traces.conftest import REAL, real_traces

MUTATIONS = int(os.environ.get("SHARDTOLL_FUZZ", "300"))
TABLE = load_table()
SEED = int(os.environ.get("SHARDTOLL_FUZZ_SEED", "3"))

HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**53, 2**62, 2**63, 2**64, 10**18, 10**30, -(10**25)]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["X", "kernel", "cpu_op", "nccl:all_reduce", "[0, 1]", "[0, ...]", "\ud800", "\0", "9" * 400]
    ),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
ARG_KEYS = (
    "External id",
    "correlation",
    "stream",
    "device",
    "bytes",
    "Collective name",
    "In msg nelems",
    "Process Group Ranks",
    "Group size",
    "Input Dims",
    "Input type",
    "In split size",
    "Seq",
    "dtype",
)
CATEGORIES = ("kernel", "gpu_memcpy", "cpu_op", "cuda_runtime", "user_annotation", "python_function", "odd")
PLAIN = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXbe"),
        "cat": st.sampled_from(CATEGORIES),
        "name": st.sampled_from(["record_param_comms", "nccl:all_reduce", "k"]),
        "ts": st.one_of(st.integers(0, 10**6), st.floats(0, 2.0**50)),
        "dur": st.one_of(st.integers(0, 10**6), st.floats(0, 2.0**44)),
    },
    optional={"args": st.dictionaries(st.sampled_from(ARG_KEYS), HOSTILE, max_size=6)},
)
EVENTS = st.one_of(PLAIN, st.dictionaries(st.sampled_from(KEYS), HOSTILE), HOSTILE)
HEADS = (b"", b"{", b"[", b'{"traceEvents": [', b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd")
TOP_KEYS = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name", "with_stack", "x")
INFO_KEYS = ("rank", "world_size", "pg_config", "backend", "nccl_version")
TOP = st.dictionaries(
    st.sampled_from(TOP_KEYS),
    st.one_of(
        HOSTILE,
        st.dictionaries(st.sampled_from(INFO_KEYS), HOSTILE),
        st.lists(
            st.dictionaries(st.sampled_from(["name", "pg_name", "ranks", "pg_size"]), HOSTILE), max_size=2
        ),
    ),
    max_size=4,
)


def consistent(trace: Trace) -> None:
    """Fail where the columns of a trace contradict each other or themselves."""
    device = trace.device
    sizes = {len(getattr(device, name)) for name in device.__dataclass_fields__}
    assert len(sizes) == 1
    assert ((device.kind >= 0) & (device.kind <= 2)).all()
    for work in (trace.calls, trace.ops, trace.annotations, trace.frames):
        assert len({len(getattr(work, name)) for name in work.__dataclass_fields__}) == 1
        assert work.thread.dtype == work.name.dtype == np.int32
        assert ((work.thread >= 0) & (work.thread < len(trace.threads))).all()
    for work in (device, trace.calls, trace.ops, trace.annotations, trace.frames):
        assert work.start_ns.dtype == work.end_ns.dtype == work.correlation.dtype == np.int64
        assert (work.end_ns >= work.start_ns).all()
        assert ((work.name >= 0) & (work.name < len(trace.names))).all()
        assert ((work.comm >= -1) & (work.comm < len(trace.comm_args))).all()
        if len(work.name):
            assert trace.start_ns <= work.start_ns.min()
            assert work.end_ns.max() <= trace.end_ns
    "".join(trace.names).encode("utf-8")
    assert all("\n" not in text for _, text in trace.notices)
    assert trace.meta.rank is None or trace.meta.rank >= 0
    assert trace.meta.world_size is None or trace.meta.world_size > (trace.meta.rank or 0)
    for args in trace.comm_args:
        hash(args)


INSTANT = {"ph": "X", "name": "nccl:all_reduce", "ts": 0, "dur": 0}
"""All that such events recorded is one instant."""


def one_line(reads: Callable[[TraceFile], Any], file: TraceFile) -> Any:
    """Return what a reader returns; None after an error of one line."""
    told: str
    try:
        return reads(file)
    except TraceError as error:
        told = str(error)
    assert "\n" not in told
    assert told.startswith(file.address)
    return None


def conserved(ledger: Ledger) -> None:
    """Fail where the parts of a step do not add up, or the collectives not to what they exposed."""
    exposed: dict[int, int] = {}
    for row in ledger.tables["collectives"].to_pylist():
        assert (row["exposed_ns"] is None) == (row["duration_ns"] is None)
        exposed[row["step"]] = exposed.get(row["step"], 0) + (row["exposed_ns"] or 0)
    for step in to_records("steps", ledger.tables["steps"]):
        assert sum(step.parts_ns) == step.duration_ns
        assert exposed.get(step.step, 0) == step.exposed_comm_ns


def whole_report(path: Path) -> None:
    """Make a report of a trace as the command line does; a fault of ours is never one of its reasons."""
    job, told = None, ""
    try:
        (job,) = read_traces([str(path)], jobs=1, cache=False)
    except TraceError as error:
        told = str(error)
    assert "our fault" not in told
    if job is not None:
        analyze(job.ledger)


def check(content: bytes, path: Path) -> bool:
    """Read bytes both ways and analyse what was read; True where there was something to read."""
    path.write_bytes(content)
    file = TraceFile(str(path), len(content), str(path))
    trace = one_line(read_trace, file)
    if trace is not None:
        consistent(trace)
        one_line(lambda _: conserved(rank_ledger(trace, TABLE)), file)
    one_line(read_events, file)
    return trace is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(EVENTS, max_size=8), TOP, st.booleans(), st.sampled_from([None, 1, 4]))
@example([INSTANT | {"cat": "kernel"}, INSTANT | {"cat": "cpu_op"}], {}, False, None)
def test_hostile_values(
    tmp_path: Path, events: list[Any], top: dict[str, Any], bare: bool, indent: int | None
) -> None:
    whole: Any = events if bare else {**top, "traceEvents": events}
    check(json.dumps(whole, indent=indent).encode("utf-8", "surrogatepass"), tmp_path / "rank0.json")
    whole_report(tmp_path / "rank0.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.sampled_from(HEADS))
def test_any_bytes(tmp_path: Path, content: bytes, head: bytes) -> None:
    check(head + content, tmp_path / "rank0.json")


def sample(content: bytes, chance: random.Random) -> bytes:
    """Return some dozen events in a row from a real trace, with its head and its tail."""
    first = content.index(b"[", content.index(b'"traceEvents"')) + 1
    head = content[:first] if first < 4_000 else b'{"traceEvents": ['
    place = chance.randrange(first, max(first + 1, len(content) - 30_000))
    match = re.compile(rb"\{\s*\"(ph|name)\"").search(content, place)
    start = match.start() if match else content.index(b"{", first)
    return head + content[start : start + chance.randrange(2_000, 20_000)] + content[-300:]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return content after one to four flips, cuts, insertions, swaps or repetitions."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        if not found:
            break
        place = chance.randrange(len(found))
        other = min(len(found), place + int(chance.paretovariate(0.4)))
        match chance.randrange(7):
            case 0:
                found[place] ^= 1 << chance.randrange(8)
            case 1:
                found[place] = chance.choice(b'{}[]",:\\0-.eEnN \n\xff\x00')
            case 2:
                del found[place:other]
            case 3:
                found[place:place] = chance.randbytes(chance.randint(1, 8))
            case 4:
                found[place:place] = found[place : min(other, place + 5_000)]
            case 5:
                del found[place:]
            case _:
                found[place:place] = chance.choice(
                    [b"NaN", b"1e999", b"-", b'"', b"}, {", b"]}", b"[" * 3000, b"\\u00", b"null", b"9" * 50]
                )
    return bytes(found)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.timeout(3600)
def test_mutated_real_traces(tmp_path: Path, name: str) -> None:
    content = gzip.decompress((real_traces() / name).read_bytes())
    chance = random.Random(f"{SEED} {name}")
    read = 0
    for number in range(MUTATIONS // len(REAL) + 1):
        made = sample(content, chance)
        packing = chance.randrange(8)
        if packing == 0:
            made = mutated(gzip.compress(made, 1), chance)
        elif packing == 1:
            made = mutated(zstandard.compress(made), chance)
        else:
            made = mutated(made, chance)
        read += check(made, tmp_path / "rank0.json")
        if number % 10 == 0:
            whole_report(tmp_path / "rank0.json")
    # Damage is local: most mutated files still give a trace.
    assert read > MUTATIONS // len(REAL) // 2
