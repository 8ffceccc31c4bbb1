"""NCCL's own ranges: calls with their sizes and communicators, and a file's facts about communicators."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Final

from shardtoll.ledger.records.record import MOST_RANKS
from shardtoll.profiler.traces.file.trace_columns import CommArgs, GroupInfo
from shardtoll.profiler.traces.nsys.payload import Payload
from shardtoll.profiler.traces.nsys.words import nccl_op

_ID: Final = "NCCL communicator ID"
_SIZES: Final = ("Message size [bytes]", "Bytes")
_PEERS: Final = ("Peer rank", "Peer")
_GROUP_BEGIN: Final = "ncclGroupStart"
_GROUP_END: Final = "ncclGroupEnd"
_MOST_BYTES: Final = 2**50
_ID_MASK: Final = 2**64 - 1


@dataclass(slots=True)
class Call:
    """One range of a call that moves data."""

    process: int
    thread: int
    start_ns: int
    end_ns: int
    args: CommArgs


@dataclass(frozen=True, slots=True)
class Member:
    """A process's facts about its place in a communicator."""

    size: int
    rank: int | None


@dataclass(slots=True)
class Nccl:
    """Takes NCCL's ranges one by one."""

    calls: list[Call] = field(default_factory=list)
    members: dict[tuple[int, str | None], Member] = field(default_factory=dict)
    """(process, communicator) -> place; None stands for a communicator without an id."""
    _marks: defaultdict[int, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))
    """Thread -> when groups of calls begin (True) and end."""

    def add(self, name: str, process: int, thread: int, start_ns: int, end_ns: int, said: Payload) -> bool:
        """Take a range, and return whether it is a call that moves data."""
        # An id of 0 is that of no communicator; ids beyond 63 bits may be read as negative.
        identity = f"0x{said[_ID] & _ID_MASK:016x}" if said.get(_ID) else None
        group = None if identity is None else f"nccl {identity}"
        if name in (_GROUP_BEGIN, _GROUP_END):
            begins = name == _GROUP_BEGIN
            self._marks[thread].append((start_ns if begins else end_ns, begins))
        op = nccl_op(name)
        if op is None:
            size, rank = said.get("No. of ranks"), said.get("Rank")
            if size is not None and 0 < size <= MOST_RANKS:
                usable = rank is not None and 0 <= rank < size
                self.members[process, group] = Member(size, rank if usable else None)
            return False
        size = _first(said, _SIZES)
        peer = _first(said, _PEERS) if op in ("send", "recv") else said.get("Root")
        args = CommArgs(
            name=op,
            group=group,
            communicator=identity,
            share_bytes=size if size is not None and 0 <= size <= _MOST_BYTES else None,
            peer_place=peer if peer is not None and 0 <= peer < MOST_RANKS else None,
        )
        self.calls.append(Call(process, thread, start_ns, end_ns, args))
        return True

    def described(self, world_size: int | None) -> list[Call]:
        """Return the calls with the sizes of their communicators, all-to-alls put together, by start."""
        for call in self.calls:
            member = self.members.get((call.process, call.args.group))
            if call.args.group is not None and member is not None:
                whole = member.size == world_size
                ranks = tuple(range(member.size)) if whole else None
                call.args = replace(call.args, group_size=member.size, ranks=ranks)
        self.calls.sort(key=lambda call: (call.thread, call.start_ns, -call.end_ns))
        return self._joined()

    def _joined(self) -> list[Call]:
        """Return the calls with those of groups put together.

        Sends and receives between all ranks are one all-to-all. A group with one call launches when it
        ends, so that the call lasts until then.
        """
        spans = {thread: _outermost(marks) for thread, marks in self._marks.items()}
        together: defaultdict[tuple[int, int], list[Call]] = defaultdict(list)
        made: list[Call] = []
        for call in self.calls:
            within = spans.get(call.thread, [])
            place = bisect_right(within, (call.start_ns, 2**62)) - 1
            if place >= 0 and call.end_ns <= within[place][1]:
                together[call.thread, place].append(call)
            else:
                made.append(call)
        for (thread, place), listed in together.items():
            whole = listed[0] if len(listed) == 1 else _all_to_all(listed)
            if whole is None:
                made += listed
            else:
                made.append(replace(whole, end_ns=spans[thread][place][1]))
        return sorted(made, key=lambda call: (call.start_ns, -call.end_ns))

    def groups(self, world_size: int | None) -> tuple[GroupInfo, ...]:
        """Return the communicators whose size is known, each once."""
        sizes = {group: member.size for (_, group), member in self.members.items() if group is not None}
        return tuple(
            GroupInfo(name, tuple(range(size)) if size == world_size else (), size, backend="nccl")
            for name, size in sizes.items()
        )

    def ranks(self) -> dict[int, Member]:
        """Return, for each process, its place in the largest communicator of the file."""
        most = max((member.size for member in self.members.values()), default=0)
        return {
            process: member
            for (process, _), member in self.members.items()
            if member.size == most and most > 1 and member.rank is not None
        }


def _first(said: Payload, names: tuple[str, ...]) -> int | None:
    return next((said[name] for name in names if name in said), None)


def _outermost(marks: list[tuple[int, bool]]) -> list[tuple[int, int]]:
    """Return (start, end) of groups; those inside others are theirs."""
    spans: list[tuple[int, int]] = []
    begun: list[int] = []
    for at_ns, begins in sorted(marks):
        if begins:
            begun.append(at_ns)
        elif begun:
            start_ns = begun.pop()
            if not begun:
                spans.append((start_ns, at_ns))
    return spans


def _all_to_all(calls: list[Call]) -> Call | None:
    """Return one call for sends to and receives from every rank of a communicator; None for others."""
    first = calls[0]
    size, group = first.args.group_size, first.args.group
    if size is None or size < 2 or any(call.args.group != group for call in calls):
        return None
    if any(call.args.name not in ("send", "recv") for call in calls):
        return None
    for op in ("send", "recv"):
        sides = Counter(call.args.peer_place for call in calls if call.args.name == op)
        if set(sides) != set(range(size)) or max(sides.values()) > 1:
            return None
    sent = [call.args.share_bytes for call in calls if call.args.name == "send"]
    stated = [share for share in sent if share is not None]
    args = replace(
        first.args,
        name="alltoall",
        share_bytes=None,
        peer_place=None,
        whole_bytes=sum(stated) if len(stated) == len(sent) else None,
    )
    return replace(first, args=args)
