"""Which exceptions the end of another rank, or a collective with it, has brought about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from shardtoll.ledger.records.flight import RankFlight

_LOST: Final = re.compile(
    r"by (?:remote )?peer|Broken pipe|Connection refused|Timed out waiting|[Tt]imeout"
    r"|Connection was likely closed|DistNetworkError|remote process exited|communicator was aborted"
)
"""Text of an exception that the end of another rank has brought about."""
_TIMED_OUT: Final = re.compile(r"Timed out waiting|[Tt]imed? ?out")
_LIMIT_NS: Final = 120_000_000_000
_INTERRUPTS: Final = ("KeyboardInterrupt", "SystemExit")
_OF_TRANSPORT: Final = re.compile(r"gloo|NCCL|nccl|UCC|MPI|ProcessGroup|enforce fail|Work ran time out")
"""Text of an exception of a backend, whoever is at fault."""


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


def timed_out(flight: RankFlight) -> bool:
    """Whether a rank gave its collective up as torch's own limit was over: nobody's end is the reason."""
    return lost_peer(flight) and bool(_TIMED_OUT.search(flight.error or ""))


def own_errors(flights: Mapping[int, RankFlight]) -> frozenset[int]:
    """Return the ranks that an exception of their own ended inside a collective.

    A signal's handler may raise there, as the one that tells of a dead worker of a DataLoader does. A rank
    that had waited for long was interrupted because the job hung. So may one be that Ctrl-C ended: there the
    proof is that all had come, and that peers say that they lost a rank.
    """
    lost = any(lost_by_words(each) for each in flights.values())
    issued: dict[str, dict[int, int]] = defaultdict(dict)
    for number, each in flights.items():
        for group in each.groups:
            issued[group.name][number] = group.issued_place or 0
        for call in each.calls:
            if call.place is not None and not call.is_point_to_point:
                issued[call.group][number] = max(issued[call.group].get(number, 0), call.place)
    return frozenset(
        number
        for number, each in flights.items()
        if lost_peer(each)
        and each.error
        and not (_LOST.search(each.error) or _OF_TRANSPORT.search(each.error))
        and (_raised_soon(each) or (lost and _all_came(each, issued)))
    )


def _all_came(flight: RankFlight, issued: Mapping[str, Mapping[int, int]]) -> bool:
    last = flight.calls[-1]
    group = flight.group(last.group)
    if last.place is None or last.is_point_to_point or group is None or not group.ranks:
        return False
    places = issued[last.group]
    return all(places.get(rank, 0) >= last.place for rank in group.ranks)


def _raised_soon(flight: RankFlight) -> bool:
    """Whether a rank was in its collective for less time than a hang takes, and nobody interrupted it."""
    since_ns, end_ns = flight.raised_since_ns, flight.heartbeat_ns
    if (flight.error or "").startswith(_INTERRUPTS) or since_ns is None or end_ns is None:
        return False
    return end_ns - since_ns < (flight.hang_after_ns or _LIMIT_NS)
