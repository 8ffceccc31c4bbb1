"""The results of replaying a step, in words and rows that every renderer shows."""

from __future__ import annotations

from typing import Final

from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.what_if import Change, Path, WhatIf
from shardtoll.ledger.words import human

Row = tuple[str, ...]

PARTS: Final = (
    ("step", "step_ns"),
    ("compute", "compute_ns"),
    ("exposed communication", "exposed_comm_ns"),
    ("exposed copies", "exposed_copy_ns"),
    ("idle and unexplained", "rest_ns"),
)
PATH_HEADS: Final = ("on the critical path", "per step", "share", "ranks")
PARTS_HEADS: Final = ("slowest rank", "before", "after", "change")
CHANGE_HEADS: Final = ("change", "saves alone", "band", "cumulative step")
PATH_SHOWN: Final = 12
_NAME: Final = 60


def headline(answer: WhatIf) -> str:
    """Return the answer in one sentence."""
    was, now = answer.before.step_ns, answer.after.step_ns
    word = "shorter" if answer.saving_ns >= 0 else "longer"
    share = human.share(abs(answer.saving_ns), was)
    ranks = answer.slowest_before, answer.slowest_after
    other = (
        "" if ranks[0] == ranks[1] else f" Rank {ranks[1]} is the slowest then, in place of rank {ranks[0]}."
    )
    return (
        f"The step takes {human.duration(now)} in place of {human.duration(was)}: {share} {word}, "
        f"saving {band(answer.saving_ns, answer.saving_low_ns, answer.saving_high_ns)}.{other}"
    )


def band(mid_ns: int, low_ns: int, high_ns: int) -> str:
    """Return `2.1 ms (1.9 to 2.4 ms)`, with a sign if the step becomes longer."""
    return f"{signed(mid_ns)} ({signed(low_ns)} to {signed(high_ns)})"


def signed(ns: int) -> str:
    """Return a time that may be negative."""
    return human.duration(ns) if ns >= 0 else f"-{human.duration(-ns)}"


def saving(finding: Finding) -> str:
    """Return a finding's saving: predicted with its band, an upper bound that says so, or `nothing`."""
    if finding.saving_ns is None:
        return human.duration(None)
    if not finding.saving_ns and not finding.saving_high_ns:
        return "nothing"
    if finding.replayed is None or finding.saving_low_ns is None or finding.saving_high_ns is None:
        return f"at most {human.duration(finding.saving_ns)}"
    return band(finding.saving_ns, finding.saving_low_ns, finding.saving_high_ns)


def saves(finding: Finding) -> str:
    """Return who saves it: the remedy, or if that only measures, a fix of what it shows."""
    return "a fix of what it shows saves" if finding.only_measures else "saves"


def part_rows(answer: WhatIf) -> list[Row]:
    """Return name, before, after and change of each part of the step, below the rank whose they are."""
    before, after = answer.before, answer.after
    rank: Row = ("rank", str(answer.slowest_before), str(answer.slowest_after), "")
    parts = (
        (
            words,
            human.duration(getattr(before, name)),
            human.duration(getattr(after, name)),
            signed(getattr(after, name) - getattr(before, name)),
        )
        for words, name in PARTS
    )
    return [rank, *parts]


def change_rows(changes: tuple[Change, ...]) -> list[Row]:
    """Return one row per change: its name, its saving alone, and the step after it."""
    return [
        (
            label(change),
            signed(change.saving_ns),
            f"{signed(change.low_ns)} to {signed(change.high_ns)}",
            human.duration(change.step_ns),
        )
        for change in changes
    ]


def label(change: Change) -> str:
    """Return a change in words, with its finding's number and kind."""
    if change.number is None:
        return clip(change.label, _NAME)
    return f"{change.number} {change.kind}: {clip(change.label, _NAME)}"


def path_rows(path: Path) -> list[Row]:
    """Return the longest parts of the critical path."""
    return [
        (
            " ".join(word for word in (part.what, clip(part.name, _NAME), f"({part.phase})") if word),
            human.duration(part.ns),
            human.percent(part.share),
            human.ranks(part.ranks),
        )
        for part in path.parts[:PATH_SHOWN]
    ]


def path_words(path: Path) -> str:
    """Return how the path runs, in one line. Its length is the step's, which stands above it."""
    unknown = f"; gaps without a reason on record are {human.percent(path.unknown_share)} of it"
    hops = "stays on one rank" if not path.hops else f"changes ranks {human.often(path.hops)} per step"
    return hops + unknown


def basis(source: str, steps: int, nodes: int, replay_error: float, unknown_share: float) -> str:
    """Return how reliable the replay is: its basis and its error without any edit."""
    what = "launches, streams and waits" if source == "events" else "collectives and own time between them"
    return (
        f"replayed {human.plural(steps, 'step')} from {what}, {nodes:,} nodes. Unedited it is off by "
        f"{human.percent(replay_error)} at most; {human.percent(unknown_share)} of the critical path is gaps "
        "without a reason on record"
    )
