"""Patterns of users: those that can take for ever are refused, those that name kernels are not."""

from __future__ import annotations

import re
import sys
from importlib.resources import files

import pytest

from shardtoll.ledger.foreign.toml_text import toml_tables
from shardtoll.profiler.traces.collectives.patterns import compiled, longest

SHIPPED = toml_tables(files("shardtoll.profiler.traces.collectives").joinpath("kernels.toml").read_text())
ENDLESS = (
    "^(a+)+$",
    "(.*)*(.*)*x",
    "(?:a*b?)*c",
    "(a{1,99})+",
    "(x+|y)*?z",
    "b(((a*))){20,}",
    "((?i:a+)|b)+",
    "(a|aa)+!",
    "(a|a)+!",
    "(a(?:\\B)?)+!",
    "(a(?:^){4000000000})+",
    "(.*a)+!",
    "(a{1,16})+!",
    "(a?b?a?)+!",
    "(?:a{2}|a{3})+!",
    "(a{1,16}){16}b",
    "((a|aa){3}){3}!",
    "(a?){20}a{20}",
    "(\\w+_)*!",
    "(?i)([a-z]+A)*!",
    "([\u0100-\u0200]|[\u0150-\u0160]{2})+!",
    "(a)(\\1?b?\\1)+!",
    "((?>a+)|b+)*!" if sys.version_info >= (3, 11) else "(a+|b+)*!",
)
NAMING = (
    "^my_allreduce",
    "(one|two)_shot_(all_reduce|allgather)",
    "a.*b.*c",
    "(ab){2}c+",
    "(a+){3}",
    "[a-z]+_\\d*$",
    "(\\w+::)*f",
    "(\\w{1,16}::)+f",
    "([A-Z][a-z]+)*Kernel",
    "([0-9]{2})+",
    "(all_gather|all_reduce)+",
    "(x|y|_\\d+:)*z",
    "a{2000}b",
    "(?:[^<>]+<){2}",
    "",
)


@pytest.mark.parametrize("text", ENDLESS)
def test_a_repetition_of_repetitions_is_refused(text: str):
    with pytest.raises(re.error, match="can take for ever"):
        compiled(text)


@pytest.mark.parametrize("text", NAMING)
def test_what_names_kernels_is_taken(text: str):
    assert compiled(text).pattern == text


def test_all_shipped_patterns_are_taken():
    assert len([compiled(row["pattern"]) for row in SHIPPED["kernel"]]) > 10


POWERS = ("a.*b.*c.*d.*e", "(a+){3}b+", "\\w*a\\w*b\\w*c\\w*d", "(x|.*.*)(y|.*.*)", "a{4,}" * 4)


@pytest.mark.parametrize("text", POWERS)
def test_more_repetitions_in_a_row_than_three_are_refused(text: str):
    with pytest.raises(re.error, match="more than 3 repetitions without an end one after another"):
        compiled(text)


@pytest.mark.parametrize("text", ["a?" * 30 + "a" * 30, "(a|aa)" * 20, "(a{1,2}|b?){3}" * 5, "a{0,3}" * 16])
def test_choices_that_multiply_are_refused(text: str):
    with pytest.raises(re.error, match="multiply to too many ways"):
        compiled(text)


def test_how_much_of_a_name_is_looked_at_falls_with_each_repetition():
    lengths = [
        longest(compiled(text), 2_000) for text in ("abc", "a.*b", "a.*b.*c", "a.*b.*c.*d", "^a.*b.*c.*d")
    ]
    assert lengths == [2_000, 2_000, 843, 221, 843]
    assert all(longest(compiled(row["pattern"]), 2_000) >= 500 for row in SHIPPED["kernel"])


@pytest.mark.parametrize(
    ("text", "name"),
    [("a.*a.*a.*b", "a" * 5_000), ("(a|aa|a?)(a|aa|a?)(a|aa|a?).*b", "a" * 5_000), ("^.*.*.*x", "a" * 5_000)],
)
def test_the_most_expensive_patterns_that_are_taken_end(text: str, name: str):
    """Each takes less than a second; with one power more it would take minutes."""
    pattern = compiled(text)
    assert pattern.search(name[: longest(pattern, 2_000)]) is None
