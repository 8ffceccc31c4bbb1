"""A calibration speaks of the groups that it measured, and the report says where it is carried over."""

from __future__ import annotations

from shardtoll.analyzers.roofline import measured_ranks, one_node, sizes_note
from shardtoll.ledger import analyze
from tests.unit.analyzers.fabrics import ROUND, timed
from tests.unit.analyzers.ledgers import collective, ledger, run_of, step

FOUR = timed(ROUND, "all_reduce", one_node(4), 1 << 10, 1 << 20)


def test_groups_of_another_size_are_told():
    said = sizes_note(FOUR, [1, 2, 4])
    assert said == (
        "WARNING: floors of groups of 2 ranks are extrapolated from measured groups of 4 ranks; measure "
        "groups of that size before you rely on them"
    )
    assert "groups of 2, 3 and 8 ranks are" in sizes_note(FOUR, [8, 3, 2])


def test_nothing_is_told_where_all_were_measured_or_nothing_was():
    assert sizes_note(FOUR, [4, 1]) == sizes_note(ROUND, [2]) == sizes_note(FOUR, []) == ""


def test_a_message_between_two_ranks_measures_no_group_of_two():
    # A calibration of four ranks times its messages between two of them.
    with_send = timed(FOUR, "send", one_node(2), 1 << 10, 1 << 20)
    assert sizes_note(with_send, [2]) == sizes_note(FOUR, [2]) != ""
    assert measured_ranks(with_send, one_node(2)) == {4}


def test_the_report_says_so_beside_its_fabric():
    def provenance(ranks: int) -> str:
        calls = [collective(rank=rank, group_size=ranks) for rank in range(ranks)]
        steps = [step(0, rank) for rank in range(ranks)]
        return analyze(ledger(calls, run=run_of(ranks), steps=steps), FOUR).fabric.provenance

    assert "WARNING: floors of groups of 2 ranks are extrapolated from measured groups of 4" in provenance(2)
    assert "WARNING" not in provenance(4)
