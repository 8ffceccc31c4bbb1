"""audit(trace=True) on real gloo ranks: a trace beside the records, joined, and nothing else changed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import read_run
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.live import trace_programs
from tests.live.launch import run_ranks
from tests.live.test_capture import check_accounting, of_step

pytestmark = pytest.mark.live

GLOO = {"all_gather": "gloo:all_gather", "reduce_scatter": "gloo:all_reduce", "all_reduce": "gloo:all_reduce"}


def annotated(path: Path) -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [e["name"] for e in events if e["name"].startswith("ProfilerStep")]


@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_traced_steps_are_in_a_file_of_each_rank_and_joined(kind: str, tmp_path: Path) -> None:
    results = run_ranks(trace_programs.traced, 2, kind, str(tmp_path))
    rows = results[0]["rows"]
    check_accounting(rows)
    assert {result["profiling"] for result in results} == {False}
    for rank in range(2):
        path = tmp_path / f"trace.rank0000{rank}.json.gz"
        assert annotated(path) == ["ProfilerStep#0", "ProfilerStep#1"]
        for step in range(2):
            mine = of_step(rows, step, rank)
            assert mine
            for c in mine:
                assert c["kernel"] == GLOO.get(c["op"], f"gloo:{c['op']}"), c
                assert c["caused_by_op"] is not None
                assert c["module"] is not None
        assert [c["kernel"] for c in of_step(rows, 2, rank)] == [None] * len(of_step(rows, 2, rank))
        # The trace alone, read as any trace is, says the same of its steps.
        (file,) = find([str(path)])
        alone = rank_ledger(read_trace(file), load_table(None)).tables["collectives"].to_pylist()
        for step in range(2):
            spans = sorted(c["kernel"] for c in alone if c["step"] == step)
            assert spans == sorted(c["kernel"] for c in of_step(rows, step, rank))
    assert [n for n in rows["notices"] if n["kind"].startswith("trace")] == []
    # What stands on disk is what the session has: the report of the folder is the joined one.
    again = {name: table.to_pylist() for name, table in read_run(tmp_path).tables.items()}
    assert again == rows
    assert not [name for name in results[0]["left"] if ".part" in name]


def test_a_trace_changes_no_bit_and_no_count() -> None:
    plain = run_ranks(trace_programs.traced, 2, "fsdp2", None, trace=False)
    traced = run_ranks(trace_programs.traced, 2, "fsdp2", None, trace=True)
    assert [result["bits"] for result in traced] == [result["bits"] for result in plain]
    # Without out= the trace lay in a temporary folder, which is gone.
    assert {result["left"] for result in traced} == {None}

    def asked(result: dict[str, Any]) -> list[tuple[Any, ...]]:
        keys = ("step", "rank", "seq", "op", "message_bytes", "module", "phase", "placements_to")
        return [tuple(c[key] for key in keys) for c in result["rows"]["collectives"]]

    assert asked(traced[0]) == asked(plain[0])
    assert traced[0]["rows"]["counts"] == plain[0]["rows"]["counts"]
    assert {c["kernel"] for c in traced[0]["rows"]["collectives"] if c["step"] == 2} == {None}
    assert None not in {c["kernel"] for c in traced[0]["rows"]["collectives"] if c["step"] == 0}
