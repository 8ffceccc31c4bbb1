"""The verdict in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from shardtoll.analyzers.hang import disagreeing, no_hang
from shardtoll.analyzers.hang.diagnosis import Diagnosis
from shardtoll.analyzers.hang.job import numbers
from shardtoll.analyzers.hang.unlisted import unknown
from shardtoll.analyzers.hang.wording import (
    capital,
    described,
    died_too,
    first_wait,
    stands_at,
    verb,
    waiters,
    where,
)
from shardtoll.ledger.words import human

_ERROR_MOST: Final = 140


def sentence(diagnosis: Diagnosis) -> str:
    """Return the verdict: who, where, and for whom the others wait."""
    return _SENTENCES.get(diagnosis.why, unknown)(diagnosis)


def _late(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    since = "" if rank.for_ns is None else f" for {human.duration(rank.for_ns)}"
    did = f"been {where(diagnosis)}"
    if rank.flight.line is None and rank.blocked_call is None and rank.last_call is not None:
        did = f"issued nothing since {described(rank.last_call)}"
    # A rank that is stopped or dead is not called late.
    silent = (
        ""
        if rank.quiet_ns is None or rank.standing != "runs"
        else f", and its heartbeat has stopped for {human.duration(rank.quiet_ns)}, as if code held "
        "Python's lock"
    )
    return (
        f"{capital(numbers(culprits))} {verb(culprits, 'has', 'have')} not arrived and "
        f"{verb(culprits, 'has', 'have')} {did}{since}{silent}; {waiters(diagnosis)}."
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
    unopened = verb(culprits, "it has not opened its audit", "they have not opened their audits")
    return (
        f"{capital(waiters(diagnosis))} for {numbers(culprits)}, and no file of "
        f"{verb(culprits, 'it', 'them')} was given: {unopened}, or "
        f"{verb(culprits, 'its run folder is', 'their run folders are')} missing here."
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
    others = died_too(diagnosis)
    too = f"; {numbers(others)} died too, and which died first is unknown" if others else ""
    return f"{capital(numbers(culprits))} died{step}{_silence(diagnosis)}, {seen}; {waiters(diagnosis)}{too}."


def _silence(diagnosis: Diagnosis) -> str:
    """Say that nothing tells a death from code that held Python's lock until the job was killed."""
    quiet_ns = diagnosis.job.ranks[diagnosis.culprits[0]].quiet_ns
    if not diagnosis.job.ended or quiet_ns is None or quiet_ns < diagnosis.limit_ns:
        return ""
    return f" or stood still (its heartbeat ended {human.duration(quiet_ns)} before the others')"


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
    "none": no_hang.none,
    "slow": no_hang.slow,
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
