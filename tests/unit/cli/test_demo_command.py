"""Options of `shardtoll demo` that are told before anything runs."""

from __future__ import annotations

import pytest

from shardtoll.cli.incidents.demo_incidents import chosen


def test_names_of_incidents_are_refused_without_them(shardtoll):
    ran = shardtoll("demo", "--only", "clean_ddp")
    assert ran.code == 2
    assert ran.err == "shardtoll: --only without --incidents: add --incidents, or leave it out\n"


@pytest.mark.parametrize("option", ["-o", "--json"])
def test_a_folder_given_as_the_scoreboard_is_sent_to_its_option(shardtoll, option: str):
    ran = shardtoll("demo", option, "out/my demo")
    assert ran.code == 2
    assert ran.err == (
        "shardtoll: -o out/my demo without --incidents, whose scoreboard it writes: for a folder of pages "
        "use --out 'out/my demo', for the scoreboard add --incidents\n"
    )


def test_names_may_have_spaces_around_them():
    assert chosen(["late_param, clean-ddp", " ,"]) == ["late_param", "clean_ddp"]
