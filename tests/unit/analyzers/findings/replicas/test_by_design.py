"""Replicas that differ on purpose are left alone, those that may are possibly wrong, and others are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.analyzers.ledgers import collective, compute, ledger, step
from tests.unit.analyzers.of_kinds import running
from tests.unit.analyzers.value_rows import noise, parameter, value

run = running("wrong-gradient", "replica-drift")

NAME = "body.weight"
BYTES = 8 * 4 * 4
KINDS = ("wrong-gradient", "replica-drift")


def confidences(**given: Any) -> list[tuple[str, str]]:
    marks = [step(number, rank) for number in range(6) for rank in (0, 1)]
    findings = run(ledger(steps=marks, parameters=[parameter(NAME, r) for r in (0, 1)], **given)).findings
    return [(one.kind, one.confidence) for one in findings if one.kind in KINDS]


def looks(equal: set[int], steps=range(6), times=1, after=0):
    """Ranks whose gradients differ, and whose values are equal after the steps in `equal`, and before all.

    Values move little a step; after step `after` they are `times` what they were.
    """
    rows = [value("parameter", NAME, rank, noise(99), step=None) for rank in (0, 1)]
    for number in steps:
        for rank in (0, 1):
            rows.append(value("gradient", NAME, rank, noise(10 * number + rank), step=number))
            seed = 100 + 10 * number + (0 if number in equal else rank)
            held = (noise(99) + noise(seed) / 32) * (times if number >= after else 1)
            rows.append(value("parameter", NAME, rank, held, step=number))
    return rows


def sums(steps, **given: Any):
    given = {"phase": "other", "message_bytes": BYTES, "source": "t.py:9 (average)"} | given
    return [collective(rank=rank, step=number, **given) for number in steps for rank in (0, 1)]


LIKELY = [("wrong-gradient", "likely"), ("replica-drift", "likely")]
POSSIBLE = [("wrong-gradient", "possible")]


class TestAveraged:
    """Local SGD: each rank steps by itself, and parameters are averaged after steps 1, 3 and 5."""

    @pytest.mark.parametrize("of_values", [None, True])
    def test_it_is_left_alone(self, of_values):
        given = {"parameter": NAME if of_values else None, "of_values": of_values}
        assert confidences(values=looks({1, 3, 5}), collectives=sums((1, 3, 5), **given)) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"op": "broadcast", "root": 0},  # the others' work is lost
            {"message_bytes": BYTES - 4},
            {"parameter": "other.weight"},
            {"dtype": "int64"},
            {"reduce_op": "MAX"},
            {"reduce_op": "MAX", "parameter": NAME, "of_values": True},
        ],
        ids=str,
    )
    def test_what_averages_nothing_proves_nothing(self, change):
        assert confidences(values=looks({1, 3, 5}), collectives=sums((1, 3, 5), **change)) == LIKELY

    def test_it_has_to_go_on(self):
        assert confidences(values=looks({1}), collectives=sums((1,))) == LIKELY, "four steps, before two"
        assert confidences(values=looks({2}), collectives=sums((2,))) == POSSIBLE, "once"

    def test_looks_need_not_fall_on_each_time(self):
        rows = looks({3}, steps=(0, 3))
        assert confidences(values=rows, collectives=sums((1, 3, 5))) == []

    def test_values_by_name_need_no_look(self):
        rows = [row for row in looks(set()) if row.kind == "gradient" or row.step is None]
        given = {"parameter": NAME, "of_values": True}
        assert confidences(values=rows, collectives=sums((1, 3, 5), reduce_op="AVG", **given)) == []
        assert confidences(values=rows, collectives=sums((3,), reduce_op="AVG", **given)) == POSSIBLE, "once"
        summed = confidences(values=rows, collectives=sums((1, 3, 5), **given))
        assert summed == POSSIBLE, "that it was divided leaves no record"
        assert confidences(values=rows, collectives=sums((1, 3, 5), parameter=NAME)) == [
            ("wrong-gradient", "certain")
        ], "gradients by name"

    def test_without_looks_it_is_possible(self):
        rows = [row for row in looks(set()) if row.kind == "gradient" or row.step is None]
        assert confidences(values=rows, collectives=sums((1, 3, 5))) == POSSIBLE
        assert confidences(values=rows, collectives=sums((1, 3, 5), message_bytes=BYTES - 4)) == LIKELY[:1]

    def test_a_flat_buffer_of_gradients_averages_no_parameters(self):
        """A surveyed step shows that its line follows a backward."""
        computes = [
            compute(rank=rank, step=1, start_ns=0, phase=phase, index=index)
            for index, phase in enumerate(("forward", "backward"))
            for rank in (0, 1)
        ]
        given = {"values": looks({1, 3, 5}), "collectives": sums((1, 3, 5), issue_ns=10)}
        assert confidences(computes=computes, **given) == LIKELY
        assert confidences(**given) == []

    @pytest.mark.parametrize("name", [None, NAME])
    def test_a_sum_that_nobody_divides_is_wrong(self, name):
        given = {"parameter": name, "of_values": name and True}
        rows = looks({3, 5}, times=2, after=3)
        assert confidences(values=rows, collectives=sums((3, 5), **given))[:1] == LIKELY[:1]
        every = looks(set(range(6)), times=2, after=3)
        found = confidences(values=every, collectives=sums(range(6), **given))
        assert found == LIKELY[:1], "in each step, as gradients that are reduced later"

    @pytest.mark.parametrize("name", [None, NAME])
    def test_values_that_still_differ_refute_what_names_them(self, name):
        given = {"parameter": name, "of_values": name and True, "reduce_op": "AVG"}
        assert confidences(values=looks(set()), collectives=sums((1, 3, 5), **given)) == LIKELY

    def test_copies_make_equal_what_is_not_averaged(self):
        calls = sums((1, 3, 5)) + sums((1, 3, 5), op="broadcast", root=0, parameter=NAME, seq=2)
        assert [how for _, how in confidences(values=looks({1, 3, 5}), collectives=calls)] == ["possible"]

    def test_what_is_averaged_before_the_first_step_differs_after_it(self):
        calls = sums((None,), parameter=NAME, of_values=True)
        assert confidences(values=looks(set()), collectives=calls) == LIKELY
        rows = [row for row in looks(set()) if row.kind == "gradient" or row.step is None]
        assert confidences(values=rows, collectives=calls) == LIKELY[:1]

    def test_between_steps_it_is_possible(self):
        """No look follows it, and what is done between steps has no phase."""
        marks = [step(number, rank, start_ns=number * 10**9) for number in range(6) for rank in (0, 1)]
        given = {"parameter": NAME, "phase": "forward", "message_bytes": BYTES, "source": "t.py:9"}
        calls = [
            collective(rank=rank, step=None, start_ns=number * 10**9 + 5 * 10**8, **given)
            for number in (1, 3, 5)
            for rank in (0, 1)
        ]
        table = [parameter(NAME, rank) for rank in (0, 1)]
        for many, least in ((6, "possible"), (2, "likely")):
            book = ledger(steps=marks, parameters=table, values=looks(set()), collectives=calls[:many])
            found = [one.confidence for one in run(book).findings if one.kind in KINDS]
            assert set(found) == {least}

    def test_several_names_of_one_message(self):
        named = sums((1, 3, 5), parameter=f"other.weight, {NAME}", of_values=True)
        assert confidences(values=looks({1, 3, 5}), collectives=named) == []
        cut = sums((1, 3, 5), parameter="other.weight, ... 2 more", of_values=True)
        assert confidences(values=looks({1, 3, 5}), collectives=cut) == []


class TestOwned:
    """ZeRO-1: rank 1 gets the gradient, updates the parameter and sends it to rank 0."""

    @pytest.mark.parametrize("looked", [True, False])
    @pytest.mark.parametrize(
        ("reduced", "sender", "wrong"),
        [
            ({"parameter": NAME, "root": 1}, 1, False),
            ({"parameter": NAME, "root": 0}, 1, True),
            ({"parameter": "other.weight", "root": 1}, 1, True),
            ({"parameter": NAME, "root": 1, "op": "broadcast"}, 1, True),
        ],
    )
    def test_the_owner_is_who_gets_the_sum(self, looked, reduced, sender, wrong):
        rows = looks(set(range(6)))
        if not looked:
            rows = [row for row in rows if row.kind == "gradient" or row.step is None]
        calls = sums(range(6), **({"op": "reduce"} | reduced))
        calls += sums(range(6), op="broadcast", root=sender, parameter=NAME, of_values=True, seq=2)
        assert confidences(values=rows, collectives=calls) == (LIKELY[:1] if wrong else [])

    @pytest.mark.parametrize("looked", [True, False])
    @pytest.mark.parametrize(
        ("reduced", "sender", "wrong"),
        [
            ({"root": 0}, 0, False),
            ({"root": 0}, 1, True),
            ({"root": 0, "parameter": NAME}, 1, True),
            ({"root": 0, "reduce_op": "MAX"}, 0, True),
            ({"root": 0, "dtype": "int64"}, 0, True),
        ],
    )
    def test_so_it_is_of_flat_buffers(self, looked, reduced, sender, wrong):
        rows = looks(set(range(6)))
        if not looked:
            rows = [row for row in rows if row.kind == "gradient" or row.step is None]
        calls = sums(range(6), **({"op": "reduce"} | reduced))
        calls += sums(range(6), op="broadcast", root=sender, seq=2)
        assert confidences(values=rows, collectives=calls) == (LIKELY[:1] if wrong else [])

    def test_what_nobody_sends_back_is_wrong(self):
        rows = [row for row in looks(set()) if row.kind == "gradient" or row.step is None]
        calls = sums(range(6), op="reduce", root=1, parameter=NAME)
        assert confidences(values=rows, collectives=calls) == LIKELY[:1]


class TestCombined:
    """Ranks compute with one weight each, and module `moe` adds up the outcome over them."""

    def found(self, shapes=("f32[3,4] f32[4,8]", "f32[5,4] f32[4,8]"), prints=(1, 2), **given: Any):
        name = "moe.expert.weight"
        rows = [value("parameter", name, rank, noise(99), step=None) for rank in (0, 1)]
        rows += [value("gradient", name, rank, noise(rank)) for rank in (0, 1)]
        computes = [
            compute(
                rank=rank,
                index=index,
                start_ns=index,
                module="moe.expert",
                phase=phase,
                shapes=shapes[rank],
                input_hash=prints[rank],
            )
            for rank in (0, 1)
            for index, phase in enumerate(("forward", "backward"))
        ]
        call = {"phase": "forward", "module": "moe", "issue_ns": 1, "message_bytes": 8 * 8 * 4}
        calls = [collective(rank=rank, **(call | given)) for rank in (0, 1)]
        table = [parameter(name, rank) for rank in (0, 1)]
        findings = run(ledger(values=rows, parameters=table, computes=computes, collectives=calls)).findings
        (one,) = (one for one in findings if one.kind == "wrong-gradient")
        assert ("right if each rank's is its own" in one.title) == (one.severity == "warning")
        return one.confidence

    def test_an_expert_is_possibly_right(self):
        assert self.found() == "possible"
        assert self.found(op="reduce_scatter") == "possible"

    @pytest.mark.parametrize(
        "change",
        [{"op": "all_gather"}, {"module": "head"}, {"message_bytes": 4}],
        ids=str,
    )
    def test_what_adds_up_nothing_of_it(self, change):
        assert self.found(**change) == "likely"

    def test_parts_of_one_batch_are_no_expert(self):
        assert self.found(shapes=("f32[4,4] f32[4,8]",) * 2) == "likely"

    def test_what_all_ranks_give_the_same(self):
        """A router makes less than is added up; an expert whose output is masked, as much."""
        assert self.found(shapes=("f32[8,4] f32[4,2]",) * 2, prints=(1, 1)) == "likely"
        assert self.found(shapes=("f32[8,4] f32[4,8]",) * 2, prints=(1, 1)) == "possible"
