from __future__ import annotations

import dataclasses
import math

import pytest

from shardtoll.ledger import Count, Notice
from shardtoll.ledger.records.record import PHASES


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("run", {"world_size": 0}, "world_size 0 < 1"),
        ("run", {"ranks_seen": (1, 0)}, "ascend"),
        ("run", {"ranks_seen": (1, 1)}, "ascend"),
        ("run", {"ranks_seen": (0, 4)}, r"ranks \[4\] in a job of 4"),
        ("run", {"ranks_seen": (-1, 0)}, r"ranks \[-1\] in a job of 4"),
        ("group", {"ranks": ()}, "no ranks"),
        ("group", {"ranks": (0, 1, 0)}, "holds a rank twice"),
        ("step", {"duration_ns": -1000}, "negative duration"),
        ("step", {"compute_ns": 760, "idle_ns": -10}, "negative part"),
        ("step", {"capture_ns": 51}, "capture_ns > unattributed_ns"),
        ("step", {"idle_ns": 252}, "off by 2 ns of 1000 ns"),
        ("step", {"idle_ns": 248}, "off by 2 ns of 1000 ns"),
        ("collective", {"phase": "warmup"}, "unknown phase 'warmup'"),
        ("collective", {"group_size": 0}, "group size 0"),
        ("collective", {"message_bytes": -1}, "message_bytes -1 < 0"),
        ("collective", {"wire_bytes": -1}, "wire_bytes -1 < 0"),
        ("collective", {"duration_ns": -1}, "duration_ns -1 < 0"),
        ("collective", {"exposed_ns": -1}, "exposed_ns -1 < 0"),
        ("collective", {"wait_ns": -1}, "wait_ns -1 < 0"),
        ("collective", {"transfer_ns": -1}, "transfer_ns -1 < 0"),
        ("collective", {"floor_ns": -1}, "floor_ns -1 < 0"),
        ("collective", {"input_hash": 2**63}, "does not fit 64 signed bits"),
        ("collective", {"busbw_gbps": math.nan}, "busbw_gbps nan is no rate"),
        ("collective", {"busbw_gbps": math.inf}, "busbw_gbps inf is no rate"),
        ("compute", {"phase": "sideways"}, "unknown phase 'sideways'"),
        ("compute", {"flops": -1}, "flops -1 < 0"),
        ("compute", {"duration_ns": -1}, "duration_ns -1 < 0"),
        ("compute", {"output_hash": -(2**63) - 1}, "does not fit 64 signed bits"),
    ],
)
def test_an_unfit_record_is_refused_when_made(make, kind, given, message):
    with pytest.raises(ValueError, match=message):
        getattr(make, kind)(**given)


def test_a_count_may_be_unknown_but_not_negative():
    assert Count(0, 0, "tp", None, 3).issued is None
    with pytest.raises(ValueError, match="issued -1 < 0"):
        Count(0, 0, "tp", -1, 3)
    with pytest.raises(ValueError, match="recorded -1 < 0"):
        Count(0, 0, "tp", 1, -1)


def test_a_step_may_be_off_by_a_thousandth(make):
    """Rule 1 of the accounting allows 0.1 %, in either direction, and no more."""
    assert sum(make.step(idle_ns=251).parts_ns) == 1001
    assert sum(make.step(idle_ns=249).parts_ns) == 999


def test_a_step_of_no_length_has_no_parts(make):
    nothing = dict.fromkeys(
        ("duration_ns", "compute_ns", "exposed_comm_ns", "idle_ns", "unattributed_ns"),
        0,
    )
    assert make.step(**nothing).parts_ns == (0, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="off by 1 ns of 0 ns"):
        make.step(**{**nothing, "idle_ns": 1})


def test_ranks_missing_are_those_that_left_no_records(make):
    assert make.run(world_size=5, ranks_seen=(1, 3)).ranks_missing == (0, 2, 4)
    assert make.run(world_size=2, ranks_seen=(0, 1)).ranks_missing == ()


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_is_accepted(make, phase):
    assert make.collective(phase=phase).phase == make.compute(phase=phase).phase == phase


def test_an_op_outside_the_vocabulary_is_kept_and_said_to_be_unknown(make):
    assert make.collective().known_op
    unknown = make.collective(op="mystery_exchange", message_bytes=None, wire_bytes=None)
    assert unknown.op == "mystery_exchange"
    assert not unknown.known_op


def test_records_are_frozen_and_slotted(make):
    records = [make.run(), make.group(), make.step(), make.collective(), make.compute()]
    for record in [*records, Count(0, 0, "tp", 1, 1), Notice(0, "x", "y"), make.rows(), make.finding()]:
        assert not hasattr(record, "__dict__")
        name = dataclasses.fields(record)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, 1)
