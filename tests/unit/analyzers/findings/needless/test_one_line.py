"""A collective that two analyses speak of is on one line of the bill, with both facts, and billed once."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.needless.one_line import one_line_each
from shardtoll.analyzers.roofline import UNKNOWN
from shardtoll.ledger import Collective, Finding, Rows, Severity, Where
from tests.unit.analyzers.ledgers import MS, collective, ledger, on_ranks
from tests.unit.analyzers.of_kinds import running

run = running("implicit-redistribute", "redundant-collective")

IMPLICIT: dict[str, Any] = {
    "implicit": True,
    "op": "all_gather",
    "phase": "forward",
    "module": "block",
    "caused_by_op": "aten.mm.default",
    "placements_from": "(Shard(dim=0),)",
    "placements_to": "(Replicate(),)",
    "mesh_dim": "tp",
    "source": "train.py:12 (forward)",
    "message_bytes": 4096,
}
KINDS = ("implicit-redistribute", "redundant-collective")


def bill(rows: list[Collective]) -> list[Finding]:
    return [each for each in run(ledger(rows)).findings if each.kind in KINDS]


def gathers(*sent: int, first: int = 1, **given: Any) -> list[Collective]:
    """Gathers one after another; equal numbers in `sent` are equal bytes of the same, untouched memory."""
    return [
        collective(
            rank=rank,
            seq=seq,
            issue_ns=seq * MS,
            start_ns=seq * MS,
            input_hash=100 * what + rank,
            input_content=what,
            **(IMPLICIT | given),
        )
        for rank in (0, 1)
        for seq, what in enumerate(sent, first)
    ]


def test_an_implicit_redistribute_of_bytes_already_sent_is_one_line_with_both_facts() -> None:
    (line,) = bill(gathers(1, 1, 1, 2))
    assert (line.kind, line.also, line.severity) == (KINDS[0], (KINDS[1],), "warning")
    assert "4 all_gathers per step" in line.title
    assert line.title.endswith("; 2 of 4 redundant: repeats bytes that this step had sent before")
    assert (line.figure("redundant_count"), line.figure("redundant_bytes")) == (2, 2 * 4096)
    assert (line.toll_ns, line.saving_ns, line.bytes) == (8 * MS, 4 * MS, 4 * 4096), "each instant once"
    assert line.remedy is not None
    assert line.remedy.text.startswith("Keep the result of the first all_gather")
    assert line.remedy.counterfactual == "the same step with the first result kept: none of the repeats"


def test_several_redundancies_of_one_line_are_one_fact() -> None:
    # The parameters of one module: told apart as redundancies, one redistribute.
    lines = bill(gathers(1, 1, parameter="block.a") + gathers(2, 2, first=3, parameter="block.b"))
    (line,) = lines
    assert line.title.endswith("; 2 of 4 redundant: repeats bytes that this step had sent before")
    assert (line.figure("redundant_count"), line.figure("redundant_bytes")) == (2, 2 * 4096)
    assert (line.saving_ns, line.also) == (4 * MS, (KINDS[1],))
    again = bill(
        gathers(1, 1, parameter="block.a", source="x.py:1 (f)") + gathers(1, 1, first=3, parameter="block.a")
    )
    assert [each.title.rpartition("; ")[2] for each in again] == [
        "all 2 redundant: repeats bytes that this step had sent before",
        "1 of 2 redundant: repeats bytes that this step had sent before",
    ]


def test_one_redundancy_in_two_modules_is_a_fact_of_both_lines() -> None:
    rows = gathers(1, 1, parameter="a.weight") + gathers(2, 2, first=3, parameter="a.weight", module="head")
    lines = bill(rows)
    assert [(line.kind, line.also) for line in lines] == [(KINDS[0], (KINDS[1],))] * 2
    assert [line.figure("redundant_count") for line in lines] == [1, 1]
    assert sum(line.saving_ns or 0 for line in lines) == 4 * MS


def test_what_nobody_inserted_keeps_its_own_line() -> None:
    (line,) = bill(gathers(1, 1, implicit=False))
    assert (line.kind, line.also) == (KINDS[1], ())
    lines = bill(gathers(1, 1) + gathers(5, 5, first=3, implicit=False, source="other.py:3 (f)"))
    assert [(line.kind, line.also) for line in lines] == [(KINDS[0], (KINDS[1],)), (KINDS[1], ())]
    assert [line.count for line in lines] == [2, 1]


@pytest.mark.parametrize("cause", ["aten._softmax_backward_data.default"])
def test_what_the_operator_needs_is_a_warning_if_it_comes_again(cause: str) -> None:
    needed = {"placements_from": "(Partial(sum),)", "op": "all_reduce", "caused_by_op": cause}
    assert [line.severity for line in bill(on_ranks((0, 1), **(IMPLICIT | needed)))] == ["info"]
    (line,) = bill(gathers(1, 1, **needed))
    assert (line.severity, line.also) == ("warning", (KINDS[1],))


def test_two_kinds_of_redundancy_of_the_same_collectives_are_one_line() -> None:
    # Each rank reads its own share of what was gathered, and the gather gives back what was cut before.
    rows = [
        collective(
            rank=rank,
            seq=1,
            op="all_gather",
            input_hash=7 + rank,
            cut_from_hash=5,
            output_hash=5,
            cut_by_placement=True,
            used_bytes=512,
            read_dimension=0,
            read_hash=7 + rank,
            message_bytes=1024,
        )
        for rank in (0, 1)
    ]
    (line,) = bill(rows)
    assert line.kind == KINDS[1]
    assert sum(item.label == "why they are redundant" for item in line.evidence) == 1


@pytest.mark.parametrize("choice_rows", [(0, 1, 2, 3), (0, 1)])
def test_information_about_more_collectives_does_not_hide_a_warning(choice_rows: tuple[int, ...]) -> None:
    context = make_context(ledger(gathers(1, 2, implicit=False)), UNKNOWN)

    def redundant(severity: Severity, saving_ns: int | None, rows: tuple[int, ...]) -> Finding:
        figures = (saving_ns, None, saving_ns, 4096, 1)
        spoken = Rows.of(collectives=rows)
        return Finding(KINDS[1], severity, severity, *figures, (0, 1), Where(), rows=spoken)

    choice, fault = redundant("info", None, choice_rows), redundant("warning", 2 * MS, (0, 1))
    for order in ([choice, fault], [fault, choice]):
        lines = one_line_each(context, order)
        (kept,) = [line for line in lines if line.severity == "warning"]
        assert (kept.title, kept.toll_ns, kept.saving_ns) == ("warning", 2 * MS, 2 * MS)
        assert len(lines) == (2 if len(choice_rows) > 2 else 1)
