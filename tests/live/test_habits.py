"""Habits are found in real jobs, their sound twins and what only looks like them are left alone."""

from __future__ import annotations

import pytest

from shardtoll.ledger import Report
from shardtoll.samples.habits.programs import PROGRAMS
from tests.live import habit_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

KIND_OF, KINDS = programs.KIND_OF, programs.KINDS


@pytest.fixture(scope="module")
def habits() -> dict[str, dict[str, programs.Found]]:
    found: dict[str, dict[str, programs.Found]] = run_ranks(
        programs.run_habits, 2, sorted(PROGRAMS), limit_s=300
    )[0]
    return found


@pytest.fixture(scope="module")
def look_alikes() -> dict[str, programs.Found]:
    found: dict[str, programs.Found] = run_ranks(programs.run_look_alikes, 2, limit_s=300)[0]
    return found


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_habit_is_found_and_no_other(habits: dict[str, dict[str, programs.Found]], name: str) -> None:
    findings = [each for each in habits[name]["bad"] if each["kind"] in KINDS]
    assert {each["kind"] for each in findings} == {KIND_OF[name]}
    assert all("habits/programs.py" in each["source"] for each in findings)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_its_sound_twin_is_left_alone(habits: dict[str, dict[str, programs.Found]], name: str) -> None:
    assert [each for each in habits[name]["fixed"] if each["kind"] in KINDS] == []


@pytest.mark.parametrize("name", sorted(programs.LOOK_ALIKES))
def test_what_looks_like_a_habit_is_left_alone(look_alikes: dict[str, programs.Found], name: str) -> None:
    assert [each for each in look_alikes[name] if each["kind"] in KINDS] == []


def test_the_remedies_lines_run_and_change_no_weight(habits: dict[str, dict[str, programs.Found]]) -> None:
    kinds = ("constant-buffers", "unused-parameter-search")
    codes = [each["code"] for name in sorted(habits) for each in habits[name]["bad"] if each["kind"] in kinds]
    assert len(codes) == 2
    before, *after = run_ranks(programs.run_code, 2, codes)[0]
    assert all(sums == before for sums in after)


def test_the_remedies_of_gathered_logits_run_and_learn_the_same(
    habits: dict[str, dict[str, programs.Found]],
) -> None:
    by_hand = run_ranks(programs.run_gathered_by_hand, 2)[0]
    codes = [
        {each["code"] for each in found if each["kind"] == "gathered-logits"}
        for found in (habits["logits"]["bad"], by_hand)
    ]
    assert [len(each) for each in codes] == [1, 1]
    gathered, *parts = run_ranks(programs.run_logits, 2, [code for each in codes for code in each])[0]
    assert len(parts) == 2
    assert all(each == pytest.approx(gathered, rel=1e-5) for each in parts)


def test_a_module_called_once_with_both_inputs_learns_the_same() -> None:
    calls, once = run_ranks(programs.run_called_once, 2)[0]
    assert calls == pytest.approx(once, rel=1e-5)


def test_what_fsdp_gathers_again_by_default_is_a_choice_with_its_price() -> None:
    report = Report.from_json(run_ranks(programs.run_resharding, 2)[0])
    (finding,) = [each for each in report.findings if each.kind == "redundant-collective"]
    assert (finding.severity, finding.toll_ns, finding.saving_ns) == ("info", None, None)
    assert finding.figure("kept_bytes") == programs.RESHARDED_BYTES
    assert finding.figure("exposed_ns") > 0
    rows = report.collectives
    assert set(rows[rows["caused_by_op"] == "FSDP.unshard"]["phase"]) == {"forward", "backward"}


def test_hooks_that_reduce_before_ddp_go_without_changing_the_weights(
    habits: dict[str, dict[str, programs.Found]],
) -> None:
    codes = {each["code"] for each in habits["hooks"]["bad"] if each["kind"] == "redundant-collective"}
    with_hooks, without = run_ranks(programs.run_without_hooks, 2, sorted(codes))[0]
    assert with_hooks == pytest.approx(without, rel=1e-6)
