"""TOML of others: tables, or one line that says why there are none."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from shardtoll.ledger.foreign.toml_text import TomlError, most_parts, read_text, toml_tables, why_unread

ROOT = Path(__file__).parents[4]


def test_dots_that_are_no_key_are_no_depth() -> None:
    assert toml_tables("#" + "." * 5_000 + "\na = '" + "." * 5_000 + "'\n")["a"] == "." * 5_000


@pytest.mark.parametrize("quotes", ["'''", '"""'])
def test_dots_of_a_string_of_many_lines_are_no_key(quotes: str) -> None:
    dots = f"{'.' * 1_200}\n"
    assert len(toml_tables(f"a = {quotes}\n{dots}{dots}{quotes}\n")["a"]) > 2_400


LONG = ".".join("a" * 1_200) + " = 1"


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f'"=".{LONG}',
        f"'#'.{LONG}",
        f"x = {{ {LONG} }}",
        f"x = [ 1, {{ {LONG} }} ]",
        f"[{LONG[:-4]}]",
        f'x = """\\"""""", y = 1\n{LONG}',
        f'x = ["""""""", {{ {LONG} }}]',
        f'x = ["""a""""", {{ {LONG} }}]',
        f"x = ['''a'''', {{ {LONG} }}]",
        f"x = 'open\n{LONG}",
        f"# it's\n{LONG}",
    ],
)
def test_a_key_of_many_parts_is_refused_wherever_it_is(text: str) -> None:
    with pytest.raises(TomlError, match="a key of more than 1000 parts"):
        toml_tables(text)


@pytest.mark.parametrize("piece", ['\\"""', "'''", '"', "a.b = '\n", '"""\\'])
def test_strings_that_nothing_closes_take_no_time(piece: str) -> None:
    begun = time.process_time()
    assert most_parts(piece * 200_000) <= 2
    assert time.process_time() - begun < 5


def test_tables_of_a_text() -> None:
    assert toml_tables("a = 1\n[b]\nc = 'x'\n") == {"a": 1, "b": {"c": "x"}}


NONE = ("a = ", "a = " + "[" * 100_000, "a = " + "9" * 5000, "a = 1\na = 2", ".".join("a" * 100_000) + " = 1")


@pytest.mark.parametrize("text", NONE)
def test_a_text_that_is_none_ends_in_one_line(text: str) -> None:
    with pytest.raises(TomlError) as caught:
        toml_tables(text)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("gone.toml", "No such file or directory"),
        (".", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("a\0b.toml", "embedded null byte"),
        ("bytes.toml", "not UTF-8 text"),
        ("long.toml", "larger than 10 bytes"),
    ],
)
def test_a_file_that_is_not_read_says_why(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "long.toml").write_text("#" * 11)
    with pytest.raises(OSError) as caught:  # noqa: PT011 (its words are looked at)
        read_text(tmp_path / path, 10)
    assert why_unread(caught.value) == why


def test_toml_is_read_in_one_place() -> None:
    folders = ("analyzers", "cli", "dashboards", "ledger", "profiler")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    readers = [path.name for path in files if re.search(r"^\s*import tom", path.read_text(), re.MULTILINE)]
    assert readers == ["toml_text.py"]
