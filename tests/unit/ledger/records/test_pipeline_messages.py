"""Which mesh dimensions and messages are a pipeline's."""

from __future__ import annotations

import pandas as pd
import pytest

from shardtoll.ledger.records.pipeline_messages import (
    by_schedule,
    in_pipeline_dim,
    in_set_up,
    is_pipeline_dim,
    one_way,
)


@pytest.mark.parametrize(
    "name",
    ["pp", "PP", "pipe", "Pipe", "pipeline", "PIPELINE", "stage", "stages", "pp_dim", "pipeline_parallel"],
)
def test_names_of_pipelines(name: str) -> None:
    assert is_pipeline_dim(name)


@pytest.mark.parametrize("name", ["tp", "dp", "pp_tp", "dp_pp", "ppl", "cp", "apipe", "", "parallel", None])
def test_names_of_other_dimensions(name: str | None) -> None:
    assert not is_pipeline_dim(name)


def test_an_unknown_dimension_or_cause_is_none() -> None:
    names = pd.Series(["PP", None, "tp"], dtype="string")
    assert in_pipeline_dim(names).tolist() == [True, False, False]
    causes = pd.Series(
        [None, "ScheduleGPipe.send_forward", "Mine.recv_backward", "ScheduleGPipe.set_up", "isend"],
        dtype="string",
    )
    assert by_schedule(causes).tolist() == [False, True, True, True, False]
    assert in_set_up(causes).tolist() == [False, False, False, True, False]


def flow(*rows: tuple[int, int, str, int | None]) -> bool:
    """Whether messages (sender, receiver, phase, bytes) flow one way, as their senders list them."""
    frame = pd.DataFrame(
        {
            "rank": [sender for sender, *_ in rows],
            "root": [receiver for _, receiver, *_ in rows],
            "op": "send",
            "phase": [phase for *_, phase, _ in rows],
            "message_bytes": pd.array([size for *_, size in rows], dtype="Int64"),
            "group_id": 0,
        }
    )
    (same,) = set(one_way(frame).tolist())
    return bool(same)


UP, DOWN = (0, 1, "forward", 4096), (1, 0, "backward", 4096)


def test_up_in_forward_and_down_in_backward_is_a_pipeline() -> None:
    assert flow(UP, DOWN)
    assert flow((1, 0, "forward", 4096), (0, 1, "backward", 4096))
    assert not flow(UP, (1, 0, "forward", 4096))
    assert not flow(UP, (0, 1, "backward", 4096))


def test_metadata_may_go_any_way_where_larger_messages_go() -> None:
    assert flow(UP, DOWN, (1, 0, "forward", 4), (0, 1, "other", 8))
    assert not flow(UP, DOWN, (1, 0, "forward", None))
    # Where all messages are small they count.
    assert not flow((0, 1, "forward", 8), (1, 0, "forward", 4))
