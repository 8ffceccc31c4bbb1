"""Findings that a user asks for: by number, range of numbers or kind, several with commas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from shardtoll.ledger.records.errors import UsageError
from shardtoll.ledger.records.finding import Finding


def asked(words: Iterable[str], findings: Sequence[Finding], whose: str | None = None) -> tuple[int, ...]:
    """Return the numbers of the findings that are asked for, each once, in the order in which they are.

    `words`: as `1`, `1,3-5` or `straggler`. Raises UsageError for one that no finding has; it says what there
    is. `whose`: the run's name, for that.
    """
    chosen: dict[int, None] = {}
    for word in parted(words):
        span = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", word)
        if span is not None:
            numbers = range(int(span[1]), int(span[2] or span[1]) + 1)
            found = [*numbers] if numbers and numbers[0] >= 1 and numbers[-1] <= len(findings) else []
        else:
            found = [number for number, each in enumerate(findings, start=1) if each.kind == word]
        if not found:
            kinds = ", ".join(dict.fromkeys(finding.kind for finding in findings))
            there = f"give 1 to {len(findings)}, or one of {kinds}; several with commas, as 1,3"
            no = (
                f"there is no finding {word or repr(word)}"
                if whose is None
                else f"{whose} has no finding {word!r}"
            )
            raise UsageError(no, there if findings else "the bill is empty")
        chosen |= dict.fromkeys(found)
    return tuple(chosen)


def parted(words: Iterable[str]) -> list[str]:
    """Return what stands between commas, each once; what is empty is kept if nothing else was given."""
    parts = [part.strip() for each in words for part in each.split(",")]
    return list(dict.fromkeys(part for part in parts if part)) or parts[:1]
