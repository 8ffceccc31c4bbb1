"""The judge of the scoreboard on made-up reports: missed, of a wrong size, false alarms, an unclean twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardtoll.cli.incidents import demo_incidents, scoreboard
from shardtoll.cli.incidents.verdict import Verdict, is_weighed, judge, not_run, total
from shardtoll.ledger import Evidence, FabricInfo, Figure, Finding, Remedy, Report, Where
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.samples.incidents.expected import Expected, Proven, Wanted
from tests.unit.analyzers.ledgers import run_of


def report(*findings: Finding) -> Report:
    return Report(run_of(), FabricInfo("round", "made for a test"), (), empty_tables(), findings)


def finding(kind: str = "wide-dtype", **given: Any) -> Finding:
    values: dict[str, Any] = {
        "severity": "warning",
        "title": "moved in float32",
        "toll_ns": 500,
        "floor_ns": None,
        "saving_ns": None,
        "bytes": 1000,
        "count": 1,
        "ranks": (0, 1),
        "where": Where(parameter="layer.weight", source="train.py:12 (step)", mesh_dim="dp"),
        "evidence": (Evidence("needless FLOPs per step", 2000, "FLOP"),),
        "figures": (Figure("flops_too_many", 2000, "flops"),),
        "remedy": Remedy("reduce less", "dist.all_reduce(part)", "half the bytes"),
    } | given
    return Finding(kind, **values)


EXPECTED = Expected(
    "wide-dtype", "layer.weight", bytes=1000, flops=2000, toll_ns=(100, 900), says=("float32",)
)
WANTED = Wanted("one", 2, (EXPECTED,))


def test_what_is_right_in_kind_place_size_and_words_is_found() -> None:
    verdict = judge(WANTED, report(finding()), report())
    assert verdict.good
    assert [expected for expected, _ in verdict.found] == [EXPECTED]
    assert (total([verdict]).recall, total([verdict]).precision) == (1.0, 1.0)


@pytest.mark.parametrize("place", ["weight", "train.py:12", "dp"])
def test_a_place_is_part_of_parameter_line_or_mesh_dim(place: str) -> None:
    wanted = Wanted("one", 2, (replace(EXPECTED, place=place),))
    assert judge(wanted, report(finding()), report()).good


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"bytes": 1011}, "1,011 bytes, not 1,000"),
        ({"bytes": None}, "unknown bytes, not 1,000"),
        ({"figures": (Figure("flops_too_many", 1979, "flops"),)}, "1,979 FLOPs, not 2,000"),
        ({"figures": ()}, "unknown FLOPs, not 2,000"),
        ({"toll_ns": 901}, "toll 901 ns, not 100 to 900"),
        ({"toll_ns": None}, "toll unknown ns, not 100 to 900"),
        ({"title": "moved"}, "does not say 'float32'"),
    ],
)
def test_a_finding_of_the_wrong_size_or_words_is_a_miss_and_no_false_alarm(seen: Any, why: str) -> None:
    verdict = judge(WANTED, report(finding(**seen)), report())
    assert [missing.why for missing in verdict.missing] == [why]
    assert not verdict.good
    assert not verdict.alarms
    score = total([verdict])
    assert (score.recall, score.precision, score.perfect) == (0.0, 1.0, False)


def test_one_percent_is_near_enough() -> None:
    assert judge(WANTED, report(finding(bytes=1010)), report()).good
    assert judge(WANTED, report(finding(bytes=990)), report()).good


def test_the_nearest_of_several_counts() -> None:
    assert judge(WANTED, report(finding(bytes=5), finding()), report()).good


def test_another_kind_or_place_is_a_miss_and_says_where_the_kind_is() -> None:
    verdict = judge(WANTED, report(finding(where=Where(parameter="head.weight"))), report())
    assert verdict.missing[0].why == "wide-dtype is at head.weight"
    assert len(verdict.alarms) == 1
    assert judge(WANTED, report(), report()).missing[0].why == "no wide-dtype"


def test_words_are_looked_for_in_evidence_and_remedy_too() -> None:
    for word in ("needless FLOPs", "2000 FLOP", "reduce less", "dist.all_reduce(part)", "half the bytes"):
        wanted = Wanted("one", 2, (replace(EXPECTED, says=(word,)),))
        assert judge(wanted, report(finding()), report()).good, word


def test_a_twin_that_still_has_it_is_not_clean() -> None:
    verdict = judge(WANTED, report(finding()), report(finding(bytes=7)))
    assert len(verdict.still) == 1
    assert len(verdict.alarms) == 1, "expected on the bad program only"
    assert not verdict.good
    assert total([verdict]).precision == 0.5


def test_a_twin_may_have_the_kind_elsewhere_only_where_it_is_proven() -> None:
    other = finding(where=Where(parameter="norm.weight"))
    proven = Proven("wide-dtype", "norm", "kept in fp32 on purpose", twin=True)
    assert not judge(WANTED, report(finding()), report(other)).good
    assert judge(replace(WANTED, proven=(proven,)), report(finding()), report(other)).good
    assert not judge(
        replace(WANTED, proven=(replace(proven, twin=False),)), report(finding()), report(other)
    ).good


def test_false_alarms_are_those_of_weighed_kinds_that_nobody_proved() -> None:
    extra = finding("redundant-collective", where=Where(module="head"))
    verdict = judge(WANTED, report(finding(), extra), report())
    assert [(alarm.variant, alarm.finding.kind) for alarm in verdict.alarms] == [
        ("bad", "redundant-collective")
    ]
    assert total([verdict]).precision == 0.5
    proven = Proven("redundant-collective", "head", "gathered twice")
    assert judge(replace(WANTED, proven=(proven,)), report(finding(), extra), report()).good


def test_a_clean_program_has_one_report_and_nothing_in_it() -> None:
    clean = Wanted("clean", 2, ())
    assert judge(clean, report(), None).good
    assert total([judge(clean, report(), None)]).precision is None
    verdict = judge(clean, report(finding("wrong-gradient", severity="error")), None)
    assert [alarm.variant for alarm in verdict.alarms] == ["clean"]


def test_what_is_weighed() -> None:
    weighed = (
        "wrong-gradient",
        "replica-drift",
        "unsynced-parameter",
        "redundant-collective",
        "duplicated-data",
    )
    assert all(is_weighed(finding(kind)) for kind in (*weighed, "duplicated-compute"))
    others = ("straggler", "exposed-communication", "pipeline-bubble", "incomplete-input", "recompute")
    assert not any(is_weighed(finding(kind)) for kind in others)
    assert not is_weighed(finding("duplicated-compute", severity="info")), "a choice, not a claim"
    assert is_weighed(finding("wide-dtype", severity="info"))


def test_a_trade_that_bills_nothing_is_not_weighed_but_other_redundancy_is() -> None:
    price = (Figure("exposed_ns", 500, "ns"), Figure("kept_bytes", 1000, "bytes"))
    trade = {"severity": "info", "toll_ns": None, "figures": price}
    assert not is_weighed(finding("redundant-collective", **trade))
    for claim in ({"severity": "warning"}, {"toll_ns": 500}, {"figures": ()}):
        assert is_weighed(finding("redundant-collective", **(trade | claim))), claim
    assert is_weighed(finding("cross-node-traffic", **trade))


def test_what_did_not_run_is_missed_and_no_share_of_nothing_is_claimed() -> None:
    verdict = not_run(WANTED, "rank 1 ended with exit code 1; its output is in x.log")
    score = total([verdict])
    assert (score.recall, score.precision, score.failed, score.perfect) == (0.0, None, 1, False)
    assert scoreboard.problems(verdict) == [
        "did not run: rank 1 ended with exit code 1; its output is in x.log"
    ]
    clean = total([not_run(Wanted("clean", 0, ()), "no")])
    assert not clean.perfect


def test_the_board_shows_each_size_the_twin_and_the_totals(capsys: pytest.CaptureFixture[str]) -> None:
    good = judge(WANTED, report(finding()), report(), 1.25)
    bad = judge(replace(WANTED, name="two"), report(finding(bytes=7)), report(finding()), 2.0)
    scoreboard.show([good, bad], width=200)
    printed = capsys.readouterr().out
    assert "1.00 kB / 1.00 kB, 2.00 kFLOP / 2.00 kFLOP, 500 ns / 100 ns to 900 ns" in printed
    assert "missed: wide-dtype" in printed
    assert "two: missed wide-dtype at layer.weight: 7 bytes, not 1,000" in printed
    assert "two: the fixed twin still has wide-dtype: moved in float32" in printed
    assert "recall 0.500 (1 of 2 expected findings), precision 0.667 (2 of 3 findings" in printed


def test_the_document_is_what_the_board_says() -> None:
    told = scoreboard.document([judge(WANTED, report(finding()), report(), 1.25)], 3)
    assert (told["asked"], told["recall"], told["precision"], told["false"]) == (3, 1.0, 1.0, 0)
    (incident,) = told["incidents"]
    assert (incident["name"], incident["good"], incident["seconds"]) == ("one", True, 1.25)
    (found,) = incident["found"]
    assert (found["bytes"], found["bytes_expected"], found["flops"], found["flops_expected"]) == (
        1000,
        1000,
        2000,
        2000,
    )


def test_more_found_than_weighed_is_explained() -> None:
    late = Expected("straggler", "all_reduce")
    seen = finding("straggler", where=Where(op="all_reduce"))
    verdict = judge(Wanted("one", 2, (EXPECTED, late)), report(finding(), seen), report())
    line = scoreboard.summary(total([verdict]))
    assert "(2 of 2 expected findings, 1 of them shown as times or as choices, not weighed)" in line
    assert "(1 of 1 finding that" in line


def test_the_last_line_says_what_was_not_weighed_and_what_ran_again() -> None:
    late = finding("straggler", where=Where(op="all_reduce"))
    verdict = judge(WANTED, report(finding(), late), report(replace(late, severity="info")), 1.0)
    assert (verdict.good, verdict.others, verdict.others_warn) == (True, 2, 1)
    line = scoreboard.summary(total([verdict, replace(verdict, runs=2)]))
    assert "Weighed are kinds of correctness, implicit-redistribute" in line
    assert "4 other findings (2 warnings) were not expected and not weighed" in line
    assert "1 incident missed by times and ran again" in line
    assert scoreboard.repeated(verdict) is None
    assert "run 2 times" in (scoreboard.repeated(replace(verdict, runs=2)) or "")


@pytest.mark.parametrize(("kind", "runs"), [("latency-bound", 2), ("wide-dtype", 1)])
def test_only_what_times_decide_is_run_again(
    kind: str, runs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = replace(WANTED, expected=(Expected(kind, "layer.weight"),))
    seen = [judge(wanted, report(), report()), judge(wanted, report(finding(kind)), report())]

    def verdict_of(name: str, *_: Any) -> Verdict:
        (tmp_path / name).mkdir()
        return seen.pop(0)

    monkeypatch.setattr(demo_incidents, "verdict_of", verdict_of)
    verdict = demo_incidents.verdict_again("one", Any, tmp_path)  # type: ignore[arg-type]
    assert (verdict.runs, verdict.good) == (runs, runs == 2)
