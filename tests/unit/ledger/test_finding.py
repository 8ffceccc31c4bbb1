from __future__ import annotations

import math

import pytest

from shardtoll.ledger import KINDS, CheckFailed, Evidence, Finding, RunFolderError, ShardtollError, Where
from shardtoll.ledger.codec import finding_from_json, finding_to_json


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
    families = {"communication": 10, "compute": 3, "correctness": 3, "schedule": 6, "trust": 4}
    assert {family: list(KINDS.values()).count(family) for family in KINDS.values()} == families
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
        assert finding_from_json(finding_to_json(finding)) == finding


def test_an_error_says_what_and_what_next_and_knows_its_exit_code():
    error = RunFolderError("no run folder at runs/a", "name the folder given as out= to audit()")
    assert str(error) == "no run folder at runs/a: name the folder given as out= to audit()"
    assert (error.exit_code, ShardtollError.exit_code, CheckFailed.exit_code) == (2, 2, 1)
