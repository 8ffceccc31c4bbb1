"""Names come from users' programs and files: make them safe to show before any renderer sees them."""

from __future__ import annotations

from shardtoll.ledger.records.one_line import clean as clean
from shardtoll.ledger.records.one_line import clip as clip


def answer(word: str) -> str:
    """Return an answer of `check` or `verify` as people read it: `cannot be told` is `unknown`."""
    return "unknown" if word == "cannot be told" else word


def unbroken(text: str) -> str:
    """Return the text with spaces that no line ends at, so that a number keeps its unit."""
    return text.replace(" ", "\u00a0")
