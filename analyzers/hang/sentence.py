"""The verdict in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from shardtoll.analyzers.hang import disagreeing
from shardtoll.analyzers.hang.diagnosis import Diagnosis
from shardtoll.analyzers.hang.job import numbers
from shardtoll.analyzers.hang.unlisted import unknown
from shardtoll.analyzers.hang.wording import capital, described, first_wait, stands_at, verb, waiters, where
from shardtoll.ledger.words import human

_ERROR_MOST: Final = 140


def sentence(diagnosis: Diagnosis) -> str:
    """Return the verdict: who, where, and for whom the others wait."""
    return _SENTENCES.get(diagnosis.why, unknown)(diagnosis)


def _none(diagnosis: Diagnosis) -> str:
    ranks = tuple(diagnosis.job.ranks)
    if not ranks:
        return "No hang: no rank was read."
    closed = tuple(rank for rank in ranks if diagnosis.job.ranks[rank].standing == "closed")
    if closed == ranks:
        ended = verb(ranks, "has ended its audit", "have ended their audits")
        return f"No hang: {numbers(ranks)} {ended}."
    return f"No hang: no rank waits for one that has not come ({numbers(ranks)} read)."


def _slow(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    place = where(diagnosis)
    if diagnosis.job.ended:
        return (
            f"No hang: when the job ended, {waiters(diagnosis, ended=True)} for {numbers(culprits)}, which "
            f"{verb(culprits, 'was', 'were')} {place}; "
            f"it counts as a hang after {human.duration(diagnosis.limit_ns)}."
        )
    return (
        f"No hang so far: {waiters(diagnosis)} for {numbers(culprits)}, which "
        f"{verb(culprits, 'is', 'are')} {place}; "
        f"it counts as a hang after {human.duration(diagnosis.limit_ns)}."
    )


def _late(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    for_ns = diagnosis.job.ranks[culprits[0]].for_ns
    since = "" if for_ns is None else f" for {human.duration(for_ns)}"
    return (
        f"{capital(numbers(culprits))} {verb(culprits, 'has', 'have')} not arrived and "
        f"{verb(culprits, 'has', 'have')} been {where(diagnosis)}{since}; {waiters(diagnosis)}."
    )


def _no_peer(diagnosis: Diagnosis) -> str:
    first = first_wait(diagnosis)
    call = None if first is None else first.call
    if call is None:
        return _late(diagnosis)
    counterpart = "recv" if call.op == "send" else "send"
    culprits = diagnosis.culprits
    return (
        f"{capital(waiters(diagnosis))}, and {numbers(culprits)} {verb(culprits, 'has', 'have')} issued "
        f"no matching {counterpart}: {verb(culprits, 'it is', 'they are')} {where(diagnosis)}."
    )


def _no_file(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    return (
        f"{capital(waiters(diagnosis))} for {numbers(culprits)}, and no file of them was given: "
        "add the run folders of the other nodes."
    )


def _short(error: str) -> str:
    """Return an exception's text without the places in torch's sources that some begin with."""
    text = re.sub(r"\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\] ?", "", error)
    return text if len(text) <= _ERROR_MOST else f"{text[:_ERROR_MOST]}..."


def _failed(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    why = f" with {_short(rank.flight.error)}" if rank.flight.error else ""
    return f"{capital(numbers(culprits))} failed{why} {stands_at(rank)}; {waiters(diagnosis)}."


def _dead(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    step = "" if rank.flight.step is None else f" in step {rank.flight.step}"
    last = rank.last_call
    seen = f"last seen at {rank.flight.line}" if rank.flight.line else (
        "before its first collective" if last is None else f"after {described(last)}"
    )  # fmt: skip
    return f"{capital(numbers(culprits))} died{step}, {seen}; {waiters(diagnosis)}."


def _stopped(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    return (
        f"{capital(numbers(culprits))} {verb(culprits, 'is', 'are')} stopped by a signal "
        f"{stands_at(rank)}; {waiters(diagnosis)}."
    )


def _closed(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    last = rank.last_call
    after = "" if last is None else f" after {described(last)}"
    return (
        f"{capital(numbers(culprits))} ended {verb(culprits, 'its audit', 'their audits')} early{after}; "
        f"{waiters(diagnosis)}."
    )


_SENTENCES: Final[dict[str, Callable[[Diagnosis], str]]] = {
    "none": _none,
    "slow": _slow,
    "skipped": disagreeing.skipped,
    "extra": disagreeing.extra,
    "mismatch": disagreeing.mismatch,
    "order": disagreeing.order,
    "cycle": disagreeing.cycle,
    "failed": _failed,
    "dead": _dead,
    "closed": _closed,
    "stopped": _stopped,
    "late": _late,
    "no peer": _no_peer,
    "no file": _no_file,
    "unknown": unknown,
}
