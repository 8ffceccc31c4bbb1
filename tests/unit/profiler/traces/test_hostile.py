"""One odd value in one trace costs that value, not the rank and not the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardtoll.profiler.traces import read_traces
from tests.small_traces import trace, write

HOSTILE_ARGS: dict[str, dict[str, Any]] = {
    "elements": {"In msg nelems": 2**61, "Out msg nelems": 2**61, "dtype": "Double"},
    "shapes": {"In msg nelems": None, "Out msg nelems": None, "Input Dims": [[2**61, 2**61]] * 9},
    "dimensions": {"In msg nelems": None, "Out msg nelems": None, "Input Dims": [[2**61] * 9_000]},
    "name": {"Process Group Name": "a\ud800b", "dtype": "\ud800"},
    "stride": {"Process Group Ranks": None, "Global rank start": 0, "Global rank stride": 2**61},
    "ranks": {"Process Group Ranks": [0, 2**61]},
    "root": {"Collective name": "broadcast", "Root Rank": 2**61},
    "peer": {"Collective name": "send", "Dst Rank": 2**61},
    "seq": {"Seq": 2**61},
}


@pytest.mark.parametrize("hostile", HOSTILE_ARGS)
def test_a_hostile_value_loses_no_rank(tmp_path: Path, hostile: str):
    for rank in range(3):
        made = trace(rank, 3)
        for event in made["traceEvents"]:
            if rank == 1 and "Collective name" in event["args"]:
                event["args"].update(HOSTILE_ARGS[hostile])
        write(tmp_path / f"rank{rank}.json", made)
    (job,) = read_traces([str(tmp_path)], jobs=1, cache=False)
    assert (job.ledger.run.ranks_seen, job.set_aside) == ((0, 1, 2), ())
    rows = [row for row in job.ledger.tables["collectives"].to_pylist() if row["rank"] == 1]
    assert len(rows) == 2
    if "nelems" in str(HOSTILE_ARGS[hostile]):
        assert {(row["message_bytes"], row["wire_bytes"]) for row in rows} == {(None, None)}
    assert all(row["root"] is None for row in rows)
