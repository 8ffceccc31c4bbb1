from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.dashboards.words.text import clean, clip
from tests import sample_reports


@given(st.text(st.characters(codec=None)))
def test_clean_text_has_a_glyph_for_all(text: str):
    shown = clean(text)
    assert not [
        char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    ]
    shown.encode()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_ordinary_text_is_left_alone(text: str):
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("µ → é 日本", "µ → é 日本"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\ud800", "\\ud800"),
        ("a\nb\tc\u2028d", "a b c d"),
        ("\U000e0041", "\\U000e0041"),
        (17, "17"),
    ],
)
def test_what_hides_is_written_out(text: object, shown: str):
    assert clean(text) == shown


def test_code_keeps_its_lines():
    assert clean("if x:\r\n\ty\n\x07", lines=True) == "if x:\n    y\n\\x07"


def test_clip_says_what_it_left_out():
    text = sample_reports.HOSTILE["long"]
    shown = clip(text, 100)
    assert shown.startswith("module.xxx")
    assert f"({len(text) - 100:,} characters left out)" in shown
    assert len(shown) < 140
    assert clip("x" * 100, 100) == "x" * 100
    assert clip("abcdefgh" * 3, 8) == "abcdef…gh"


def test_words_about_a_cut_are_never_longer_than_it():
    text = "x" * 207
    assert clip(text, 200) == text
    assert len(clip("x" * 300, 200)) < 300
