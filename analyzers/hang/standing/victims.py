"""Which exceptions the end of another rank, or a collective with it, has brought about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from shardtoll.analyzers.hang.standing.unseen import in_engine, makes_group
from shardtoll.ledger.records.flight import RankFlight

_LOST: Final = re.compile(
    r"by (?:remote )?peer|Broken pipe|Connection refused|Timed out waiting|[Tt]imeout"
    r"|Connection was likely closed|DistNetworkError|remote process exited|communicator was aborted"
)
"""Text of an exception that the end of another rank has brought about."""

_TIMED_OUT: Final = re.compile(r"Timed out waiting|[Tt]imed? ?out")

_LIMIT_NS: Final = 120_000_000_000

_ALONE_NS: Final = 2_000_000_000
"""A rank may fail within this by itself while others have not come; later a guard may have ended its wait."""

_EARLY_NS: Final = 10_000_000_000
"""The same if the others came after it had failed: the job did not hang."""

_AT_ONCE_NS: Final = 5_000_000_000
"""Ranks that raise the same within this were ended by one cause from outside, as a guard or a launcher."""

_INTERRUPTS: Final = ("KeyboardInterrupt", "SystemExit")

_OF_TRANSPORT: Final = re.compile(r"gloo|NCCL|nccl|UCC|MPI|ProcessGroup|enforce fail|Work ran time out")
"""Text of an exception of a backend, whoever is at fault."""

_Collective = tuple[str, int, tuple[int, ...]]


def lost_peer(flight: RankFlight) -> bool:
    """Whether an exception ended a rank in the collective that it issued last, as the loss of a peer does."""
    last = flight.calls[-1] if flight.calls else None
    # One may be killed before its audit has noted the exception.
    ended = flight.state == "failed" or (
        flight.state == "open" and flight.life == "dead" and flight.blocked is None
    )
    return ended and last is not None and flight.raised == last.number


def lost_by_words(flight: RankFlight) -> bool:
    """Whether a rank's exception says that it lost another one."""
    return flight.state == "failed" and bool(_LOST.search(flight.error or ""))


def lost_unseen(flight: RankFlight) -> bool:
    """Whether such an exception ended a rank in a wait that no collective of the program shows."""
    return lost_by_words(flight) and not lost_peer(flight) and (in_engine(flight) or makes_group(flight))


def timed_out(flight: RankFlight) -> bool:
    """Whether a rank gave its wait up as torch's own limit was over: nobody's end is the reason."""
    in_wait = lost_peer(flight) or lost_unseen(flight)
    return in_wait and bool(_TIMED_OUT.search(flight.error or ""))


def gave_up(flight: RankFlight) -> bool:
    """Whether a rank gave its collective up itself: by torch's limit, or by code of the user's."""
    return timed_out(flight) or (lost_peer(flight) and _speaks_for_itself(flight))


def own_errors(flights: Mapping[int, RankFlight]) -> frozenset[int]:
    """Return the ranks that an exception of their own ended inside a collective.

    A signal's handler may raise there, as the one that tells of a dead worker of a DataLoader does. Guards of
    the user's raise there as well, because the job hangs. They do so in ranks that had waited for others, or
    for long, or in several ranks at once. So does Ctrl-C. If all had come, the proof is that peers lost a
    rank.
    """
    raised = {
        number: each for number, each in flights.items() if lost_peer(each) and _speaks_for_itself(each)
    }
    if not raised:
        return frozenset()
    lost = any(lost_by_words(each) for each in flights.values())
    together = _together(raised)
    arrivals = Arrivals(flights)
    own = set()
    for number, each in raised.items():
        came_ns = arrivals.last_came_ns(each)
        all_there = came_ns is not None and (each.heartbeat_ns is None or came_ns <= each.heartbeat_ns)
        limit_ns = each.hang_after_ns or _LIMIT_NS
        if not all_there:
            limit_ns = min(limit_ns, _ALONE_NS if came_ns is None else _EARLY_NS)
        if (lost and all_there) or (number not in together and _raised_within(each, limit_ns)):
            own.add(number)
    return frozenset(own)


def _speaks_for_itself(flight: RankFlight) -> bool:
    """Whether a rank's exception is none of a transport or a backend."""
    error = flight.error
    return bool(error) and not (_LOST.search(error or "") or _OF_TRANSPORT.search(error or ""))


def _together(raised: Mapping[int, RankFlight]) -> frozenset[int]:
    """Return the ranks that raised the same as another one, at about one moment; numbers in it may differ."""
    same: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, each in raised.items():
        if each.heartbeat_ns is not None:
            same[re.sub(r"\d+", "", each.error or "")].append((each.heartbeat_ns, number))
    found: set[int] = set()
    for ends in same.values():
        ends.sort()
        for (end_ns, number), (next_ns, other) in pairwise(ends):
            if next_ns - end_ns <= _AT_ONCE_NS:
                found |= {number, other}
    return frozenset(found)


def _raised_within(flight: RankFlight, limit_ns: int) -> bool:
    """Whether a rank was in its collective for at most so long, and nobody interrupted it."""
    since_ns, end_ns = flight.raised_since_ns, flight.heartbeat_ns
    if (flight.error or "").startswith(_INTERRUPTS) or since_ns is None or end_ns is None:
        return False
    return end_ns - since_ns <= limit_ns


class Arrivals:
    """How far each rank has come in each group, and when it came to a place, if that is known."""

    def __init__(self, flights: Mapping[int, RankFlight]) -> None:
        self._issued: dict[str, dict[int, int]] = defaultdict(dict)
        self._times: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        self._last_ns: dict[_Collective, int | None] = {}
        for number, each in flights.items():
            for group in each.groups:
                self._issued[group.name][number] = group.issued_place or 0
            for call in each.calls:
                if call.place is None or call.is_point_to_point:
                    continue
                issued = self._issued[call.group]
                issued[number] = max(issued.get(number, 0), call.place)
                if call.issued_ns is not None:
                    self._times[call.group, call.place][number] = call.issued_ns

    def last_came_ns(self, flight: RankFlight) -> int | None:
        """Return when the last rank came to a rank's last collective; None if one is not known to have come.

        C++ counts collectives without times: 0 if there are only such. A send has no such time.
        """
        last = flight.calls[-1]
        group = flight.group(last.group)
        if last.place is None or last.is_point_to_point or group is None or not group.ranks:
            return None
        return self._last_came_ns((last.group, last.place, group.ranks))

    def _last_came_ns(self, collective: _Collective) -> int | None:
        if collective not in self._last_ns:
            name, place, ranks = collective
            issued, times = self._issued[name], self._times.get((name, place), {})
            came = all(issued.get(rank, 0) >= place for rank in ranks)
            self._last_ns[collective] = (
                max((times.get(rank, 0) for rank in ranks), default=0) if came else None
            )
        return self._last_ns[collective]
