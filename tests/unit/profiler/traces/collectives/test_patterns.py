"""Patterns of users: those that can take for ever are refused, those that name kernels are not."""

from __future__ import annotations

import re
import sys
from importlib.resources import files

import pytest

from shardtoll.ledger.foreign.toml_text import toml_tables
from shardtoll.profiler.traces.collectives.patterns import compiled

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
