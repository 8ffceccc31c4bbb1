"""A figure stays with its unit wherever a line ends."""

from __future__ import annotations

import io
import re

import pytest
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.terminal.screen import Screen

SENTENCE = (
    "The step takes 256 ms in place of 264 ms: 3.2 % shorter, 1.05 MB at 10.6 GB/s, 2.16 MFLOP, 17.4 times."
)
SPLIT = re.compile(r"\d\s*\n\s*(ms|%|MB|GB/s|MFLOP|times)")


def printed(renderable: object, width: int) -> str:
    out = io.StringIO()
    Screen(width, file=out).print(renderable)
    return out.getvalue()


def cell(text: str) -> Table:
    table = Table.grid()
    table.add_row(Text(text), text)
    return table


@pytest.mark.parametrize("make", [str, Text, lambda text: Padding(Text(text), (0, 0, 0, 3)), cell])
def test_no_line_ends_inside_a_figure(make):
    words = SENTENCE.split()
    for width in range(24, 101):
        text = printed(make(SENTENCE), width)
        assert not SPLIT.search(text), (width, text)
        if make is not cell:
            assert text.split() == words, width
            assert max(map(len, text.splitlines())) <= width


def test_a_number_and_a_common_word_may_part():
    assert printed("all 4 ranks", 6) == "all 4 \nranks\n"


def test_styles_stay_where_they_were():
    text = Text("saves ").append("8.31 ms", style="bold").append(" each")
    out = io.StringIO()
    Screen(12, file=out, force_terminal=True, color_system="standard").print(text)
    assert out.getvalue() == "saves \n\x1b[1m8.31 ms\x1b[0m each\n"


def test_a_space_that_is_not_to_break_is_printed_as_a_space():
    assert printed("toll\u00a0x", 80) == "toll x\n"


@pytest.mark.parametrize("make", [str, Text])
@pytest.mark.parametrize("width", [24, 22, 20])
def test_a_narrow_column_is_as_wide_as_its_longest_figure(make, width):
    table = Table("name", "toll")
    for name, toll in (("a long name of some words", "1,234.5 ms"), ("b", "12.4 ms/step"), ("c", "3 %")):
        table.add_row(make(name), make(toll))
    text = printed(table, width)
    assert "1,234.5 ms" in text, text
    assert "12.4 ms/step" in text, text
    assert max(map(len, text.splitlines())) <= width
