"""Sends and receives: which are one message, what waiting in them says of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Collective, Group, Report
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step

GPU = run_of(2, device="NVIDIA H100 80GB HBM3", backend="nccl", source="trace")


def message(number: int, sent_ms: int, taken_ms: int, end_ms: int, **given: Any) -> list[Collective]:
    """Return a send of rank 0 and the receive of rank 1, which end together."""
    common = {"group": "pp", "seq": number, "issue_ns": 0, "phase": "forward"} | given
    return [
        collective(
            rank=rank,
            op=op,
            root=1 - rank,
            start_ns=start * MS,
            duration_ns=(end_ms - start) * MS,
            exposed_ns=(end_ms - start) * MS * rank,
            **common,
        )
        for rank, op, start in ((0, "send", sent_ms), (1, "recv", taken_ms))
    ]


def reported(rows: list[Collective], mesh_dim: str | None = None, **given: Any) -> Report:
    groups = (Group("pp", (0, 1), mesh_dim),)
    mesh = {mesh_dim: 2} if mesh_dim else {}
    about = run_of(2, device=GPU.device, backend="nccl", source="trace", mesh=mesh)
    return run(ledger(rows, run=about, groups=groups, **given))


def waits(report: Report) -> list[int | None]:
    return [row["wait_ns"] for row in report.tables["collectives"].to_pylist()]


def test_the_end_that_comes_first_waits_for_the_other():
    report = reported(message(1, sent_ms=8, taken_ms=2, end_ms=10) + message(2, 12, 15, 17))
    assert waits(report) == [0, 6 * MS, 3 * MS, 0]
    transfers = report.tables["collectives"].column("transfer_ns").to_pylist()
    assert transfers == [2 * MS] * 4


def test_messages_between_two_ranks_keep_their_order_and_not_their_numbers():
    rows = message(7, 8, 2, 10) + message(9, 12, 11, 14)
    rows[1] = collective(**{**_fields(rows[1]), "seq": 3})
    assert waits(reported(rows)) == [0, 6 * MS, 0, 1 * MS]


def test_a_send_that_an_audit_saw_ends_with_its_receive():
    rows = message(1, sent_ms=2, taken_ms=8, end_ms=10)
    # The sender waits for all its sends at the end of the step.
    rows[0] = collective(**{**_fields(rows[0]), "duration_ns": 90 * MS})
    about = run_of(2)
    report = run(ledger(rows, run=about, groups=(Group("pp", (0, 1)),)))
    assert waits(report) == [6 * MS, 0]
    assert report.tables["collectives"].column("transfer_ns").to_pylist() == [2 * MS, 2 * MS]


def _fields(row: Collective) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Collective.__dataclass_fields__}


@pytest.mark.parametrize("change", [{"message_bytes": 8}, {"step": None}, {"root": None}])
def test_what_does_not_agree_is_not_paired(change):
    rows = message(1, 8, 2, 10)
    rows[1] = collective(**{**_fields(rows[1]), **change})
    assert waits(reported(rows)) == [None, None]


def test_one_message_too_many_leaves_the_whole_lane_alone():
    rows = message(1, 8, 2, 10) + message(2, 12, 11, 14)[:1]
    assert waits(reported(rows)) == [None] * 3


def test_waiting_for_another_stage_is_the_pipelines_bubble_and_billed_once():
    steps = [step(rank=rank, exposed_comm_ns=40 * MS) for rank in (0, 1)]
    report = reported(message(1, 30, 0, 32, mesh_dim="pp"), mesh_dim="pp", steps=steps)
    (bubble,) = (f for f in report.findings if f.kind == "pipeline-bubble")
    # One micro-batch over two stages: half of the 100 ms step must be bubble.
    assert (bubble.toll_ns, bubble.saving_ns) == (30 * MS, None)
    (exposed,) = (f for f in report.findings if f.kind == "exposed-communication")
    assert exposed.toll_ns == 2 * MS
    assert report.headline is not None
    assert report.headline.startswith("Pipeline stages wait for each other, not for the network")


@pytest.mark.parametrize(("back", "kinds"), [((1, 0), 1), ((0, 1), 0)])
def test_without_a_mesh_dimension_a_pipeline_is_told_from_a_ring_by_its_direction(back, kinds):
    """In a ring backward's messages go the same way round as forward's."""
    rows = message(1, 30, 0, 32)
    sender, receiver = back
    rows += [
        collective(rank=rank, op=op, root=peer, group="pp", seq=2, phase="backward",
                   start_ns=start * MS, duration_ns=(50 - start) * MS, exposed_ns=(50 - start) * MS)
        for rank, op, peer, start in ((sender, "send", receiver, 48), (receiver, "recv", sender, 40))
    ]  # fmt: skip
    found = [f for f in reported(rows).findings if f.kind == "pipeline-bubble"]
    assert len(found) == kinds
