"""The late rank, what it did meanwhile, and the sentence on whose fault the waiting is."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Leadup, Report, Stall
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, on_ranks, run_of, step

RANKS = 4
EVERY = 10 * MS


def leadup(rank, index, late, **parts):
    given = dict.fromkeys(("comm_ns", "copy_ns", "data_ns", "sync_ns", "host_ns"), 0) | {
        "compute_ns": 4 * MS,
        "phase": "backward",
    }
    given |= {name: value for name, value in parts.items() if late}
    return Leadup(0, rank, index, since_ns=index * EVERY, **given)


def job(late_ranks, late=2 * MS, transfer=1 * MS, exposed=None, **parts):
    """One collective every 10 ms on four ranks; `late_ranks[n]` comes `late` after the others to the n-th."""
    rows, leadups = [], []
    for n, late_rank in enumerate(late_ranks):
        end = (n + 1) * EVERY
        for rank in range(RANKS):
            long = transfer + (0 if rank == late_rank else late)
            rows.append(
                collective(
                    rank=rank,
                    seq=n + 1,
                    group_size=RANKS,
                    start_ns=end - long,
                    duration_ns=long,
                    exposed_ns=long if exposed is None else exposed,
                )
            )
            leadups.append(leadup(rank, n, rank == late_rank, **parts))
    return rows, leadups


def reported(rows, leadups=(), **given):
    about = given.pop("run", run_of(RANKS))
    return run(ledger(rows, run=about, leadups=leadups, **given))


def stragglers(*args, **given):
    return [f for f in reported(*args, **given).findings if f.kind == "straggler"]


def evidence(finding):
    return {item.label: item.value for item in finding.evidence}


def test_the_rank_that_is_always_last_is_named_with_its_toll():
    (finding,) = stragglers(*job([2] * 5, compute_ns=6 * MS, module="blocks.3", op="gemm"))
    # Ranks 0, 1 and 3 wait 2 ms in each of 5 collectives of the one step.
    assert (finding.toll_ns, finding.saving_ns) == (10 * MS, 10 * MS)
    assert (finding.ranks, finding.count, finding.confidence) == ((2,), 5, "certain")
    assert finding.title == (
        "rank 2 is last in 5 of 5 collectives, and the others wait 10 ms a step (10 %) for it: it spends "
        "10 ms longer computing than the others, most in backward of blocks.3"
    )
    assert evidence(finding)["longer computing, a step"] == 10 * MS
    assert evidence(finding)["ranks that wait"] == "ranks 0-1, 3"
    assert (finding.where.module, finding.where.phase, finding.where.op) == ("blocks.3", "backward", "gemm")
    assert "nvidia-smi" in finding.remedy.code


@pytest.mark.parametrize(
    ("part", "words", "code"),
    [
        ("data_ns", "idle while its batch is fetched", "DataLoader"),
        ("copy_ns", "in memory copies", "non_blocking"),
        ("host_ns", "idle because its host had launched nothing", "gc.disable"),
        ("sync_ns", "idle after its host waited for the device", ""),
        ("comm_ns", "in other collectives", ""),
    ],
)
def test_the_remedy_follows_from_what_the_late_rank_did(part, words, code):
    (finding,) = stragglers(*job([0] * 4, **{part: 2 * MS}))
    assert f"8 ms longer {words}" in finding.title
    assert code in (finding.remedy.code or "")


def test_a_step_that_began_late_is_said_to():
    rows, leadups = job([1] * 3)
    moved = [
        Leadup(0, one.rank, one.index, one.since_ns + 2 * MS, 2 * MS, 0, 0, 0, 0, 0, "backward")
        if one.rank == 1
        else one
        for one in leadups
    ]
    (finding,) = stragglers(rows, moved)
    assert "it begins its step 6 ms after the others" in finding.title
    assert "not on record" in finding.remedy.text


def test_without_lead_ups_the_cause_is_unknown():
    rows, _ = job([2] * 5)
    (finding,) = stragglers(rows)
    assert finding.title.endswith("for it")
    assert "not on record" in finding.remedy.text


def test_ranks_that_take_turns_are_no_single_rank():
    (finding,) = stragglers(*job([0, 1, 2, 3] * 2))
    # Each rank waits in 6 of 8 collectives.
    assert finding.toll_ns == 12 * MS
    assert finding.saving_ns is None
    assert "no single rank is the cause" in finding.title
    assert finding.ranks == (0, 1, 2, 3)


def test_each_wait_is_billed_once():
    found = stragglers(*job([2, 2, 2, 2, 2, 2, 0, 1]))
    assert [f.ranks for f in found] == [(2,), (0, 1)]
    # Rank 3 waits in all eight.
    assert sum(f.toll_ns for f in found) == 16 * MS
    exposed = [f for f in reported(*job([2] * 8)).findings if f.kind == "exposed-communication"]
    assert sum(f.saving_ns for f in exposed) == 8 * MS


def test_only_exposed_waiting_costs():
    assert stragglers(*job([2] * 5, exposed=1 * MS)) == []
    (finding,) = stragglers(*job([2] * 5, exposed=2 * MS))
    assert finding.toll_ns == 5 * MS


def test_the_saving_ends_at_the_rank_before():
    rows, _ = job([2] * 3)
    nearly = [
        collective(rank=3, seq=n + 1, group_size=RANKS, start_ns=(n + 1) * EVERY - 1500 * US,
                   duration_ns=1500 * US, exposed_ns=1500 * US)
        for n in range(3)
    ]  # fmt: skip
    (finding,) = stragglers([row for row in rows if row.rank != 3] + nearly)
    assert (finding.toll_ns, finding.saving_ns) == (6 * MS, 1500 * US)


def test_little_waiting_and_little_lateness_are_no_finding():
    assert stragglers(*job([2] * 5, late=100 * US)) == []
    assert all("no single rank" in f.title for f in stragglers(*job([2] * 200, late=9 * US)))


def test_one_of_two_collectives_is_only_possible_and_of_two_ranks_half_is_chance():
    (finding,) = stragglers(*job([2] * 2))
    assert finding.confidence == "possible"
    two = [
        collective(rank=rank, seq=n, start_ns=n * EVERY + (2 * MS if rank == n % 2 else 0), duration_ns=3 * MS
                   - (2 * MS if rank == n % 2 else 0), exposed_ns=3 * MS)
        for n in range(6)
        for rank in (0, 1)
    ]  # fmt: skip
    (finding,) = stragglers(two, run=run_of(2))
    assert "no single rank" in finding.title


class TestHeadline:
    def test_a_late_rank(self):
        said = reported(*job([2] * 5)).headline
        assert said == (
            "Rank 2 is late, not the network: rank 0, the slowest, is exposed to communication for 40 ms "
            "of its 100 ms step (all ranks: 40 % of their steps); 60 % of it is waiting for late ranks "
            "(rank 2 is last in 5 of 5 collectives), 40 % is moving data at a median busbw of "
            "1.57 GB/s, 1.3 times its floor."
        )

    def test_ranks_in_turns(self):
        said = reported(*job([0, 1, 2, 3] * 2)).headline
        assert said.startswith("Late ranks, no single one, are at fault, not the network: ")

    def test_the_network(self):
        said = reported(*job([2] * 5, late=0, transfer=8 * MS)).headline
        assert said.startswith("The network is at fault, not a late rank: ")
        assert "0 % of it is waiting for late ranks, 100 % is moving data" in said

    def test_the_network_at_its_floor(self):
        said = reported(*job([2] * 5, late=0, transfer=500 * US)).headline
        assert said.startswith("Neither: the network does what it can")

    def test_one_rank_alone_cannot_tell(self):
        rows, _ = job([2] * 5)
        alone = run_of(RANKS, ranks_seen=(0,))
        said = reported([row for row in rows if row.rank == 0], run=alone).headline
        assert said.startswith("Network or a late rank cannot be told: ")
        assert said.endswith("1 of 4 ranks seen: waiting cannot be told from moving data.")

    def test_sends_and_receives_cannot_tell(self):
        rows = [collective(rank=0, op="send"), collective(rank=1, op="recv")]
        assert "in sends and receives" in reported(rows, run=run_of(2)).headline

    def test_hidden_communication_and_an_idle_device(self):
        quiet = [
            step(rank=rank, compute_ns=58 * MS, exposed_comm_ns=2 * MS, idle_ns=40 * MS) for rank in (0, 1)
        ]
        stalls = [Stall(0, rank, "data", "loader", "other", 1, 30 * MS, 30 * MS) for rank in (0, 1)]
        said = reported(on_ranks((0, 1)), run=run_of(2), steps=quiet, stalls=stalls).headline
        assert said.startswith("Neither network nor a late rank is at fault")
        assert "40 % of the steps is idle, most of it by data loading" in said

    def test_nothing_on_record(self):
        assert reported([], steps=[]).headline is None
        said = reported([], steps=[step(exposed_comm_ns=0, idle_ns=0, compute_ns=100 * MS)]).headline
        assert said.startswith("No communication on record: ")

    def test_it_is_part_of_the_file_and_absent_in_older_ones(self):
        report = reported(*job([2] * 5))
        assert Report.from_json(report.to_json()).headline == report.headline
        import json

        older = json.loads(report.to_json())
        del older["headline"]
        assert Report.from_json(json.dumps(older)).headline is None
