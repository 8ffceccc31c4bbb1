"""FSDP2's gathers in backward: a trade by default, a fault if the parameters were to be kept."""

from __future__ import annotations

import pytest

from shardtoll.cli.incidents.verdict import is_weighed
from tests.unit.analyzers.ledgers import MS, collective, ledger, step
from tests.unit.analyzers.of_kinds import running

KIB = 1 << 10
GATHER = {
    "op": "all_gather",
    "caused_by_op": "FSDP.unshard",
    "message_bytes": 64 * KIB,
    "source": "t.py:3 (f)",
}


def found(*calls, steps=2):
    rows = []
    for number in range(steps):
        for place, call in enumerate(calls):
            at_ns = (2 + 10 * place) * MS
            given = {
                "step": number,
                "seq": number * len(calls) + place + 1,
                "issue_ns": at_ns,
                "start_ns": at_ns,
            }
            rows += [collective(rank=rank, **(GATHER | given | call)) for rank in (0, 1)]
    timed = [step(number, rank) for number in range(steps) for rank in (0, 1)]
    findings = running("redundant-collective")(ledger(rows, steps=timed)).findings
    return [
        finding for finding in findings if finding.where.op == "FSDP.unshard" and "again" in finding.title
    ]


def layers(**given):
    return [
        {"module": f"layers.{number}", "parameter": f"layers.{number}.weight"} | given for number in (0, 1)
    ]


def test_the_default_is_a_choice_priced_by_time_and_memory():
    forward, backward = layers(phase="forward", reshards=True), layers(phase="backward", reshards=True)
    (finding,) = found(*forward, *backward)
    assert (finding.severity, finding.toll_ns, finding.saving_ns) == ("info", None, None)
    assert finding.figure("exposed_ns") == 4 * MS
    assert finding.figure("kept_bytes") == 2 * 64 * KIB
    assert "reshard_after_forward=False" in finding.remedy.code
    assert not is_weighed(finding), "a choice is no false alarm"


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ((None, None), "gathers parameters again"),
        (("a", None), "gathers 1 module and more again"),
        (("a", "b"), "gathers 2 modules again"),
    ],
)
def test_a_module_that_nobody_knows_is_not_none(modules, words):
    (finding,) = found(*({"module": name, "phase": "backward", "reshards": True} for name in modules))
    assert words in finding.title


def test_memory_that_nobody_knows_is_not_zero():
    (finding,) = found(*layers(phase="backward", reshards=True, message_bytes=None))
    assert "takes an unknown size on each rank" in finding.title
    assert [figure.name for figure in finding.figures] == ["exposed_ns"]


def test_a_trade_that_costs_nothing_is_not_told():
    assert found(*layers(phase="backward", reshards=True, exposed_ns=0)) == []


def test_what_was_to_be_kept_and_is_gathered_again_is_a_warning():
    forward, backward = layers(phase="forward", reshards=False), layers(phase="backward", reshards=False)
    (finding,) = found(*forward, backward[0])
    assert (finding.severity, finding.confidence) == ("warning", "likely")
    assert finding.toll_ns == finding.saving_ns == 2 * MS
    assert finding.bytes == 64 * KIB
    assert is_weighed(finding)


def test_gathers_for_a_recompute_are_gathers_again():
    (finding,) = found(*layers(phase="recompute", reshards=True))
    assert finding.severity == "info"


def test_of_several_modules_none_is_the_place():
    one, two = (found(*layers(phase="backward", reshards=False)[:count])[0] for count in (1, 2))
    assert ("layers.0" in one.title, "layers.0" in two.title) == (True, False)


@pytest.mark.parametrize(
    "calls",
    [
        layers(phase="forward", reshards=False),
        layers(phase="backward", reshards=None),
        layers(phase="backward", reshards=False, caused_by_op="FSDP1.unshard"),
        layers(phase="optimizer", reshards=False),
        layers(phase="backward", reshards=False, op="broadcast"),
    ],
)
def test_silent(calls):
    assert found(*calls) == []
