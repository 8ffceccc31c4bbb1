"""A budget's file: what it may say, what is told of what it may not, and writing one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.ledger import KINDS, PHASES, UsageError
from shardtoll.ledger.answers.budget import (
    MOST_BYTES,
    Budget,
    Limits,
    Section,
    budget_of,
    glob,
    matches,
    read_budget,
    size_in_bytes,
)
from shardtoll.ledger.answers.budget_toml import to_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EVERYTHING = Budget(
    limits=Limits(12, 2_100_000, 0.25, 120.5),
    sections=(
        Section("module", "layers.*", Limits(4, None, None)),
        Section("module", 'odd "name"\n', Limits(None, 7, None)),
        Section("group", "tp", Limits(None, 1_000_000_000, 0.5), ("*",)),
        Section("group", "dp", Limits(), (), ("recompute",)),
        Section("phase", "backward", Limits(2, None, None), ("a", "b.*"), ("wide-dtype", "straggler")),
    ),
    no_implicit=("layers.*", "head"),
    forbid=("wrong-gradient",),
    skip_steps=2,
)


def refused(document: dict[str, object]) -> str:
    with pytest.raises(UsageError) as caught:
        budget_of(document, "b.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_budget_written_and_read_is_the_same():
    text = to_toml(EVERYTHING, {"": ["from\na run\x00"], "forbid": ["why"], "max_step_ms": ["times"]})
    assert budget_of(tomllib.loads(text), "b.toml") == EVERYTHING


def test_its_first_lines_say_how_to_check_with_this_file():
    lines = to_toml(EVERYTHING, {}, "my limits\n.toml").splitlines()
    assert lines[2] == "#   shardtoll check RUN --budget 'my limits?.toml'"


def test_a_file_is_read(tmp_path: Path):
    path = tmp_path / "budget.toml"
    path.write_text(
        'max_wire_bytes = "1.5 GB"\nno_implicit = ["layers.*"]\n[module."layers.*"]\nmax_collectives = 0\n'
        "[group.tp]\nmax_exposed_fraction = 0\n"
    )
    assert read_budget(path) == Budget(
        Limits(max_wire_bytes=1_500_000_000),
        (
            Section("module", "layers.*", Limits(max_collectives=0)),
            Section("group", "tp", Limits(max_exposed_fraction=0.0)),
        ),
        ("layers.*",),
    )


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0 B", 0),
        ("1.5 GB", 1_500_000_000),
        ("2MB", 2_000_000),
        ("10_000 kB", 10_000_000),
        (" 3 TB ", 3 * 10**12),
    ],
)
def test_sizes_are_decimal(text: str, bytes_: int):
    assert size_in_bytes(text, "x") == bytes_


@pytest.mark.parametrize(
    "value",
    ["1.5", "GB", "1 gb", "1 GiB", "-1 GB", "1e3 MB", "9" * 400 + " PB", True, 1.5, -1, 2**63, None, []],
)
def test_what_is_no_size_is_refused(value: object):
    with pytest.raises(UsageError, match="x is"):
        size_in_bytes(value, "x")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"max_colectives": 1}, "did you mean max_collectives?"),
        ({"modul": {}}, "did you mean module?"),
        ({"nonsense": 1}, "no key 'nonsense'"),
        ({"max_collectives": 1.5}, "no whole number"),
        ({"max_collectives": True}, "no whole number"),
        ({"max_collectives": 10**5000}, "more than 18 digits"),
        ({"max_exposed_fraction": 1.2}, "not from 0 to 1"),
        ({"max_exposed_fraction": float("nan")}, "not from 0 to 1"),
        ({"max_step_ms": 0}, "not above 0"),
        ({"max_step_ms": float("inf")}, "no number"),
        ({"max_step_ms": 10**5000}, "no number"),
        ({"no_implicit": "layers.*"}, "no list of names"),
        ({"no_implicit": [1]}, "holds 1"),
        ({"no_implicit": ["x" * 1001]}, "at most 1000 letters"),
        ({"no_implicit": ["x"] * 10_001}, "10,001 entries"),
        ({"forbid": ["wrong-gradent"]}, "did you mean wrong-gradient?"),
        ({"skip_steps": -1}, "skip_steps is -1"),
        ({"module": 3}, "no section"),
        ({"module": {"a": 3}}, "no section"),
        ({"module": {"a": {}}}, "limits nothing"),
        ({"module": {"a": {"max_step_ms": 3}}}, "no key 'max_step_ms'"),
        ({"module": {"a": {"skip_steps": 3}}}, "no key 'skip_steps'"),
        ({"module": {"a": {"forbid": []}}}, "limits nothing"),
        ({"group": {"tp": {"no_implicit": "*"}}}, '[group."tp"]: no_implicit is'),
        ({"phase": {"forward": {"forbid": ["stragler"]}}}, "did you mean straggler?"),
        ({"phase": {"bakward": {"max_collectives": 1}}}, "did you mean backward?"),
    ],
)
def test_what_a_budget_cannot_say_is_told_in_a_line(document: dict[str, object], said: str):
    assert said in refused(document)


def test_files_that_are_none_are_told(tmp_path: Path):
    path = tmp_path / "b.toml"
    for data, said in (
        (None, "cannot be read"),
        (b"max_collectives = ", "no TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a = " + b"[" * 5000, "no TOML"),
        (b"#" * (MOST_BYTES + 1), "larger than"),
    ):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(UsageError, match=said):
            read_budget(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_budget(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("layers.*", ["layers.0", "layers.11.mlp.up"], ["layers", "head", "my.layers.0", ""]),
        (
            "layers.*.mlp",
            ["layers.0.mlp", "layers.0.mlp.up"],
            ["layers.0", "layers.0.mlpx", "layers.0.a.mlp"],
        ),
        ("layers", ["layers", "layers.0"], ["layers2"]),
        ("*", ["", "a", "a.b"], []),
        ("", [""], ["a"]),
        ("*.up", ["a.up", "b.up.weight"], ["up", "a.b.up"]),
        ("a*c", ["ac", "abc", "abc.d"], ["a.c", "ab"]),
    ],
)
def test_patterns_name_modules_and_what_is_inside(pattern: str, inside: list[str], outside: list[str]):
    assert [name for name in [*inside, *outside] if matches(pattern, name)] == inside


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_star_is_any_letters(pattern: str, text: str):
    def oracle(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return oracle(pattern[1:], text) or (bool(text) and oracle(pattern, text[1:]))
        return bool(text) and text[0] == pattern[0] and oracle(pattern[1:], text[1:])

    assert glob(pattern, text) == oracle(pattern, text)


def test_a_pattern_of_many_stars_is_quick():
    assert not glob("*a" * 400 + "b", "a" * 100_000)


def test_every_kind_and_phase_can_be_named():
    budget = budget_of(
        {"forbid": list(KINDS), "phase": {phase: {"max_collectives": 1} for phase in PHASES}}, "b"
    )
    assert (len(budget.forbid), len(budget.sections)) == (len(KINDS), len(PHASES))
    assert Budget(skip_steps=3).is_empty()
    assert not budget.is_empty()
