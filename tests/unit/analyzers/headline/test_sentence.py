"""The headline: whose fault the waiting is, and what to do first."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc
import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.stragglers import straggler
from shardtoll.analyzers.headline import sentence
from shardtoll.ledger import Finding, Report, Stall
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.late_jobs import ON_DEVICES, RANKS, SLOW, job, reported, with_floors
from tests.unit.analyzers.ledgers import MS, collective, ledger, on_ranks, run_of, step


def test_a_late_rank():
    said = reported(*job([2] * 5, compute_ns=6 * MS)).headline
    assert said == (
        "Rank 2 is late, not the network: the others wait 10.0 ms per step for it; waiting takes 24 % of "
        "the step (mean of 4 ranks), moving data 16 %; balance the work if rank 2 has more in backward."
    )


def test_who_is_last_by_chance_is_not_blamed_without_saying_so():
    # On CPUs, in one step and without a cause: the bill has it as information.
    said = reported(*job([2] * 5)).headline
    assert said.startswith("Rank 2 is late (perhaps by chance), not the network: the others wait 10.0 ms")


def test_a_reason_of_its_own_says_that_a_late_rank_is_no_chance():
    context = make_context(ledger(job([2] * 5)[0], run=run_of(RANKS)), ROUND)
    (late,) = straggler.find(context)
    saves = replace(late, kind="checkpoint-stall", severity="warning", title="t")
    assert sentence.sentence(context, [late]).startswith(
        "Rank 2 is late (perhaps by chance), not the network"
    )
    assert sentence.sentence(context, [saves, late]).startswith("Rank 2 is late, not the network")


def test_ranks_in_turns():
    said = reported(*job([0, 1, 2, 3] * 2)).headline
    assert said.startswith("Ranks take turns in being late; the network is not at fault: ")


def test_the_network():
    said = with_floors().headline
    assert said.startswith("The network is slow, and no rank is late: ")
    assert ": moving data takes 40 % of the step (mean of 4 ranks) at " in said


@pytest.mark.parametrize(("late_ms", "who"), [(1, "no rank is late"), (2, "no single rank is late")])
def test_ranks_that_wait_by_turns_are_late_by_turns(late_ms, who):
    rows, leadups = job([0, 1, 2, 3] * 2, late=late_ms * MS, transfer=7 * MS)
    said = run(ledger(rows, run=ON_DEVICES, leadups=leadups), ROUND).headline
    assert said.startswith(f"The network is slow, and {who}: ")


def test_slow_transfers_on_cpus_may_be_the_cores():
    said = reported(*job([2] * 5, **SLOW)).headline
    assert said.startswith("Transfers on this host are slow, and no rank is late: ")
    hosts = run_of(RANKS, hosts=("one", "two"), ranks_per_host=2)
    said = with_floors(hosts).headline
    assert said.startswith(
        "Transfers are slow (the network, or CPU cores that ranks share), and no rank is late: "
    )


def test_slow_transfers_say_why_they_point_to_a_finding_of_another_kind():
    """An unrelated finding that comes first is not what a sentence on transfers sends people to."""
    rows, leadups = job([2] * 5, **SLOW)
    context = make_context(ledger(rows, run=run_of(RANKS), leadups=leadups), ROUND)
    unrelated = Finding("data-stall", "warning", "t", 9 * MS, None, 9 * MS, None, 1, (0,))
    synced = replace(unrelated, kind="sync-every-microbatch", toll_ns=8 * MS, saving_ns=8 * MS)
    said = sentence.sentence(context, [unrelated, synced])
    assert said.startswith("Transfers on this host are slow")
    # The rate is what the verdict rests on: it leaves no room for the finding's kind.
    assert said.endswith(" times the expected time; to send less, see finding 2.")
    assert "finding" not in sentence.sentence(context, [unrelated])
    # What is sent in vain and costs most is named before the transport.
    said = sentence.sentence(context, [synced, replace(unrelated, toll_ns=1 * MS, saving_ns=1 * MS)])
    assert said.startswith("Reducing gradients on every micro-batch costs time, and transfers are slow too: ")
    assert said.endswith("; see finding 1.")


def test_waiting_and_moving_are_shares_of_the_steps_that_the_bars_show():
    """The surveyed step waits 40 of 100 ms, each watched one 4: the sentence speaks of the watched ones."""
    rows, steps = [], []
    for number, (level, waited) in enumerate((("survey", 40), ("watch", 4), ("watch", 4))):
        begin = number * 1_000 * MS
        for rank, late in ((0, 0), (1, waited)):
            took = (waited - late + 20) * MS
            rows.append(
                collective(step=number, rank=rank, seq=number, issue_ns=begin, start_ns=begin + late * MS,
                           duration_ns=took, exposed_ns=took)
            )  # fmt: skip
            parts = {"compute_ns": 0, "idle_ns": 0, "exposed_comm_ns": took}
            rest = {"unattributed_ns": 100 * MS - took, "level": level}
            steps.append(step(number, rank, start_ns=begin, **parts, **rest))
    report = reported(rows, steps=steps, run=run_of(2))
    waits, moves = (
        pc.sum(report.tables["steps"].filter(pc.field("step") > 0).column(name)).as_py() / (400 * MS)
        for name in ("exposed_wait_ns", "exposed_move_ns")
    )
    assert (waits, moves) == (0.02, 0.2)
    assert "moving data takes 20 % of the step (mean of 2 ranks)" in report.headline
    assert "waiting 2.0 %" in report.headline


def test_a_small_share_accuses_no_network():
    few = [step(rank=rank, compute_ns=92 * MS, exposed_comm_ns=8 * MS, idle_ns=0) for rank in range(RANKS)]
    said = with_floors(steps=few).headline
    assert said.startswith("Communication is slow, but a small part of the step: ")


@pytest.mark.parametrize("late_rank", [2, None])
def test_it_does_not_contradict_the_finding_that_comes_first(late_rank):
    """More moving than waiting over all ranks, yet the dearest on the bill is waiting for late ranks."""
    rows, leadups = job([2] * 5, late=3 * MS, transfer=4 * MS)
    context = make_context(ledger(rows, run=run_of(RANKS), leadups=leadups), ROUND)
    (late,) = [each for each in straggler.find(context) if each.ranks == (2,)]
    said = sentence.sentence(context, [replace(late, ranks=(0, 1, 2, 3) if late_rank is None else (2,))])
    one = "Rank 2 is late: others wait for it in 5 of 5 collectives, up to 15.0 ms per step; moving data"
    assert said.startswith(one if late_rank is not None else "Late ranks, no single one, and moving data")
    moved = replace(late, kind="exposed-communication", ranks=(0, 1, 2, 3))
    ranks = (0, 1, 2, 3) if late_rank is None else (2,)
    said = sentence.sentence(context, [replace(late, ranks=ranks), moved])
    assert said.endswith(
        ("; see findings 1 (straggler) and 2 (exposed-communication).", "; see findings 1 and 2.")
    )
    assert sentence.sentence(context).startswith("Transfers on this host are slow")


def test_the_network_near_its_floor():
    said = reported(*job([2] * 5, late=0, transfer=1 * MS)).headline
    assert said.startswith(
        "Moving data that nothing hides costs most, not a late rank or a slow network: moving data takes "
    )
    assert "1.3 times the expected time" in said


def test_what_has_no_size_judges_no_network():
    """One small message at its floor says nothing of the large one whose size is unknown."""
    rows, _ = job([2] * 5, late=0, transfer=1 * MS)
    big = [
        replace(row, seq=9, message_bytes=None, wire_bytes=None, start_ns=60 * MS,
                duration_ns=30 * MS, exposed_ns=30 * MS)
        for row in rows[:RANKS]
    ]  # fmt: skip
    said = reported(rows + big).headline
    assert said.startswith("Moving data costs most, not late ranks: ")
    assert "86 % of it at an unknown rate" in said
    assert "floor" not in said


def test_it_is_short():
    for given in (job([2] * 5), job([0, 1, 2, 3] * 2), job([1]), job([2] * 5, late=0)):
        assert len(reported(*given).headline) <= 195


def test_one_rank_alone_cannot_tell():
    rows, _ = job([2] * 5)
    alone = run_of(RANKS, ranks_seen=(0,))
    said = reported([row for row in rows if row.rank == 0], run=alone).headline
    assert said.startswith(
        "Cannot tell whether the network or a late rank is at fault, as only 1 of 4 ranks was recorded: "
    )
    assert " MB/s or more" in said


def test_sends_and_receives_cannot_tell():
    rows = [collective(rank=0, op="send"), collective(rank=1, op="recv")]
    assert "most sends and receives match no other end" in reported(rows, run=run_of(2)).headline


def test_hidden_communication_and_an_idle_device():
    quiet = [step(rank=rank, compute_ns=58 * MS, exposed_comm_ns=2 * MS, idle_ns=40 * MS) for rank in (0, 1)]
    stalls = [Stall(0, rank, "data", "loader", "other", 1, 30 * MS, 30 * MS) for rank in (0, 1)]
    said = reported(on_ranks((0, 1)), run=run_of(2), steps=quiet, stalls=stalls).headline
    assert said == (
        "Data loading costs most: both ranks run no operator for 40.0 ms (40 %) of the 100 ms step (mean); "
        "fetch batches in worker processes ahead of the step."
    )


def test_a_step_without_its_recording_is_said_to_be_one():
    parts = {"compute_ns": 8 * MS, "exposed_comm_ns": 2 * MS, "idle_ns": 40 * MS}
    slow = [step(rank=r, **parts, unattributed_ns=50 * MS, capture_ns=50 * MS) for r in (0, 1)]
    said = reported(on_ranks((0, 1)), run=run_of(2), steps=slow).headline
    assert (
        "both ranks run no operator for 40.0 ms (80 %) of the 50.0 ms step (mean) without recording; " in said
    )


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_host_that_launches_too_little(backend):
    """Large idle time leads, also where communication is above the least share, and with gloo too."""
    slow = [step(compute_ns=10 * MS, exposed_comm_ns=8 * MS, idle_ns=82 * MS)]
    stalls = [Stall(0, 0, "launch", "", "forward", 400, 80 * MS, 80 * MS)]
    about = {"ranks_seen": (0,), "backend": backend, "device": "NVIDIA H200"}
    traced = run_of(RANKS, source="trace", **about)
    said = reported([collective(group_size=RANKS)], run=traced, steps=slow, stalls=stalls).headline
    assert said.startswith(
        "The CPU launches kernels too slowly: rank 0's GPU is idle for 82.0 ms (82 %) of its 100 ms step"
    )
    # A survey slows the host: whatever else is found is no reason for it.
    live = run_of(RANKS, **about)
    said = reported([collective(group_size=RANKS)], run=live, steps=slow, stalls=stalls).headline
    assert said == (
        "Every step was surveyed, which slows the host: rank 0's GPU is idle for 82.0 ms (82 %) of its "
        "100 ms step; audit at the default level to see how much of that is the job's own."
    )


def test_idle_time_that_does_not_lead_is_said_besides():
    both = [step(rank=r, compute_ns=10 * MS, exposed_comm_ns=40 * MS, idle_ns=50 * MS) for r in range(RANKS)]
    said = reported(*job([2] * 5), steps=both).headline
    assert said.startswith("Rank 2 is late")
    assert "; another 50 % is idle" in said


def test_hidden_communication_is_not_the_matter():
    busy = [step(rank=rank, compute_ns=98 * MS, exposed_comm_ns=2 * MS, idle_ns=0) for rank in (0, 1)]
    said = reported(on_ranks((0, 1)), run=run_of(2), steps=busy).headline
    assert said.startswith(
        "Neither the network nor a late rank is at fault: waiting for ranks and moving data take 2.0 % of "
        "the step (mean of 2 ranks)"
    )


def test_nothing_on_record():
    assert reported([], steps=[]).headline is None
    said = reported([], steps=[step(exposed_comm_ns=0, idle_ns=0, compute_ns=100 * MS)]).headline
    assert said.startswith("No communication is on record; ")


def test_it_is_part_of_the_file_and_absent_in_older_ones():
    report = reported(*job([2] * 5))
    assert Report.from_json(report.to_json()).headline == report.headline
    import json

    older = json.loads(report.to_json())
    del older["headline"]
    assert Report.from_json(json.dumps(older)).headline is None
