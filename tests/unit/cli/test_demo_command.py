"""Options of `shardtoll demo` that are told before anything runs."""

from __future__ import annotations

import pytest

from shardtoll.cli.incidents.job import chosen


@pytest.mark.parametrize(("option", "named"), [
    (["-o", "x.json"], "-o x.json"),
    (["--json", "x.json"], "-o x.json"),
    (["--only", "clean_ddp"], "--only"),
])  # fmt: skip
def test_options_of_incidents_are_refused_without_them(shardtoll, option: list[str], named: str):
    ran = shardtoll("demo", *option)
    assert ran.code == 2
    assert ran.err == f"shardtoll: {named} without --incidents: add --incidents, or leave it out\n"


def test_names_may_have_spaces_around_them():
    assert chosen(["late_param, clean-ddp", " ,"]) == ["late_param", "clean_ddp"]
