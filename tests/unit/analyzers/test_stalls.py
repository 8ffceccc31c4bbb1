"""Lost time by reason: what each finding bills, and that a clean program raises none."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Group, Stall
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running


def stall(kind, lost, rank=0, number=0, **given):
    values = {"name": "", "phase": "forward", "count": 1, "total_ns": lost} | given
    return Stall(step=number, rank=rank, kind=kind, lost_ns=lost, **values)


def found(kind, stalls, **given):
    return [f for f in running(kind)(ledger(stalls=stalls, **given)).findings if f.kind == kind]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


KINDS = [
    ("data", "data-stall"),
    ("host-sync", "host-sync"),
    ("copy", "transfer-stall"),
    ("bubble", "pipeline-bubble"),
    ("recompute", "recompute"),
]


@pytest.mark.parametrize(("kind", "named"), KINDS)
def test_the_toll_is_the_mean_over_steps_on_the_worst_rank(kind, named):
    stalls = [stall(kind, 4 * MS), stall(kind, 8 * MS, rank=1), stall(kind, 2 * MS, rank=1, number=1)]
    steps = [step(number, rank) for number in (0, 1) for rank in (0, 1)]
    (finding,) = found(named, stalls, steps=steps)
    assert finding.toll_ns == 5 * MS
    assert finding.ranks == (0, 1)
    assert evidence(finding)["worst rank"] == 1
    assert finding.remedy.text
    assert finding.remedy.code


@pytest.mark.parametrize(("kind", "named"), KINDS)
def test_below_a_hundredth_of_the_step_there_is_no_finding(kind, named):
    assert found(named, [stall(kind, 990 * US)]) == []
    assert found(named, [stall(kind, 1 * MS)]) != []
    assert found(named, [stall(kind, 9 * MS, number=7)]) == []


def test_severity_follows_the_share():
    assert [f.severity for f in found("data-stall", [stall("data", 4 * MS)])] == ["info"]
    assert [f.severity for f in found("data-stall", [stall("data", 5 * MS)])] == ["warning"]


def test_waits_are_told_apart_by_line_and_a_rare_one_counts_once():
    stalls = [
        stall("host-sync", 12 * MS, name="cudaStreamSynchronize", source="train.py:7 (step)", count=3),
        stall("host-sync", 8 * MS, name="cudaMemcpyAsync", source="train.py:9 (step)", count=1),
    ]
    steps = [step(number) for number in range(3)]
    (both,) = found("host-sync", stalls, steps=steps)
    assert (both.toll_ns, both.saving_ns) == (round(20 * MS / 3), round(20 * MS / 3))
    first, second = both.places
    assert (first.where.op, first.toll_ns, first.count) == ("cudaStreamSynchronize", 4 * MS, 1)
    assert first.where.source == "train.py:7 (step)"
    assert (second.where.op, second.count) == ("cudaMemcpyAsync", 0), "less than once per step"
    assert "by calls at 2 places" in both.title
    assert "mostly once per step in forward at train.py:7 (step), on rank" in both.title
    (rare,) = found("host-sync", stalls[1:], steps=steps)
    assert rare.count == 1
    assert "by cudaMemcpyAsync, once in 3 steps, in forward" in rare.title


@pytest.mark.parametrize(
    ("copy", "pins"),
    [
        ("Memcpy DtoD (Device -> Device)", False),
        ("Memcpy HtoD (Pinned -> Device)", True),
        ("Memcpy DtoH (Device -> Pageable)", True),
    ],
)
def test_only_copies_from_or_to_the_host_are_told_to_pin(copy, pins):
    (finding,) = found("transfer-stall", [stall("copy", 9 * MS, name=copy)])
    told = f"{finding.remedy.text} {finding.remedy.code}"
    assert ("pin_memory" in told and "non_blocking" in told) is pins
    assert ("each copies on the device" in told) is not pins


def test_copies_say_their_bytes_and_pageable_memory():
    (finding,) = found(
        "transfer-stall", [stall("copy", 9 * MS, name="Memcpy HtoD (Pageable -> Device)", bytes=10**6)]
    )
    assert finding.bytes == 10**6
    assert "1.00 MB in all" in finding.title
    assert "on rank" in finding.title
    assert finding.remedy.text.startswith("Pin the memory")


def test_recompute_claims_no_saving_and_names_modules():
    (finding,) = found("recompute", [stall("recompute", 9 * MS, phase="recompute", module="blocks.0")])
    assert finding.saving_ns is None
    assert evidence(finding)["in blocks.0, all ranks and steps"] == 9 * MS


def test_the_bubble_is_held_against_the_ideal_one():
    about = run_of(4, mesh={"pp": 4})
    sends = [
        collective(rank=rank, op="send", root=rank + 1, group="pp", mesh_dim="pp", group_size=4, seq=n)
        for rank in (0, 1, 2)
        for n in range(12)
    ]
    groups = (Group("pp", (0, 1, 2, 3), "pp"),)
    stalls = [stall("bubble", 30 * MS, rank=rank) for rank in range(4)]
    given = {"collectives": sends, "run": about, "groups": groups, "stalls": stalls}
    (finding,) = running("pipeline-bubble")(ledger(**given)).findings
    # Stage 0 sends 12 times: 12 micro-batches, 3 / 15 of the 100 ms step.
    assert evidence(finding)["ideal bubble, share of the step"] == 0.2
    assert (finding.toll_ns, finding.saving_ns) == (30 * MS, 10 * MS)
    (unknown,) = found("pipeline-bubble", stalls, run=run_of(4))
    assert unknown.saving_ns is None


def test_unclassified_and_host_idle_time_are_no_findings():
    found_kinds = {
        f.kind for f in run(ledger(stalls=[stall("host", 9 * MS), stall("unclassified", 9 * MS)])).findings
    }
    assert found_kinds.isdisjoint({named for _, named in KINDS})


GPU = run_of(8, device="NVIDIA H100 80GB HBM3", backend="nccl", source="trace")
TWO = (Group("a", tuple(range(8))), Group("b", (0, 1)))


FIRST = {"group": "a", "group_size": 8, "start_ns": 10 * MS, "issue_ns": 1 * MS, "duration_ns": 6 * MS}
SECOND = {"group": "b", "start_ns": 16 * MS + 10 * US, "issue_ns": 2 * MS, "duration_ns": 4 * MS}


def pair(**changed):
    first = collective(**FIRST, exposed_ns=6 * MS, stream=7, message_bytes=5_000_000)
    second = SECOND | {"exposed_ns": 4 * MS, "stream": 9, "message_bytes": 3_000_000} | changed
    return [first, collective(**second)]


def serialized(rows):
    steps = [step()]
    return list(running("serialized-collectives")(ledger(rows, run=GPU, groups=TWO, steps=steps)).findings)


def test_collectives_of_two_groups_in_a_row_could_run_side_by_side():
    (finding,) = serialized(pair())
    assert (finding.toll_ns, finding.confidence) == (4 * MS, "possible")
    assert "right after all_reduce on group a" in finding.title


@pytest.mark.parametrize(
    "second",
    [
        {"group": "a", "group_size": 8, "seq": 2},
        {"exposed_ns": 2 * MS},
        {"start_ns": 17 * MS},
        {"issue_ns": 16 * MS + 5 * US},
        {"stream": None},
        {"message_bytes": 5_000_000},
        {"message_bytes": 625_000},
    ],
    ids=["same group", "hidden", "later", "asked for later", "no stream", "same message", "its shard"],
)
def test_what_could_not_run_side_by_side_is_left_alone(second):
    assert serialized(pair(**second)) == []
