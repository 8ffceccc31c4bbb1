"""What to do, as the end of the headline: the remedy of a finding that belongs to it, or its number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from shardtoll.ledger import Finding
from shardtoll.ledger.records.one_cause import of_late_launches, of_own_reason

WIDTH: Final = 194
"""Characters of the whole sentence: two lines of 100 columns."""

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
        "Ignore",
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
        "Print",
        "Put",
        "Read",
        "Record",
        "Redistribute",
        "Reduce",
        "Remove",
        "Replay",
        "Report",
        "Run",
        "Say",
        "Search",
        "Send",
        "Set",
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
_POINTS_BACK: Final = frozenset(
    {"it", "its", "them", "their", "this", "these", "that", "there", "both", "other"}
)


def first_of(findings: Sequence[Finding], kinds: Collection[str] = (), rank: int | None = None) -> int | None:
    """Return the place of the first finding of these kinds that costs time; None if there is none.

    One whose saving is known to be nothing comes last. Without kinds warnings come before information with a
    saving. `rank`: only findings of this rank alone.
    """
    priced = [place for place, finding in enumerate(findings) if finding.toll_ns]
    if kinds:
        priced = [place for place in priced if findings[place].kind in kinds]
    if rank is not None:
        priced = [place for place in priced if findings[place].ranks == (rank,)]
    worth = [place for place in priced if findings[place].saving_ns != 0]
    if not kinds:
        warned = [place for place in worth if findings[place].severity != "info"]
        worth = [*warned, *(place for place in worth if findings[place].saving_ns)]
    return next(iter([*worth, *priced]), None)


def best_of(findings: Sequence[Finding], kinds: Collection[str]) -> int | None:
    """Return the place of the finding of these kinds whose fix saves most; None if none costs time."""
    first = first_of(findings, kinds)
    if first is None:
        return None
    of_kinds = [place for place, finding in enumerate(findings) if finding.kind in kinds and finding.toll_ns]
    most = max(of_kinds, key=lambda place: findings[place].saving_ns or 0)
    return most if (findings[most].saving_ns or 0) > (findings[first].saving_ns or 0) else first


def own_reason(findings: Sequence[Finding], rank: int) -> int | None:
    """Return the place of a finding of this rank alone that costs most of what others wait for; None if none.

    A host that reads values, fetches batches or writes checkpoints on one rank only is why that rank is late.
    """
    pair = of_own_reason(findings)
    return pair[0] if pair is not None and findings[pair[0]].ranks == (rank,) else None


def launching(findings: Sequence[Finding], place: int | None) -> bool:
    """Return whether that finding, a late rank, and another share a cause: hosts that launch late."""
    return place is not None and place in of_late_launches(findings)


def ends(findings: Sequence[Finding], place: int | None, purpose: str = "") -> tuple[str, ...]:
    """Return what to do in words that may end the sentence, the most telling first; empty without a place.

    A remedy is first if its first clause is a short order that explains itself; then the finding's number, as
    the bill counts it. `purpose`, as `to send less, `, stands before a finding of another kind than what the
    sentence blames: a bare number would seem to belong to that.
    """
    if place is None:
        return ()
    finding = findings[place]
    if finding.saving_ns == 0:
        return _without_saving(findings, place)
    number = f"finding {place + 1}"
    given = orders(findings, place, purpose)
    if purpose:
        return (*given, f"{purpose}see {number} ({finding.kind})", f"{purpose}see {number}")
    return (*given, f"start with {number} ({finding.kind})", f"see {number}")


def orders(findings: Sequence[Finding], place: int | None, purpose: str = "") -> tuple[str, ...]:
    """Return what to do in words of its own, the most telling first; empty if only a number says it."""
    if place is None:
        return ()
    finding = findings[place]
    if finding.saving_ns == 0:
        return _without_saving(findings, place)[:1] if launching(findings, place) else ()
    order = _order(finding.remedy.text) if finding.remedy is not None else ""
    if not order or purpose:
        return (f"{purpose}{order}",) if order else ()
    return tuple(dict.fromkeys((order, order.partition(", else ")[0])))


def ends_of_both(findings: Sequence[Finding], places: Sequence[int | None]) -> tuple[str, ...]:
    """Return the ends of a sentence that blames two things: the number of a finding of each."""
    known = sorted({place for place in places if place is not None})
    if len(known) < 2:
        return ends(findings, known[0] if known else None)
    named = " and ".join(f"{place + 1} ({findings[place].kind})" for place in known)
    return f"see findings {named}", f"see findings {' and '.join(str(place + 1) for place in known)}"


def with_advice(text: str, said: Sequence[str]) -> str:
    """Return the sentence with the first of those ends that `WIDTH` allows."""
    for words in said:
        if len(text) + len(words) + 3 <= WIDTH:
            return f"{text}; {words}"
    return text


def room(said: Sequence[str]) -> int:
    """Return how many characters the sentence needs for the shortest of those ends; 0 without any."""
    return min((len(words) + 3 for words in said), default=0)


def _without_saving(findings: Sequence[Finding], place: int) -> tuple[str, ...]:
    """Return what to say of a finding whose fix saves nothing: who shares its cause, or what does save."""
    finding, number = findings[place], place + 1
    shared = of_late_launches(findings)
    others = [each + 1 for each in shared if each != place] if place in shared else []
    if others:
        first, second = sorted((number, others[0]))
        both = f"see findings {first} and {second}"
        return f"speed up launches on all ranks (findings {first}, {second})", both
    see = f"see finding {number}"
    other = first_of(findings)
    if other is None or findings[other].saving_ns == 0:
        return f"no finding has a saving; {see} ({finding.kind})", "no finding has a saving", see
    then = f"start with finding {other + 1} ({findings[other].kind})"
    return f"fixing finding {number} saves nothing, so {then}", f"{see} ({finding.kind})", see


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
