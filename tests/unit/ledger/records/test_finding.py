from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger import (
    KINDS,
    CheckFailed,
    Evidence,
    Figure,
    Finding,
    Rows,
    RunFolderError,
    ShardtollError,
    Where,
)
from shardtoll.ledger.foreign.plain import from_plain, to_plain
from shardtoll.ledger.records.finding import ranked


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "slow"}, "unknown finding kind 'slow'"),
        ({"severity": "fatal"}, "unknown severity 'fatal'"),
        ({"confidence": "sure"}, "unknown confidence 'sure'"),
        ({"saving_ns": 901}, "saving 901 ns above toll 900 ns"),
        ({"toll_ns": None, "saving_ns": 1}, "saving 1 ns above toll None ns"),
        ({"toll_ns": -1, "saving_ns": None}, "toll_ns -1 < 0"),
        ({"floor_ns": -1}, "floor_ns -1 < 0"),
        ({"saving_ns": -1}, "saving_ns -1 < 0"),
        ({"bytes": -1}, "bytes -1 < 0"),
        ({"count": -1}, "count -1 < 0"),
    ],
)
def test_an_unfit_finding_is_refused_when_made(make, given, message):
    with pytest.raises(ValueError, match=message):
        make.finding(**given)


def test_a_saving_may_equal_its_toll_and_both_may_be_unknown(make):
    assert make.finding(saving_ns=900).saving_ns == 900
    assert make.finding(toll_ns=None, saving_ns=None).toll_ns is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_evidence_is_never_nan(value):
    with pytest.raises(ValueError, match="say what that means in words"):
        Evidence("error", value)


def test_kinds_are_the_closed_list_of_the_contract(make):
    assert set(KINDS.values()) == {"communication", "compute", "correctness", "schedule", "trust"}
    assert all(make.finding(kind=kind).family == family for kind, family in KINDS.items())


@pytest.mark.parametrize(
    ("where", "label"),
    [
        (Where(source="a.py:1 (f)", parameter="w", module="m"), "a.py:1 (f)"),
        (Where(parameter="w", module="m"), "w"),
        (Where(module="m", group="g"), "m"),
        (Where(group="g", mesh_dim="tp"), "group tp"),
        (Where(group="g"), "group g"),
        (Where(op="all_reduce"), "all_reduce"),
        (Where(module=""), "whole step"),
        (Where(), "whole step"),
    ],
)
def test_where_names_its_most_telling_part(where, label):
    assert where.label() == label


@pytest.mark.parametrize(("name", "module"), [("blocks.0.up.weight", "blocks.0.up"), ("scale", "")])
def test_a_parameters_place_is_in_the_module_that_holds_it(name, module):
    where = Where.of_parameter(name, phase="backward", group="4", mesh_dim="dp")
    assert where == Where(phase="backward", module=module, parameter=name, group="4", mesh_dim="dp")


def test_a_finding_survives_json(make):
    for finding in (make.finding(), Finding("straggler", "info", "late", None, None, None, None, 1, ())):
        assert from_plain(Finding, to_plain(finding)) == finding


def test_an_error_says_what_and_what_next_and_knows_its_exit_code():
    error = RunFolderError("no run folder at runs/a", "name the folder given as out= to audit()")
    assert str(error) == "no run folder at runs/a: name the folder given as out= to audit()"
    assert (error.exit_code, ShardtollError.exit_code, CheckFailed.exit_code) == (2, 2, 1)


@pytest.mark.parametrize(
    ("places", "runs"),
    [
        ([], ()),
        ([4], ((4, 1, 1),)),
        ([0, 1, 2, 3], ((0, 4, 1),)),
        ([9, 5, 1, 5], ((1, 3, 4),)),
        ([1, 5, 9, 13, 14, 20, 26, 40], ((1, 4, 4), (14, 3, 6), (40, 1, 1))),
    ],
)
def test_rows_are_few_evenly_spaced_runs(places, runs):
    assert Rows.of(collectives=places) == Rows(collectives=runs)


@given(st.sets(st.integers(0, 200)), st.sets(st.integers(0, 200)))
def test_rows_are_those_given_and_move_with_their_table(places, gone):
    rows = Rows.of(computes=sorted(places))
    mask = rows.mask("computes", 201)
    assert set(np.flatnonzero(mask)) == places
    kept = np.ones(201, dtype=bool)
    kept[sorted(gone)] = False
    moved = rows.within("computes", kept)
    assert (moved.mask("computes", int(kept.sum())) == mask[kept]).all()
    assert rows.within("steps", kept) is rows
    assert from_plain(Rows, to_plain(rows)) == rows


@pytest.mark.parametrize(
    "runs", [((-1, 1, 1),), ((0, 0, 1),), ((0, 2, 0),), ((0, 3, 2), (4, 1, 1)), ((5, 1, 1), (2, 1, 1))]
)
def test_rows_out_of_order_are_refused(runs):
    with pytest.raises(ValueError, match="rows of steps are not in ascending runs"):
        Rows(steps=runs)


def test_rows_beyond_the_table_are_none_of_it():
    assert Rows(steps=((0, 1 << 40, 3),)).mask("steps", 5).tolist() == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("two words", 1, "ns"), "no name of a figure"),
        (("lost_ns", 1, "parsec"), "unknown unit 'parsec'"),
        (("lost_ns", math.nan, "ns"), "leave an unknown figure out"),
        (("lost_ns", -1, "ns"), "leave an unknown figure out"),
    ],
)
def test_an_unfit_figure_is_refused_when_made(given, message):
    with pytest.raises(ValueError, match=message):
        Figure(*given)


def test_a_figure_is_found_by_its_name(make):
    finding = make.finding(figures=(Figure("micro_batches", 4, "count"),))
    assert (finding.figure("micro_batches"), finding.figure("flops_done")) == (4, None)


def test_findings_of_earlier_versions_have_no_rows_and_figures(make):
    plain = to_plain(make.finding())
    for name in ("figures", "rows", "parameters", "cause"):
        del plain[name]
    assert from_plain(Finding, plain) == make.finding()


def test_errors_stand_before_warnings_before_infos_each_by_toll(make):
    tolls = [("info", 50), ("info", 60), ("warning", None), ("error", None), ("warning", 9), ("error", 1)]
    findings = [make.finding(severity=severity, toll_ns=toll, saving_ns=None) for severity, toll in tolls]
    assert [(one.severity, one.toll_ns) for one in ranked(findings)] == [
        ("error", 1), ("error", None), ("warning", 9), ("warning", None), ("info", 60), ("info", 50)
    ]  # fmt: skip


def test_the_cause_of_other_errors_stands_before_them(make):
    kinds = ("replica-drift", "wrong-gradient", "unsynced-parameter", "wrong-gradient")
    findings = [make.finding(kind=kind, severity="error", toll_ns=None, saving_ns=None) for kind in kinds]
    assert [one.kind for one in ranked(findings)] == [
        "unsynced-parameter", "wrong-gradient", "wrong-gradient", "replica-drift"
    ]  # fmt: skip
    # What costs time still comes first.
    findings[0] = make.finding(kind="replica-drift", severity="error", toll_ns=5, saving_ns=None)
    assert ranked(findings)[0].kind == "replica-drift"
