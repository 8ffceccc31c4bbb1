"""Lines of errors: at most 300 characters, one line, nothing without a glyph, whatever they quote."""

from __future__ import annotations

import pytest

from shardtoll.ledger.records.errors import UsageError, first_line, reason
from shardtoll.ledger.records.one_line import shortened
from tests.fuzz.seams import LONGEST_LINE, check_line


@pytest.mark.parametrize(("message", "hint"), [(100_000, 10), (10, 100_000), (100_000, 100_000), (300, 300)])
def test_a_line_keeps_its_limit_and_both_of_its_parts(message: int, hint: int):
    error = UsageError("m" * message, "h" * hint)
    check_line(error)
    assert len(f"shardtoll: {error}") > LONGEST_LINE - 20 or message + hint < LONGEST_LINE
    assert "m" in error.message
    assert "h" in error.hint


def test_a_text_is_cut_in_its_midst_and_keeps_both_ends():
    text = shortened("begin" + "x" * 1_000 + "end", 50)
    assert len(text) == 50
    assert text.startswith("begin")
    assert text.endswith("end")
    assert " … " in text
    assert shortened("x" * 50, 50) == "x" * 50


@pytest.mark.parametrize("text", ["a\nb", "a\x1b]0;title\x07b", "a\u202eb", "a\ud800b", "a\u2028b", "a\x00b"])
def test_what_has_no_glyph_is_escaped(text: str):
    check_line(UsageError(text, text))


def test_an_error_without_words_is_named_by_its_kind():
    assert reason(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert reason(ValueError("one\ntwo")) == "ValueError: one"
    assert first_line(KeyError()) == "KeyError"
