"""The rows that every view of a hang shows: ranks, groups and the first divergence, in words."""

from __future__ import annotations

from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.hang import GroupStand, HangAnswer, RankStand
from shardtoll.ledger.records.flight import FlightCall
from shardtoll.ledger.words import human

RANK_HEADS = ("rank", "state", "for", "collective", "line", "waits for")
GROUP_HEADS = ("group", "ranks", "collective", "size", "waiting", "not arrived", "differs")
MOST_ROWS = 64
_LINE = 160


def call_words(call: FlightCall | None) -> str:
    """Return `all_reduce 12 (group dp)`, `send to rank 3`; unknown if no collective is known."""
    if call is None:
        return human.UNKNOWN
    if call.is_point_to_point:
        other = "any rank" if call.root is None else f"rank {call.root}"
        return f"{call.op} {'to' if call.op == 'send' else 'from'} {other}"
    place = "" if call.place is None else f" {call.place}"
    return clip(f"{call.op}{place} (group {call.group})", _LINE)


def rank_rows(answer: HangAnswer) -> list[tuple[str, ...]]:
    """Return a row for each rank; those that do not wait first, as they are few and matter most."""
    ordered = sorted(answer.ranks, key=lambda stand: (stand.standing == "waits", stand.rank))
    return [_rank(stand) for stand in ordered[:MOST_ROWS]]


def _rank(stand: RankStand) -> tuple[str, ...]:
    collective = call_words(stand.call) if stand.call is not None else _no_call(stand)
    if stand.standing != "waits" and stand.call is not None:
        collective = f"after {collective}"
    return (
        str(stand.rank),
        stand.standing,
        human.UNKNOWN if stand.for_ns is None else human.duration(stand.for_ns),
        collective,
        clip(stand.line or human.UNKNOWN, _LINE),
        human.ranks(stand.waits_for) if stand.waits_for else "-",
    )


def _no_call(stand: RankStand) -> str:
    """Return the known facts about the collective of a rank whose file names none."""
    if stand.standing == "waits":
        return "one that C++ issued"
    return "none yet" if stand.issued == 0 else human.UNKNOWN


def group_rows(answer: HangAnswer) -> list[tuple[str, ...]]:
    """Return a row for each collective that ranks wait in."""
    return [_group(stand) for stand in answer.groups[:MOST_ROWS]]


def _group(stand: GroupStand) -> tuple[str, ...]:
    unlike = "; ".join(
        f"rank {each.rank}: {each.what} {each.here}, others {each.others}" for each in stand.differences[:8]
    )
    name = stand.group if stand.description is None else f"{stand.group} ({stand.description})"
    place = "" if stand.place is None else f" {stand.place}"
    return (
        clip(name, _LINE),
        human.runs(stand.ranks) if stand.ranks else human.UNKNOWN,
        clip(f"{stand.op}{place}", _LINE),
        human.size(stand.message_bytes),
        human.ranks(stand.waiting) if stand.waiting else "-",
        # Who did not come to a group of unknown ranks is unknown too.
        human.ranks(stand.missing) if stand.missing else "-" if stand.ranks else human.UNKNOWN,
        clip(unlike, _LINE) or "-",
    )


def divergence_words(answer: HangAnswer) -> str | None:
    """Return where programs first differ, in one line; None if they do not."""
    divergence = answer.divergence
    if divergence is None:
        return None
    sides = (
        (f"rank {divergence.rank}", divergence.call),
        (human.ranks(divergence.others), divergence.others_call),
    )
    said = "; ".join(
        f"{who}: {call_words(call)} at {call.source or 'an unknown line'}"
        + ("" if call.step is None else f", step {call.step}")
        for who, call in sides
    )
    sure = "" if divergence.certain else " (which side is wrong is unknown)"
    return clip(f"first divergence ({divergence.what}): {said}{sure}", 600)


def error_lines(answer: HangAnswer) -> list[str]:
    """Return exceptions and files with stacks, a line each."""
    lines = [f"rank {stand.rank}: {clip(stand.error, 300)}" for stand in answer.ranks if stand.error]
    files = [stand for stand in answer.ranks if stand.stacks]
    lines += [f"stacks of rank {stand.rank}: {clip(stand.stacks or '', 300)}" for stand in files[:8]]
    if len(files) > 8:
        lines.append(f"and stacks of {len(files) - 8} more ranks next to them")
    return lines


def remedy(answer: HangAnswer) -> str | None:
    """Return what to do; None if there is no hang."""
    return next((each.remedy.text for each in answer.findings if each.remedy is not None), None)
