"""What to do, as the end of the headline: the remedy of the finding that costs most, or its number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from shardtoll.ledger import Finding

WIDTH: Final = 190
"""Characters of the whole sentence: two lines of 100 columns."""
ROOM: Final = 16
"""Characters of that for `; see finding 12`."""

IMPERATIVES: Final = frozenset(
    [
        "Add",
        "Average",
        "Balance",
        "Call",
        "Check",
        "Checkpoint",
        "Clear",
        "Compare",
        "Copy",
        "Count",
        "Create",
        "Declare",
        "Divide",
        "Drop",
        "Fetch",
        "Find",
        "Fix",
        "Gather",
        "Give",
        "Have",
        "Issue",
        "Keep",
        "Leave",
        "Let",
        "Log",
        "Look",
        "Make",
        "Measure",
        "Move",
        "Overlap",
        "Pin",
        "Pipeline",
        "Post",
        "Prepare",
        "Read",
        "Record",
        "Redistribute",
        "Reduce",
        "Remove",
        "Replay",
        "Report",
        "Run",
        "Say",
        "Send",
        "Shard",
        "Skip",
        "Split",
        "Start",
        "Survey",
        "Synchronise",
        "Take",
        "Tell",
        "Trace",
        "Turn",
        "Unset",
        "Update",
        "Use",
        "Write",
    ]
)
_POINTS_BACK: Final = frozenset({"it", "its", "them", "their", "this", "these", "that", "there", "both"})


def first_of(findings: Sequence[Finding], kinds: Collection[str] = ()) -> int | None:
    """Return the place of the first finding of these kinds that costs time; None if there is none.

    One whose saving is known to be nothing comes last. Without kinds warnings come before information with a
    saving.
    """
    priced = [place for place, finding in enumerate(findings) if finding.toll_ns]
    if kinds:
        priced = [place for place in priced if findings[place].kind in kinds]
    worth = [place for place in priced if findings[place].saving_ns != 0]
    if not kinds:
        warned = [place for place in worth if findings[place].severity != "info"]
        worth = [*warned, *(place for place in worth if findings[place].saving_ns)]
    return next(iter([*worth, *priced]), None)


def with_advice(text: str, findings: Sequence[Finding], place: int | None) -> str:
    """Return the sentence with what to do at its end, as far as `WIDTH` allows.

    A remedy stands in the sentence if its first clause is a short order that explains itself; otherwise the
    finding's number stands there, as the bill counts it. If its fix saves nothing, it is the number of the
    first finding whose fix does.
    """
    if place is None:
        return text
    finding, order = findings[place], ""
    if finding.saving_ns == 0:
        place = first_of(findings) or 0
        if findings[place].saving_ns == 0:
            return _ended(text, ("no finding has a saving",))
        finding = findings[place]
    elif finding.remedy is not None:
        order = _order(finding.remedy.text)
    named = f"start with finding {place + 1} ({finding.kind})"
    return _ended(text, (order, order.partition(", else ")[0], named, f"see finding {place + 1}"))


def _ended(text: str, ends: Sequence[str]) -> str:
    """Return the text with the first of those ends that `WIDTH` allows."""
    for words in ends:
        if words and len(text) + len(words) + 3 <= WIDTH:
            return f"{text}; {words}"
    return text


def _order(remedy: str) -> str:
    """Return `give rank 3 its batch earlier` of a remedy that begins so; empty if it begins otherwise."""
    first = remedy.partition(". ")[0].partition(": ")[0].partition(" (")[0].rstrip(".")
    words = first.replace(",", "").split()
    if not words or words[0] not in IMPERATIVES or "`" in first or len(words) < 3:
        return ""
    own = words[0] == "Give"
    if any(word in _POINTS_BACK for word in words[1:]) and not (own and "its" in words):
        return ""
    return first[0].lower() + first[1:]
