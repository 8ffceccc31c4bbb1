"""First screens of jobs of many kinds read well at 80 and at 100 columns: nothing is cut or torn apart."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.cells import cell_len

from shardtoll.dashboards.terminal.first_screen import LINES
from tests.unit.dashboards.terminal.test_first_screen import shown
from tests.unit.truth import report

MS = 1_000_000
JOBS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "tensor parallel": {"strategy": "tp"},
    "pipeline": {"strategy": "pipeline", "transport": "host"},
    "slow stage": {"strategy": "pipeline", "straggler": 2},
    "late rank": {"straggler": 2},
    "batches": {"data_ns": 2 * MS},
    "reads of values": {"sync_ns": 2 * MS},
    "copies": {"copy_ns": 2 * MS},
    "recompute": {"recompute": True, "stacks": True},
    "one after another": {"serialized": 2},
    "clocks": {"hosts": 2, "offset_ns": 700_000, "steps": 8},
    "old trace": {"schema": "old"},
    "no sizes": {"schema": "sizes", "straggler": 1},
    "late rank of an FSDP job": {"strategy": "fsdp", "straggler": 3},
    "batches and copies": {"data_ns": 3 * MS, "copy_ns": 2 * MS},
}
_TORN = re.compile(r"^(?:%|[nµm]?s\b|[kMGT]?B\b)|(?:\b[Ff]inding|\b[Rr]ank| -o)$")
"""A line that begins with a unit, or ends with a word whose number begins the next."""


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", JOBS)
def test_nothing_is_cut_or_torn(name: str, width: int):
    made = report(**JOBS[name])
    lines = [line.rstrip() for line in shown(made, width).splitlines()]
    assert len(lines) <= LINES
    assert max(map(cell_len, lines)) <= width
    # A path of the user's own may be cut at its beginning, nothing else.
    assert [line for line in lines if "…" in line and ".py:" not in line] == []
    assert [line for line in lines if _TORN.search(line.strip())] == []
    assert made.headline is not None
    assert made.headline.endswith(".")
