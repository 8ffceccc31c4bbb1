"""The verdict in one sentence, and the finding that says the same to programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from shardtoll.analyzers.hang.diagnosis import Diagnosis
from shardtoll.analyzers.hang.job import Rank, numbers
from shardtoll.analyzers.hang.waiting import Wait
from shardtoll.ledger.records.finding import Confidence, Evidence, Figure, Finding, Remedy, Where
from shardtoll.ledger.records.flight import FlightCall
from shardtoll.ledger.words import human

_ERROR_MOST: Final = 140
_ALL: Final = ("0", "default", "default_pg")
"""What torch's logs and dumps call the group of all ranks."""
_SUSPECTS_MOST: Final = 1 << 16


def sentence(diagnosis: Diagnosis) -> str:
    """Return the verdict: who, where, and for whom the others wait."""
    return _SENTENCES.get(diagnosis.why, _unknown)(diagnosis)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _verb(ranks: tuple[int, ...], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def described(call: FlightCall | None, place: int | None = None) -> str:
    """Return `all_reduce 12 of group dp (16 B float32) at train.py:40 (step)`."""
    if call is None:
        return "a collective that C++ issued" + ("" if place is None else f" (number {place} of its group)")
    if call.is_point_to_point:
        other = "any rank" if call.root is None else f"rank {call.root}"
        words = f"{call.op} {'to' if call.op == 'send' else 'from'} {other}"
    else:
        words = call.op + ("" if call.place is None else f" {call.place}")
        words += f" of group {call.group}"
    size = "" if not call.message_bytes else human.size(call.message_bytes)
    kind = " ".join(part for part in (size, call.dtype or "") if part)
    if call.root is not None and not call.is_point_to_point:
        kind += f"{', ' if kind else ''}root {call.root}"
    words += f" ({kind})" if kind else ""
    return words + ("" if call.source is None else f" at {call.source}")


def _waiters(diagnosis: Diagnosis, *, ended: bool = False) -> str:
    """Return who waits, in what, and for how long."""
    first = _first_wait(diagnosis)
    if first is None:
        others = diagnosis.stuck
        if not others:
            return "no other rank is known to wait"
        return f"{numbers(others)} failed then {_stands_at(diagnosis.job.ranks[others[0]])}"
    same = _in_same(diagnosis, first)
    for_ns = diagnosis.job.ranks[first.rank].for_ns
    since = "" if for_ns is None else f" for {human.duration(for_ns)}"
    failed = all(diagnosis.job.ranks[rank].lost_peer for rank in same)
    verb = "failed" if failed else "had waited" if ended else _verb(same, "waits", "wait")
    return f"{numbers(same)} {verb}{since} in {described(first.call, first.place)}"


def _in_same(diagnosis: Diagnosis, wait: Wait) -> tuple[int, ...]:
    """Return the stuck ranks that wait in the same collective, and for the same ranks."""
    return tuple(
        rank
        for rank in diagnosis.stuck
        if rank in diagnosis.waits and (diagnosis.waits[rank].key, diagnosis.waits[rank].place)
        == (wait.key, wait.place) and diagnosis.waits[rank].missing == wait.missing
    ) or (wait.rank,)  # fmt: skip


def _first_wait(diagnosis: Diagnosis) -> Wait | None:
    """Return the wait to name: one for a culprit itself, the longest."""
    waits = [diagnosis.waits[rank] for rank in diagnosis.stuck if rank in diagnosis.waits]
    direct = [wait for wait in waits if set(wait.missing) & set(diagnosis.culprits)] or waits
    return max(direct, key=lambda wait: diagnosis.job.ranks[wait.rank].for_ns or 0, default=None)


def _stands_at(rank: Rank) -> str:
    line = rank.flight.line
    if line is not None:
        return f"at {line}"
    last = rank.blocked_call or rank.last_call
    if rank.blocked_call is not None:
        return f"in {described(last)}"
    return "at an unknown line" if last is None else f"after {described(last)}"


def _none(diagnosis: Diagnosis) -> str:
    ranks = tuple(diagnosis.job.ranks)
    if not ranks:
        return "No hang: no rank was read."
    closed = tuple(rank for rank in ranks if diagnosis.job.ranks[rank].standing == "closed")
    if closed == ranks:
        ended = _verb(ranks, "has ended its audit", "have ended their audits")
        return f"No hang: {numbers(ranks)} {ended}."
    return f"No hang: no rank waits for one that has not come ({numbers(ranks)} read)."


def _slow(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    where = _where(diagnosis)
    if diagnosis.job.ended:
        return (
            f"No hang: when the job ended, {_waiters(diagnosis, ended=True)} for {numbers(culprits)}, which "
            f"{_verb(culprits, 'was', 'were')} {where}; "
            f"it counts as a hang after {human.duration(diagnosis.limit_ns)}."
        )
    return (
        f"No hang so far: {_waiters(diagnosis)} for {numbers(culprits)}, which "
        f"{_verb(culprits, 'is', 'are')} {where}; "
        f"it counts as a hang after {human.duration(diagnosis.limit_ns)}."
    )


def _where(diagnosis: Diagnosis) -> str:
    rank = diagnosis.job.ranks.get(diagnosis.culprits[0]) if diagnosis.culprits else None
    return "unknown" if rank is None else _stands_at(rank)


def _late(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    for_ns = diagnosis.job.ranks[culprits[0]].for_ns
    since = "" if for_ns is None else f" for {human.duration(for_ns)}"
    return (
        f"{_capital(numbers(culprits))} {_verb(culprits, 'has', 'have')} not arrived and "
        f"{_verb(culprits, 'has', 'have')} been {_where(diagnosis)}{since}; {_waiters(diagnosis)}."
    )


def _no_peer(diagnosis: Diagnosis) -> str:
    first = _first_wait(diagnosis)
    call = None if first is None else first.call
    if call is None:
        return _late(diagnosis)
    counterpart = "recv" if call.op == "send" else "send"
    culprits = diagnosis.culprits
    return (
        f"{_capital(_waiters(diagnosis))}, and {numbers(culprits)} {_verb(culprits, 'has', 'have')} issued "
        f"no matching {counterpart}: {_verb(culprits, 'it is', 'they are')} {_where(diagnosis)}."
    )


def _no_file(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    return (
        f"{_capital(_waiters(diagnosis))} for {numbers(culprits)}, and no file of them was given: "
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
    return f"{_capital(numbers(culprits))} failed{why} {_stands_at(rank)}; {_waiters(diagnosis)}."


def _dead(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    step = "" if rank.flight.step is None else f" in step {rank.flight.step}"
    last = rank.last_call
    seen = f"last seen at {rank.flight.line}" if rank.flight.line else (
        "before its first collective" if last is None else f"after {described(last)}"
    )  # fmt: skip
    return f"{_capital(numbers(culprits))} died{step}, {seen}; {_waiters(diagnosis)}."


def _stopped(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    return (
        f"{_capital(numbers(culprits))} {_verb(culprits, 'is', 'are')} stopped by a signal "
        f"{_stands_at(rank)}; {_waiters(diagnosis)}."
    )


def _closed(diagnosis: Diagnosis) -> str:
    culprits = diagnosis.culprits
    rank = diagnosis.job.ranks[culprits[0]]
    last = rank.last_call
    after = "" if last is None else f" after {described(last)}"
    return (
        f"{_capital(numbers(culprits))} ended {_verb(culprits, 'its audit', 'their audits')} early{after}; "
        f"{_waiters(diagnosis)}."
    )


def _skipped(diagnosis: Diagnosis) -> str:
    divergence = diagnosis.divergence
    if divergence is None:
        return _unknown(diagnosis)
    call, theirs = divergence.call, divergence.others_call
    step = "" if theirs.step is None else f" in step {theirs.step}"
    others = f"{numbers(divergence.others)} {_verb(divergence.others, 'is', 'are')} in"
    if theirs.finished_ns is not None:
        others = f"{numbers(divergence.others)} issued"
    later = "" if call.step is None or call.step == theirs.step else f" in step {call.step}"
    return (
        f"Rank {divergence.rank} skipped {described(theirs)}{step} and issued {described(call)}{later} "
        f"in its place; {others} the skipped one."
    )


def _extra(diagnosis: Diagnosis) -> str:
    divergence = diagnosis.divergence
    if divergence is None:
        return _unknown(diagnosis)
    call, theirs = divergence.call, divergence.others_call
    step = "" if call.step is None else f" in step {call.step}"
    return (
        f"Rank {divergence.rank} issued {described(call)}{step}, which {numbers(divergence.others)} did not: "
        f"{_verb(divergence.others, 'it', 'they')} issued {described(theirs)} there."
    )


_NAMES: Final = {"message_bytes": "size", "reduce_op": "reduction", "op": "operation", "splits": "splits"}


def _mismatch(diagnosis: Diagnosis) -> str:
    first = diagnosis.differing[0]
    wait = next(
        each
        for each in diagnosis.waits.values()
        if each.rank in diagnosis.stuck and first.rank in diagnosis.job.at(each.key, each.place or 0)
    )
    calls = diagnosis.job.at(wait.key, wait.place or 0)
    odd = diagnosis.culprits
    mine = calls[first.rank]
    others = tuple(rank for rank in calls if rank not in odd) or tuple(r for r in calls if r != first.rank)
    theirs = calls[others[0]] if others else mine
    what = _NAMES.get(first.what, first.what)
    if first.what == "splits":
        pairs = "; ".join(
            f"rank {each.rank} sends {human.size(int(each.here or 0))} and expects "
            f"{human.size(int(each.others or 0))} at {calls[each.rank].source}"
            for each in diagnosis.differing[:4]
        )
        return f"The splits of all_to_all {wait.place} of group {wait.key[0]} differ: {pairs}."
    return (
        f"The {what} differs: {numbers(odd)} {_verb(odd, 'is', 'are')} in {described(mine)}, "
        f"and {numbers(others)} {_verb(others, 'is', 'are')} in {described(theirs)}."
    )


def _order(diagnosis: Diagnosis) -> str:
    divergence = diagnosis.divergence
    if divergence is None:
        return _cycle(diagnosis)
    call, theirs, others = divergence.call, divergence.others_call, divergence.others
    return (
        f"Deadlock by order: rank {divergence.rank} issued {described(call)} first, and "
        f"{numbers(others)} issued {described(theirs)} first; each side waits for the other."
    )


def _cycle(diagnosis: Diagnosis) -> str:
    parts = []
    cycle = diagnosis.cycle
    for index, rank in enumerate(cycle):
        following = cycle[(index + 1) % len(cycle)]
        wait = diagnosis.waits[rank]
        parts.append(f"rank {rank} waits for rank {following} in {described(wait.call, wait.place)}")
    shown = parts if len(parts) <= 4 else [*parts[:3], f"{len(parts) - 4} more ranks in between", parts[-1]]
    return f"Deadlock: {', '.join(shown[:-1])} and {shown[-1]}."


def _unlisted(diagnosis: Diagnosis) -> Wait | None:
    """Return the wait of a job in whose group more ranks may be than were read; None if all are known."""
    first = _first_wait(diagnosis)
    if diagnosis.why != "unknown" or first is None or first.call is None:
        return None
    return first if first.place is None or not first.members_known else None


def _source(diagnosis: Diagnosis, wait: Wait) -> str:
    return "dump" if diagnosis.job.ranks[wait.rank].flight.source == "recorder" else "log"


def _suspects(diagnosis: Diagnosis) -> tuple[int, ...]:
    """Return ranks between those that speak of the group of all ranks, which say nothing themselves."""
    wait = _unlisted(diagnosis)
    if wait is None or wait.place is None or wait.key[0] not in _ALL:
        return ()
    job = diagnosis.job
    return tuple(rank for rank in range(min(max(job.ranks), _SUSPECTS_MOST)) if rank not in job.ranks)


def _unknown(diagnosis: Diagnosis) -> str:
    wait = _unlisted(diagnosis)
    if wait is not None:
        here = _in_same(diagnosis, wait)
        come = f", and {_verb(here, 'it has', 'they have')} arrived" if wait.place is not None else ""
        said = (
            f"{_capital(_waiters(diagnosis))}{come}; the {_source(diagnosis, wait)} does not say which ranks "
            "did not"
        )
        suspects = _suspects(diagnosis)
        if not suspects:
            return f"{said}{'' if come else ' arrive'}."
        return f"{said}, and has nothing of {numbers(suspects)}."
    return (
        f"{_capital(_waiters(diagnosis))}, and all its ranks have arrived: "
        "the network, the tags of sends and receives, or what C++ issues unseen."
    )


_SENTENCES: Final[dict[str, Callable[[Diagnosis], str]]] = {
    "none": _none,
    "slow": _slow,
    "skipped": _skipped,
    "extra": _extra,
    "mismatch": _mismatch,
    "order": _order,
    "cycle": _cycle,
    "failed": _failed,
    "dead": _dead,
    "closed": _closed,
    "stopped": _stopped,
    "late": _late,
    "no peer": _no_peer,
    "no file": _no_file,
    "unknown": _unknown,
}

_REMEDIES: Final = {
    "skipped": "Issue this collective on every rank of the group, also if the data of a rank needs none.",
    "extra": "Issue this collective on every rank of the group, or on none.",
    "mismatch": "Give every rank of the group the same operation, size, dtype and root.",
    "order": "Issue the collectives of both groups in the same order on every rank.",
    "cycle": "Order collectives, sends and receives so that ranks do not wait for each other in a circle.",
    "failed": "Fix the exception of that rank; the others only wait for it.",
    "dead": "Look at what ended that process: the kernel's log for memory, its own output for a signal.",
    "closed": "Have every rank run the same number of steps.",
    "stopped": "Continue the process with SIGCONT, or detach the debugger that holds it.",
    "late": "Look at that rank's stacks: it has not come to the collective that the others wait in.",
    "no peer": "Issue the other side of this send or receive on that rank.",
    "no file": "Give the run folders of the other nodes too.",
    "unknown": "Look at the network between these ranks, and compare the stacks of all threads.",
}

_CODES: Final = {
    "skipped": "value = value if used else torch.zeros_like(value)\ndist.all_reduce(value, group=group)",
    "extra": "value = value if used else torch.zeros_like(value)\ndist.all_reduce(value, group=group)",
    "mismatch": "dist.all_gather(sizes, torch.tensor([value.numel()]), group=group)",
    "order": "dist.all_reduce(first, group=tp)\ndist.all_reduce(second, group=dp)",
    "cycle": (
        "sends = dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, received, left)\n"
        "dist.batch_isend_irecv(list(sends))"
    ),
    "closed": "with Join([model]):\n    train(model, batches)",
    "no peer": "dist.recv(value, src=sender) if rank == receiver else dist.send(value, dst=receiver)",
}
"""What hangs -> code that does not; the others are no matter of code."""


def _remedy(diagnosis: Diagnosis) -> str:
    wait = _unlisted(diagnosis)
    if wait is None:
        return _REMEDIES[diagnosis.why]
    suspects = _suspects(diagnosis)
    if _source(diagnosis, wait) == "dump":
        first = f"Give the dump of {numbers(suspects)} too" if suspects else "Give the dumps of all ranks"
        return f"{first}: a rank that did not arrive has issued less than the others."
    if suspects:
        return (
            f"Look at the stacks of {numbers(suspects)}: a rank without a time-out of its own is the suspect."
        )
    return "Look for a rank of the group without a time-out of its own: it is the suspect."


def finding_of(diagnosis: Diagnosis) -> Finding:
    """Return the finding of kind `hang` for a job that hangs."""
    first = _first_wait(diagnosis)
    divergence = diagnosis.divergence
    call = divergence.call if divergence is not None else None
    if call is None and first is not None:
        call = first.call
    times = [diagnosis.job.ranks[rank].for_ns for rank in diagnosis.stuck]
    known = [time for time in times if time is not None]
    evidence = [Evidence("ranks that wait", numbers(diagnosis.stuck) if diagnosis.stuck else "none")]
    if diagnosis.culprits:
        evidence.append(Evidence("ranks at fault", numbers(diagnosis.culprits)))
    if known:
        evidence.append(Evidence("longest wait", max(known), "ns"))
    if divergence is not None:
        evidence.append(Evidence(f"first divergence, rank {divergence.rank}", described(divergence.call)))
        evidence.append(
            Evidence(f"first divergence, {numbers(divergence.others)}", described(divergence.others_call))
        )
    sure: Confidence = "likely" if diagnosis.why in ("late", "unknown", "no file", "no peer") else "certain"
    if divergence is not None and not divergence.certain and diagnosis.why in ("skipped", "extra"):
        sure = "likely"
    return Finding(
        kind="hang",
        severity="error",
        title=sentence(diagnosis),
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None if call is None else call.message_bytes,
        count=1,
        ranks=tuple(sorted({*diagnosis.culprits, *diagnosis.stuck})),
        where=Where(
            phase=None if call is None else call.phase,
            module=None if call is None else call.module,
            op=None if call is None else call.op,
            source=None if call is None else call.source,
            group=None if call is None else call.group,
        ),
        evidence=tuple(evidence),
        remedy=Remedy(_remedy(diagnosis), _CODES.get(diagnosis.why)),
        confidence=sure,
        figures=(Figure("waited_ns", max(known), "ns"),) if known else (),
    )
