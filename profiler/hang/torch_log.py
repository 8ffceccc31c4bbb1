"""torch's log messages for a collective that takes too long: NCCL's watchdog, gloo's time-outs, tracebacks.

The messages are those of torch 2.2 to 2.13, as `ProcessGroupNCCL.cpp`, gloo's transport and
`ProcessGroupWrapper`'s monitored barrier write them.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct, field

from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight

_LINE_MOST: Final = 4_000
_RANKS_MOST: Final = 100_000
_RANK: Final = re.compile(r"\bRank (\d{1,9})\]")
_WORK_WORDS: Final = "Watchdog caught collective operation timeout: WorkNCCL("
_WORK: Final = re.compile(
    r"SeqNum=(\d{1,18}), OpType=(\w{1,60}), NumelIn=\d{1,18}, NumelOut=\d{1,18}, "
    r"Timeout\(ms\)=\d{1,18}\) ran for (\d{1,18}) milliseconds"
)
_GROUP: Final = re.compile(r"PG ID (\w{1,60}) PG GUID ([\w:]{1,80})")
_NUMBERS_WORDS: Final = "last enqueued "
_NUMBERS: Final = re.compile(r"(?:NCCL )?work: (\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})")
_PREFIX: Final = re.compile(r"^\s*\[rank(\d{1,9})\]:\s?(.*)$")
_FILE: Final = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,9}), in (\S{1,100})')
_FROM: Final = re.compile(r"^\s*#\d{1,4} (\S{1,100}) from (\S{1,400}):(\d{1,9})")
_GLOO: Final = re.compile(r"Timed out waiting (\d{1,18})ms for (\w{1,20}) operation to complete")
_BARRIER: Final = re.compile(
    r"\[Rank (\d{1,9})\]:? ?Ranks? ([\d, ]{1,2000}) failed to pass monitoredBarrier in (\d{1,18}) ms"
)
_LOST: Final = re.compile(r"Connection (?:closed|reset) by peer")
_ERROR: Final = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.{0,300})")
_OPS: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce",
    "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather",
    "ALLGATHER_COALESCED": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter",
    "REDUCE": "reduce",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "SEND": "send",
    "RECV": "recv",
    "BARRIER": "barrier",
}
_LIBRARY: Final = ("site-packages", "dist-packages", "<frozen", "lib/python3")


class _Seen(Struct):
    """A log's facts about one rank."""

    op: str | None = None
    group: str = "default"
    seq: int | None = None
    ran_ms: int | None = None
    line: str | None = None
    function: str | None = None
    enqueued: int | None = None
    completed: int | None = None
    missing: set[int] = field(default_factory=set)
    error: str | None = None
    timed_out: bool = False


def flights_of_log(text: str, path: str) -> list[RankFlight]:
    """Return the ranks whose collectives a log says to have timed out or failed; empty if it says nothing."""
    seen: dict[int, _Seen] = {}
    current: int | None = None
    for line in text.splitlines():
        current = _read(line[:_LINE_MOST], seen, current)
        if len(seen) > _RANKS_MOST:
            raise ValueError(f"a log of more than {_RANKS_MOST:,} ranks")
    return [_flight(rank, each, path) for rank, each in sorted(seen.items()) if each.timed_out or each.error]


def _read(line: str, seen: dict[int, _Seen], current: int | None) -> int | None:
    """Take in one line; returns the rank that later lines without a rank are about."""
    prefixed = _PREFIX.match(line)
    if prefixed:
        current, line = int(prefixed[1]), prefixed[2]
    work, numbers = _after(line, _WORK_WORDS, _WORK), _after(line, _NUMBERS_WORDS, _NUMBERS)
    barrier = _BARRIER.search(line)
    if work:
        speaker, what = work
        rank = seen.setdefault(speaker, _Seen())
        group = _GROUP.search(line)
        if not rank.timed_out:
            rank.op, rank.seq, rank.ran_ms = _OPS.get(what[2], what[2].lower()), int(what[1]), int(what[3])
            rank.group = group[1] if group else rank.group
        rank.timed_out = True
        return speaker
    if numbers:
        speaker, what = numbers
        rank = seen.setdefault(speaker, _Seen())
        rank.enqueued, rank.completed = int(what[1]), int(what[2])
        return speaker
    if barrier:
        rank = seen.setdefault(int(barrier[1]), _Seen())
        rank.op, rank.timed_out, rank.ran_ms = "barrier", True, int(barrier[3])
        rank.missing |= {int(number) for number in re.findall(r"\d{1,9}", barrier[2])}
    if current is not None:
        _of_rank(line, seen.setdefault(current, _Seen()))
    return current


def _after(line: str, words: str, what: re.Pattern[str]) -> tuple[int, re.Match[str]] | None:
    """Return the rank named before fixed words of torch's, and what stands right after them."""
    # Not one expression with `.*?`: on a line of many ranks that takes the square of its length.
    head, has, tail = line.partition(words)
    rank, match = (_RANK.search(head), what.match(tail)) if has else (None, None)
    return (int(rank[1]), match) if rank and match else None


def _of_rank(line: str, rank: _Seen) -> None:
    """Take in a line about one rank: of its traceback, or of gloo's message."""
    file, outer = _FILE.match(line), _FROM.match(line)
    if file or outer:
        name, path, number = (file[3], file[1], file[2]) if file else (outer[1], outer[2], outer[3])  # type: ignore[index]
        if not any(part in path for part in _LIBRARY):
            if file or rank.line is None:
                rank.line = f"{'/'.join(path.split('/')[-2:])}:{number} ({name})"
        elif path.endswith(("distributed_c10d.py", "c10d_logger.py")) and name != "wrapper":
            rank.function = name
    waited, error = _GLOO.search(line), _ERROR.match(line)
    if waited or _LOST.search(line):
        rank.op = rank.function or (waited[2] if waited else None) or rank.op or "unknown"
        rank.ran_ms = int(waited[1]) if waited else rank.ran_ms
        rank.timed_out = True
        if not waited:
            rank.error = "the connection to a peer was lost"
    elif error and not rank.timed_out:
        rank.error = f"{error[1]}: {error[2]}"


def _flight(rank: int, seen: _Seen, path: str) -> RankFlight:
    call = FlightCall(number=1, op=seen.op or "unknown", group=seen.group, place=seen.seq, source=seen.line)
    failed = not seen.timed_out
    return RankFlight(
        rank=rank,
        world_size=None,
        source="log",
        path=path,
        calls=() if failed else (call,),
        groups=(
            FlightGroup(
                seen.group,
                (),
                finished_place=seen.completed,
                issued_place=seen.enqueued if seen.enqueued is not None else seen.seq,
            ),
        ),
        state="failed" if failed else "open",
        blocked=None if failed else 1,
        line=seen.line,
        error=seen.error,
        not_arrived=tuple(sorted(seen.missing)),
        waited_ns=None if seen.ran_ms is None else seen.ran_ms * 1_000_000,
    )
