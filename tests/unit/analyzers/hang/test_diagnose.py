"""Made-up jobs of which it is known who is at fault: the verdict names rank and line."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.ledger.answers.hang import HangAnswer, hang_to_json
from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight
from tests.flights import NOW, SECOND, call, flight

A, B, C = "train.py:10 (step)", "train.py:20 (step)", "train.py:30 (step)"


def answer(*flights: RankFlight, after_s: float | None = None) -> HangAnswer:
    return diagnose(flights, NOW, None if after_s is None else int(after_s * SECOND))


def waiting(number: int, **rest: Any) -> FlightCall:
    return call(number, finished_ns=None, **rest)


def steps(*lines: str, many: int = 3, step: int = 0) -> list[FlightCall]:
    """Return so many steps that issue an all_reduce at each of the lines."""
    calls: list[FlightCall] = []
    for number in range(step, step + many):
        calls += [call(len(calls) + 1 + place, source=line, step=number) for place, line in enumerate(lines)]
    return calls


def test_ranks_that_have_closed_are_no_hang():
    told = answer(*(flight(rank, steps(A), state="closed", life="dead") for rank in range(2)))
    assert not told.hang
    assert told.verdict == "No hang: ranks 0 and 1 have finished."
    assert told.findings == ()


def test_a_rank_that_is_late_for_less_than_the_limit_is_slow():
    here = flight(0, [*steps(A), waiting(4, source=A)], blocked_s=5)
    late = flight(1, steps(A), moved_ns=NOW - 5 * SECOND, line="data.py:7 (load)")
    told = answer(here, late)
    assert (told.hang, told.why) == (False, "slow")
    assert (
        "rank 0 waits for 5.00 s in all_reduce 4 of group world (16 B float32) at train.py:10" in told.verdict
    )
    assert "for rank 1, which is at data.py:7 (load)" in told.verdict
    assert answer(here, late, after_s=3).why == "late"


def test_a_late_rank_is_named_with_its_line():
    here = flight(0, [*steps(A), waiting(4, source=A)], blocked_s=50)
    told = answer(here, flight(1, steps(A), line="data.py:7 (load)"))
    assert (told.hang, told.why) == (True, "late")
    assert told.verdict.startswith("Rank 1 has not arrived and has been at data.py:7 (load) for 60.0 s;")
    assert told.findings[0].confidence == "likely"
    assert [stand.waits_for for stand in told.ranks] == [(1,), ()]


def test_a_rank_that_has_just_moved_is_slow_however_long_the_others_wait():
    here = flight(0, [*steps(A), waiting(4)], blocked_s=50)
    assert answer(here, flight(1, steps(A), moved_ns=NOW - SECOND)).why == "slow"


def test_a_skipped_collective_shows_by_the_step():
    others = [
        flight(
            rank,
            [*steps(A, B), call(7, source=A, step=3), waiting(8, source=B, step=3)],
            world=3,
            blocked_s=20,
        )
        for rank in (0, 2)
    ]
    odd = flight(
        1, [*steps(A, B), call(7, source=A, step=3), waiting(8, source=A, step=4)], world=3, blocked_s=20
    )
    told = answer(others[0], odd, others[1])
    # One size and operation: nothing differs but the line.
    assert told.why == "unknown"
    unlike = replace(odd, calls=(*odd.calls[:-1], replace(odd.calls[-1], message_bytes=64)))
    told = answer(others[0], unlike, others[1])
    assert told.why == "skipped"
    assert told.verdict.startswith(
        f"Rank 1 skipped all_reduce 8 of group world (16 B float32) at {B} in step 3"
    )
    assert told.divergence is not None
    assert told.divergence.certain


def test_two_ranks_alone_are_told_apart_by_earlier_steps():
    here = flight(0, [*steps(A, B), call(7, source=A, step=3), waiting(8, source=B, step=3)], blocked_s=20)
    odd = flight(
        1, [*steps(A, B), call(7, source=A, step=3), waiting(8, op="broadcast", root=0, source=C, step=3)],
        blocked_s=20,
    )  # fmt: skip
    told = answer(here, odd)
    assert told.why == "extra"
    assert told.verdict.startswith(f"Rank 1 issued broadcast 8 of group world (16 B float32, root 0) at {C}")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("message_bytes", 32, "The size differs: rank 1 is in all_reduce 4 of group world (32 B float32)"),
        ("dtype", "int32", "The dtype differs: rank 1"),
        ("reduce_op", "MAX", "The reduction differs: rank 1"),
        ("op", "broadcast", "The operation differs: rank 1 is in broadcast 4"),
    ],
)
def test_what_ranks_disagree_on_is_named(field: str, value: object, words: str):
    usual = waiting(4, source=A, reduce_op="SUM")
    odd: FlightCall = replace(usual, **{field: value})
    flights = [
        flight(rank, [*steps(A), odd if rank == 1 else usual], world=3, blocked_s=2) for rank in range(3)
    ]
    told = answer(*flights)
    assert (told.hang, told.why) == (True, "mismatch")
    assert told.verdict.startswith(words)
    assert [each.rank for each in told.groups[0].differences] == [1]


def test_of_two_ranks_that_disagree_before_the_third_came_the_odd_one_is_named():
    # Two against none: the steps before, in which all agreed, say who is right.
    usual = replace(waiting(4, source=A), reduce_op="SUM")
    odd = replace(usual, message_bytes=32)
    before = [replace(each, reduce_op="SUM") for each in steps(A)]
    flights = [
        flight(0, before, world=3),
        flight(1, [*before, odd], world=3, blocked_s=2),
        flight(2, [*before, usual], world=3, blocked_s=2),
    ]
    told = answer(*flights)
    assert told.verdict.startswith(
        "The size differs: rank 1 is in all_reduce 4 of group world (32 B float32)"
    )


def test_a_wrong_root_is_named():
    calls = [call(place, op="broadcast", root=0, source=A) for place in (1, 2, 3)]
    flights = [
        flight(rank, [*calls, waiting(4, op="broadcast", root=2 if rank == 1 else 0, source=A)], world=3,
               blocked_s=2)
        for rank in range(3)
    ]  # fmt: skip
    assert "rank 1 is in broadcast 4 of group world (16 B float32, root 2)" in answer(*flights).verdict


def test_equal_collectives_that_all_ranks_are_in_are_no_hang_at_once():
    flights = [flight(rank, [*steps(A), waiting(4, source=A)], blocked_s=5) for rank in range(2)]
    assert answer(*flights).why == "none"
    assert answer(*flights, after_s=3).why == "unknown"


def groups(*names: str, world: int = 2) -> list[FlightGroup]:
    return [FlightGroup(name, tuple(range(world)), issued_place=1) for name in names]


def test_two_groups_in_another_order_are_a_deadlock():
    first = [call(1, place=1, group="dp", source=A, step=0), call(2, place=1, group="tp", source=B, step=0)]
    dp = waiting(3, place=2, group="dp", source=A, step=1)
    tp = waiting(3, place=2, group="tp", source=B, step=1)
    both = [FlightGroup("dp", (0, 1)), FlightGroup("tp", (0, 1))]
    ours = flight(
        0,
        [*first, dp],
        blocked_s=2,
        groups=[replace(both[0], issued_place=2), replace(both[1], issued_place=1)],
    )
    theirs = flight(
        1,
        [*first, tp],
        blocked_s=2,
        groups=[replace(both[0], issued_place=1), replace(both[1], issued_place=2)],
    )
    told = answer(ours, theirs)
    assert (told.why, told.cycle) == ("order", (0, 1))
    assert told.verdict.startswith(
        f"Deadlock by order: rank 1 issued all_reduce 2 of group tp (16 B float32) at {B}"
    )
    assert told.divergence is not None
    assert told.divergence.certain
    fresh = answer(replace(ours, blocked_since_ns=NOW), replace(theirs, blocked_since_ns=NOW))
    assert not fresh.hang, "files are not read at one instant"


def swapped(*odd: int, world: int = 5) -> HangAnswer:
    """Return the answer on ranks that begin with group tp while all others begin with dp."""
    members = tuple(range(world))
    flights = []
    for rank in members:
        name, line = ("tp", B) if rank in odd else ("dp", A)
        own = [FlightGroup(each, members, issued_place=int(each == name)) for each in ("dp", "tp")]
        calls = [call(1, source=C, step=0), waiting(2, place=1, group=name, source=line, step=1)]
        flights.append(flight(rank, calls, world=world, blocked_s=2, groups=own))
    return answer(*flights)


@pytest.mark.parametrize(("odd", "named"), [((3,), "rank 3"), ((1, 4), "ranks 1 and 4")])
def test_only_ranks_that_leave_the_order_of_most_are_at_fault(odd: tuple[int, ...], named: str):
    told = swapped(*odd)
    assert told.why == "order"
    assert told.verdict.startswith(f"Deadlock by order: {named} issued all_reduce 1 of group tp")
    assert {each.label: each.value for each in told.findings[0].evidence}["ranks at fault"] == named


def test_without_a_majority_all_ranks_of_the_circle_are_named():
    told = swapped(1, 3, world=4)
    assert {each.label: each.value for each in told.findings[0].evidence}["ranks at fault"] == "ranks 0 and 1"


def test_three_ranks_in_a_circle_of_three_groups():
    flights = []
    for rank in range(3):
        mine, other = f"g{rank}", f"g{(rank + 2) % 3}"
        pairs = {mine: (rank, (rank + 1) % 3), other: ((rank + 2) % 3, rank)}
        waits = waiting(1, place=1, group=mine, source=f"t.py:{rank} (f)")
        kept = [FlightGroup(name, tuple(sorted(pair)), issued_place=1 if name == mine else None)
                for name, pair in pairs.items()]  # fmt: skip
        flights.append(flight(rank, [waits], world=3, blocked_s=2, groups=kept))
    told = answer(*flights)
    assert (told.why, told.cycle) == ("cycle", (0, 1, 2))
    assert "rank 0 waits for rank 1" in told.verdict
    assert "t.py:2 (f)" in told.verdict


def test_a_send_without_its_receive():
    send = waiting(4, op="send", place=1, root=1, source=B)
    told = answer(
        flight(0, [*steps(A), send], blocked_s=2), flight(1, [*steps(A), waiting(4, source=A)], blocked_s=2)
    )
    assert told.why == "no peer"
    assert told.verdict.startswith(
        f"Rank 0 waits for 2.00 s in send to rank 1 (16 B float32) at {B}, and rank 1"
    )
    assert "issued no matching recv" in told.verdict


def test_two_ranks_that_both_receive_first():
    flights = [
        flight(rank, [*steps(A), waiting(4, op="recv", place=1, root=1 - rank, source=B)], blocked_s=2)
        for rank in range(2)
    ]
    told = answer(*flights)
    assert (told.why, told.cycle) == ("cycle", (0, 1))
    assert "recv from rank 1" in told.verdict


def test_a_receive_that_was_sent_to_is_no_hang():
    sent = call(4, op="send", place=1, root=1, source=B)
    told = answer(
        flight(0, [*steps(A), sent], moved_ns=NOW),
        flight(1, [*steps(A), waiting(4, op="recv", place=1, root=0, source=B)], blocked_s=2),
    )
    assert not told.hang


@pytest.mark.parametrize("life", ["dead", "alive"])
def test_a_failed_rank_is_at_fault_and_not_those_that_lost_it(life: Any):
    lost = flight(0, [*steps(A), waiting(4, source=A)], world=3, state="failed", life="dead", raised=4,
                  error="RuntimeError: Connection closed by peer")  # fmt: skip
    bad = flight(1, steps(A), world=3, state="failed", life=life, error="ValueError: no labels",
                 line="data.py:9 (load)")  # fmt: skip
    told = answer(lost, bad, replace(lost, rank=2))
    assert (told.hang, told.why) == (True, "failed")
    assert told.verdict.startswith(
        "Rank 1 failed with ValueError: no labels at data.py:9 (load); ranks 0 and 2"
    )


def test_a_dead_rank_is_named_while_others_wait():
    here = flight(0, [*steps(A), waiting(4, source=A)], blocked_s=2)
    told = answer(here, flight(1, steps(A), life="dead", step=2, heartbeat_ns=NOW - 2 * SECOND))
    assert told.why == "dead"
    assert told.verdict.startswith("Rank 1 died in step 2, after all_reduce 3")


def test_a_heartbeat_that_stopped_before_another_of_its_host_is_a_dead_rank():
    here = flight(0, [*steps(A), waiting(4)], blocked_s=30, life="unknown", host="b")
    there = flight(1, steps(A), life="unknown", host="b", heartbeat_ns=NOW - 30 * SECOND)
    assert answer(here, there).why == "dead"
    assert answer(here, replace(there, heartbeat_ns=NOW - SECOND)).why == "late"


@pytest.mark.parametrize("apart_s", [1, 10, 300])
def test_folders_of_hosts_that_were_copied_at_other_times_hold_no_dead_rank(apart_s: int):
    first = [
        flight(rank, [*steps(A), waiting(4, source=A)], world=4, life="unknown", host="a", blocked_s=30)
        for rank in (0, 1)
    ]
    earlier = [
        flight(2, [*steps(A), waiting(4, source=A)], world=4, life="unknown", host="b", blocked_s=300),
        flight(3, steps(A), world=4, life="unknown", host="b", line="data.py:7 (load)"),
    ]
    earlier = [
        replace(each, heartbeat_ns=NOW - apart_s * SECOND, moved_ns=NOW - 400 * SECOND) for each in earlier
    ]
    told = answer(*first, *earlier)
    assert "dead" not in [stand.standing for stand in told.ranks]
    assert (told.why, told.verdict.split(" has ")[0]) == ("late", "Rank 3")
    stopped = replace(earlier[1], heartbeat_ns=NOW - (apart_s + 10) * SECOND)
    assert answer(*first, earlier[0], stopped).why == "dead"


def test_a_job_that_was_killed_as_a_whole_shows_what_it_was_in():
    here = flight(0, [*steps(A), waiting(4, source=A)], blocked_s=50, life="dead")
    told = answer(here, flight(1, steps(A), life="dead", line="data.py:7 (load)"))
    assert told.why == "late"
    quick = flight(0, [*steps(A), waiting(4, source=A)], blocked_s=0, life="dead")
    assert not answer(quick, flight(1, steps(A), life="dead", moved_ns=NOW)).hang


def test_a_rank_that_ended_early():
    here = flight(0, [*steps(A), waiting(4, source=A)], blocked_s=20)
    told = answer(here, flight(1, steps(A), state="closed", life="dead"))
    assert told.why == "closed"
    assert told.verdict.startswith("Rank 1 finished early, after all_reduce 3")


def test_ranks_whose_files_are_elsewhere():
    told = answer(flight(0, [*steps(A), waiting(4)], world=4, blocked_s=20))
    assert (told.hang, told.why) == (True, "no file")
    assert told.verdict.endswith(
        "for ranks 1-3, and no file of them was given: they have not opened their audits, or their run "
        "folders are missing here."
    )
    fresh = answer(flight(0, [*steps(A), waiting(4)], blocked_s=2))
    assert "for rank 1, which is in no file that was given" in fresh.verdict
    assert [stand.standing for stand in told.ranks] == ["waits", "no file", "no file", "no file"]


def test_what_cpp_issued_unseen_shows_by_the_groups_count():
    engine = ("torch/autograd/graph.py:800 (_engine_run_backward)",)
    here = flight(0, steps(A), frames=engine, line=B)
    here = replace(here, groups=(FlightGroup("world", (0, 1), issued_place=5),))
    told = answer(here, flight(1, steps(A), line="data.py:7 (load)"))
    assert told.why == "late"
    assert "rank 0 waits for 60.0 s in a collective that C++ issued (number 5 of its group)" in told.verdict


def test_all_to_all_splits_that_do_not_add_up():
    def split(rank: int, sent: int, got: int) -> RankFlight:
        last = waiting(4, op="all_to_all", message_bytes=sent, received_bytes=got, source=B)
        return flight(rank, [*steps(A), last], blocked_s=2)

    told = answer(split(0, 32, 32), split(1, 64, 32))
    assert told.why == "mismatch"
    assert "rank 1 sends 64 B and expects 32 B at train.py:20 (step)" in told.verdict
    assert not answer(split(0, 32, 64), split(1, 64, 32)).hang


@pytest.mark.parametrize("life", ["alive", "dead"])
def test_splits_of_ranks_that_wait_for_another_are_not_added_up(life: Any):
    flights = [
        flight(rank, [*steps(A), waiting(4, op="all_to_all", message_bytes=32, received_bytes=got, source=B)],
               world=3, blocked_s=3, life=life)
        for rank, got in ((0, 64), (1, 8))
    ]  # fmt: skip
    told = answer(*flights, flight(2, steps(A), world=3, life=life, line=C))
    assert (told.hang, told.why) == (False, "slow")
    assert not told.groups[0].differences


def test_the_answer_is_json_and_bounded_by_what_was_given():
    told = answer(flight(0, [waiting(1)], blocked_s=20), flight(1, []))
    plain = hang_to_json(told)
    assert plain["schema_version"] == 1
    assert plain["hang"] is True
    assert plain["findings"][0]["kind"] == "hang"


def test_nobody_known_is_no_hang():
    assert not answer().hang


def test_128_ranks_with_full_rings_take_no_time():
    before = [call(number, source=A, step=number // 8) for number in range(1, 512)]
    here = [*before, waiting(512, source=A, step=64)]
    ranks = [flight(rank, here, world=128, blocked_s=50) for rank in range(128) if rank != 5]
    began = time.process_time()
    told = answer(*ranks, flight(5, before, world=128, line="data.py:7 (load)"))
    assert time.process_time() - began < 5
    assert (told.why, told.verdict.split(" has ")[0]) == ("late", "Rank 5")
    assert told.groups[0].missing == (5,)


def test_what_a_rank_has_issued_is_the_largest_of_its_calls_and_its_groups_count():
    pair = FlightGroup("pair", (0, 1), issued_place=9)
    here = flight(0, [*steps(A), call(4, group="pair", place=2)], groups=[pair])
    job = Job([here, flight(1, [call(7, group="pair", place=11)], groups=[pair])], NOW)
    key = Key(("pair", (0, 1)))
    assert [job.issued(rank, key) for rank in (0, 1, 2)] == [9, 11, None]
    assert [job.issued(rank, Key(("world", (0, 1)))) for rank in (0, 1)] == [3, 0]
    assert job.issued(0, Key(("other", ()))) == 0
    assert list(job.at(key, 2)) == [0]


def test_ranks_without_a_file_are_looked_up_once():
    here = flight(0, [*steps(A), waiting(4)], world=40_000, blocked_s=50)
    began = time.process_time()
    told = answer(here)
    assert time.process_time() - began < 5
    assert (told.why, len(told.ranks)) == ("no file", 40_000)


def test_a_job_has_no_more_ranks_than_any_that_exists():
    lone = flight(0, [call(1, finished_ns=None)], world=4, blocked_s=30)
    lone = replace(lone, world_size=1 << 40)
    assert len(Job([lone], NOW).absent()) < 1 << 18


@pytest.mark.parametrize("behind", [0, 1, 2_000])
def test_thousands_of_ranks_that_wait_alike_take_no_longer_than_their_number(behind: int):
    """A log of 4,000 ranks took more than three minutes: what is alike is found out once."""
    groups = (FlightGroup("default", (), issued_place=6),)
    flights = [
        RankFlight(
            rank,
            None,
            "log",
            "train.log",
            (call(1, group="default", place=5 if rank < behind else 6, finished_ns=None),),
            groups=(replace(groups[0], issued_place=5 if rank < behind else 6),),
            state="open",
            blocked=1,
            waited_ns=600 * SECOND,
        )
        for rank in range(4_000)
    ]
    began = time.process_time()
    told = answer(*flights)
    assert time.process_time() - began < 4
    assert told.why == ("late" if behind else "unknown")
    assert len(told.groups) == (2 if behind else 1)
