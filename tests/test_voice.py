"""User-facing texts and docs hold no ruled-out word, and the measure itself finds what it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import voice

ROOT = Path(__file__).resolve().parent.parent
MEAN_STRINGS = 11.5
MEAN_DOCS = 13.5
"""Words of a mean sentence. They were 12.4 and 18.4 before the texts were rewritten, and may only fall."""
LONGEST_IN_DOCS = 30
LONG_IN_DOCS = 30
LONG_IN_STRINGS = 50
"""Words of the longest sentence, and number of sentences above `voice.LONG`."""
MEAN_EXPLANATIONS = 13.3
LONGEST_EXPLANATIONS = 4
RULED_OUT_EXPLANATIONS = 0
"""Of docstrings and comments: words of a mean sentence, sentences above `voice.LONGEST`, ruled-out words.

They were 14.0, 253 and 1,927 when they were first measured, and may only fall.
"""


def _places(hits: list[voice.Hit]) -> list[str]:
    return [f"{hit.text.place}: {hit.rule}: {hit.text.sentence[:160]}" for hit in hits]


def test_user_facing_strings_hold_no_ruled_out_word():
    texts = voice.strings(ROOT)
    assert len(texts) > 1000
    assert _places(voice.hits(texts)) == []
    assert voice.figures(texts).mean_words <= MEAN_STRINGS
    assert voice.figures(texts).long <= LONG_IN_STRINGS


def test_docs_hold_no_ruled_out_word():
    texts = voice.pages(ROOT)
    assert len(texts) > 1000
    assert _places(voice.hits(texts)) == []
    assert voice.figures(texts).mean_words <= MEAN_DOCS
    assert voice.figures(texts).long <= LONG_IN_DOCS
    assert [text.place for text in texts if not text.heading and text.words > LONGEST_IN_DOCS] == []


def test_docstrings_and_comments_get_no_worse():
    texts = voice.explanations(ROOT)
    assert len(texts) > 10_000
    shown = voice.figures(texts)
    assert shown.mean_words <= MEAN_EXPLANATIONS
    assert shown.longest <= LONGEST_EXPLANATIONS, "cut sentences of more than 30 words in two"
    assert shown.ruled_out <= RULED_OUT_EXPLANATIONS


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("The dearest collectives are drawn.", "dear"),
        ("Mend errors first.", "mend"),
        ("It cannot be told which.", "told"),
        ("`check` leaves with 1 if so.", "leaves with"),
        ("others wait 10 ms a step for it", "per step"),
        ("steps of which it is not known", "of which it is"),
        ("a group of which ranks never wait", "negated relative clause"),
        ("Of each cell the collectives count.", "begins with Of"),
        ("What is hidden costs nothing.", "begins with What"),
        ("That is a choice.", "begins with That"),
        ("Where no fabric is known, floors are unknown.", "begins with Where"),
        ("None where it is not given", "where for if"),
    ],
)
def test_each_rule_finds_its_example(sentence: str, rule: str):
    assert rule in [hit.rule for hit in voice.hits([voice.Text("here", sentence)])]


@pytest.mark.parametrize(
    "sentence",
    [
        "What does a finding mean?",
        "It takes 10 ms per step.",
        "the place where it was called",
        "Whatever costs",
    ],
)
def test_plain_sentences_pass(sentence: str):
    assert voice.hits([voice.Text("here", sentence)]) == []


def test_sentences_and_words_are_counted():
    texts = list(voice.sentences("here", "Rank 3 is late. The others wait 2.86 ms per step for it."))
    assert [text.words for text in texts] == [4, 10]


def test_strings_are_read_whole_and_docstrings_are_not(tmp_path: Path):
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "thing.py").write_text(
        '"""This docstring is not read by users."""\n'
        "def command(n: int) -> str:\n"
        '    """Print the bill of all the runs."""\n'
        '    return f"the rank waits {n} ms " f"per step for it"\n'
    )
    read = [text.sentence for text in voice.strings(tmp_path)]
    assert read == ["Print the bill of all the runs.", "the rank waits … ms per step for it"]


def test_docstrings_and_comments_are_read_whole_and_strings_are_not(tmp_path: Path):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "thing.py").write_text(
        '"""A module.\n\nIt says one thing\nover two lines."""\n'
        "LEAST = 3  # of each rank\n"
        "# A comment that goes on\n"
        "# in the next line.\n"
        "name = 'a string that is told to users'  # noqa: E501\n"
    )
    read = [text.sentence for text in voice.explanations(tmp_path)]
    assert read == [
        "A module.",
        "It says one thing over two lines.",
        "of each rank",
        "A comment that goes on in the next line.",
    ]
    long = voice.Text("here", " ".join(["word"] * 31) + ".")
    assert voice.figures([long, voice.Text("here", "Four words are enough.")]).longest == 1


def test_code_and_fences_of_a_page_are_not_read(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    page = (
        "# Title\n\nA sentence with `dear` code.\n\n```text\nmend told dear\n```\n\n| a cell that is told |\n"
    )
    (tmp_path / "docs" / "a.md").write_text(page)
    assert [hit.rule for hit in voice.hits(voice.pages(tmp_path))] == ["told"]


def test_every_rule_says_what_to_write_instead():
    assert all(better for _, better in voice.RULED_OUT.values())
    assert all(re.compile(pattern) for pattern, _ in voice.RULED_OUT.values())
