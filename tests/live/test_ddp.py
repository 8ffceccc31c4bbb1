"""What DistributedDataParallel sends and reads for itself is named as that."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records import ddp_causes
from tests.live import ddp_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

PARAMETERS = 6
BUFFERS = 3
FLOATS = 4 * (2 * programs.WIDTH**2 + 4 * programs.WIDTH)
STATISTICS = 4 * 2 * programs.WIDTH


@cache
def ran(program: Any, *args: Any) -> Report:
    return Report.from_json(run_ranks(program, 2, *args)[0])


def of(report: Report, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


@pytest.mark.parametrize("level", ["survey", "schedule", "watch"])
def test_what_wrapping_and_validating_send_is_named_and_has_its_size(level: str) -> None:
    rows = run_ranks(programs.wrapped_late, 2, level)[0]
    setup = [(op, size) for _, op, size, cause, _ in rows if cause == ddp_causes.SETUP]
    assert Counter(op for op, _ in setup) == {"all_gather": 2, "broadcast": 6}
    # All parameters and running statistics at once, and the count of batches, which is a whole number.
    assert Counter(size for op, size in setup if op == "broadcast")[FLOATS + STATISTICS] == programs.REPEATED
    outside = [
        (size, cause) for step, _, size, cause, _ in rows if step is None and cause != ddp_causes.SETUP
    ]
    assert Counter(outside) == {(STATISTICS, ddp_causes.BUFFERS): 2, (8, ddp_causes.BUFFERS): 2}


def test_buckets_their_order_and_the_map_of_used_parameters_are_apart() -> None:
    rows = run_ranks(programs.wrapped_late, 2, "survey")[0]
    of_steps = Counter(cause for step, _, _, cause, _ in rows if step is not None)
    steps = programs.STEPS * programs.REPEATED
    assert of_steps[ddp_causes.REDUCER] == steps
    assert of_steps[ddp_causes.BUFFERS] == 2 * steps
    assert of_steps[ddp_causes.BUCKET_ORDER] == 2 * programs.REPEATED
    searched = ran(programs.searching, "survey", False).collectives
    maps = searched[(searched["rank"] == 0) & (searched["caused_by_op"] == ddp_causes.USED_PARAMETERS)]
    assert maps["message_bytes"].tolist() == [4 * PARAMETERS] * programs.STEPS
    assert set(maps["phase"]) == {"backward"}
    assert maps["parameter"].isna().all()


@pytest.mark.parametrize("level", ["survey", "schedule"])
def test_what_ddp_looks_up_for_itself_is_no_read_of_the_host(level: str) -> None:
    assert of(ran(programs.searching, level, False), "host-sync") == []


def test_a_read_of_the_users_own_in_backward_still_is_one() -> None:
    (finding,) = of(ran(programs.searching, "survey", True), "host-sync")
    assert finding.count == 1
    assert finding.where.phase == "backward"
    assert "(forward)" in (finding.where.source or "")
