"""The ranks of one job side by side: who waits, who is gone, and how long each has stood still."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardtoll.ledger.answers.hang import Standing
from shardtoll.ledger.records.flight import FlightCall, RankFlight

DEFAULT_AFTER_NS: Final = 120_000_000_000
SURE_AFTER_NS: Final = 1_000_000_000
"""Ranks that can never go on are called hung after this; files of ranks are not read at one instant."""
_MOST_RANKS: Final = 1 << 17
"""A damaged file could name any number."""
_LATE_BEATS: Final = 4
_LATE_LEAST_NS: Final = 2_000_000_000
"""A heartbeat that is older than the newest one of its host by this and by so many beats has stopped."""
_ENGINE: Final = ("_engine_run_backward",)
_LOST: Final = re.compile(
    r"by peer|Broken pipe|Connection refused|Timed out waiting|[Tt]imeout"
    r"|Connection was likely closed|DistNetworkError|remote process exited|communicator was aborted"
)
"""What an exception says that the end of another rank has brought about."""
_GONE: Final[frozenset[Standing]] = frozenset(("dead", "failed", "closed", "left"))

Key = tuple[str, tuple[int, ...]]
"""A group by name and ranks: ranks of one mesh may use one name for several groups."""


@dataclass(slots=True)
class Rank:
    """One rank's flight, with what the whole job says of it."""

    flight: RankFlight
    standing: Standing
    until_ns: int | None
    """Up to when its state is known to have lasted; None unknown."""
    beat_age_ns: int | None
    quiet_ns: int | None = None
    """How far its heartbeat is behind the newest one of its host; None if it beats, or if its audit ended."""
    by_place: dict[tuple[Key, int], FlightCall] = field(default_factory=dict)
    """Collectives that are no sends and receives."""
    channels: dict[tuple[Key, str, int | None], int] = field(default_factory=dict)
    """Number of sends and receives so far by direction and other side."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.flight.rank

    @property
    def is_gone(self) -> bool:
        """Whether it will issue nothing any more."""
        return self.standing in _GONE

    @property
    def blocked_call(self) -> FlightCall | None:
        """The collective it waits in, or that it waited in when an exception ended it; None in none."""
        flight = self.flight
        if self.lost_peer:
            return flight.call(flight.raised)
        if flight.blocked is None:
            return None
        if flight.blocked:
            return flight.call(flight.blocked)
        return next((call for call in flight.calls if call.finished_ns is None), None)

    @property
    def lost_peer(self) -> bool:
        """Whether an exception ended it in a collective, as the loss of a peer does."""
        return _lost_peer(self.flight)

    @property
    def is_victim(self) -> bool:
        """Whether it failed because of another rank, as far as its exception says."""
        return _is_victim(self.flight)

    @property
    def in_backward(self) -> bool:
        """Whether it stands in autograd's engine, where C++ waits unseen."""
        return any(name in frame for frame in self.flight.frames[:3] for name in _ENGINE)

    @property
    def waits(self) -> bool:
        """Whether it is in a collective, seen or unseen, or in the wait for one."""
        if self.standing not in ("waits", "stopped"):
            return self.lost_peer
        return self.flight.blocked is not None or self.in_backward or not self.flight.waits_block

    @property
    def for_ns(self) -> int | None:
        """How long it has waited, or issued nothing; None unknown."""
        if self.flight.waited_ns is not None:
            return self.flight.waited_ns
        if self.lost_peer:
            return None
        since = self.flight.blocked_since_ns if self.flight.blocked is not None else self.flight.moved_ns
        if since is None or self.until_ns is None:
            return None
        return max(self.until_ns - since, 0)

    @property
    def waits_since_ns(self) -> int | None:
        """Since when it is in a collective, or was as an exception ended it; None if in none, or unknown."""
        if self.lost_peer:
            return self.flight.raised_since_ns
        if self.flight.blocked is None and self.in_backward:
            # What C++ issues there has no time of its own.
            return self.flight.moved_ns
        return self.flight.blocked_since_ns

    @property
    def last_call(self) -> FlightCall | None:
        """The collective it issued last."""
        return self.flight.calls[-1] if self.flight.calls else None


class Job:
    """All ranks that are known, and their groups."""

    def __init__(self, flights: Iterable[RankFlight], now_ns: int) -> None:
        """`now_ns`: when the files were read."""
        chosen = _one_each(flights)
        beats: dict[str | None, int] = {}
        for each in chosen.values():
            if each.heartbeat_ns is not None:
                beats[each.host] = max(beats.get(each.host, each.heartbeat_ns), each.heartbeat_ns)
        self.newest_ns = max(beats.values(), default=None)
        may_live = any(each.life in ("alive", "stopped") for each in chosen.values())
        lost = any(_is_victim(each) for each in chosen.values())
        own = any(each.state == "failed" and not _is_victim(each) for each in chosen.values())
        self.ranks: dict[int, Rank] = {
            # Its peers noticed its end: it ended before them.
            number: _rank(
                each, now_ns, self.newest_ns, beats.get(each.host), died_first=may_live or (lost and not own)
            )
            for number, each in sorted(chosen.items())
        }
        self.over = not may_live and any(rank.standing in ("failed", "dead") for rank in self.ranks.values())
        """Whether all ranks have ended, and some of them badly."""
        self.ended = bool(chosen) and all(map(_has_ended, chosen.values()))
        """Whether every rank is known to have died or to have left its audit: no file changes any more."""
        ends = [
            rank.flight.heartbeat_ns
            for rank in self.ranks.values()
            if rank.flight.heartbeat_ns is not None and rank.flight.state not in ("closed", "left")
        ]
        self.first_end_ns = min(ends, default=None) if self.ended else None
        """Up to when all ranks of a job that has ended badly are known to have lived."""
        self.members: dict[Key, tuple[int, ...]] = {}
        self.unlisted: set[Key] = set()
        """Groups whose members nothing lists: of them only the ranks that speak are known."""
        self._by_rank: dict[tuple[int, str], Key] = {}
        users: dict[str, set[int]] = defaultdict(set)
        for number, each in chosen.items():
            for group in each.groups:
                users[group.name].add(number)
        keys: dict[Key, Key] = {}
        for number, each in chosen.items():
            for group in each.groups:
                # A log does not say who belongs to a group: at least those that speak of it.
                ranks = group.ranks or tuple(sorted(users[group.name]))
                # One object for each group: equal ones of many ranks take long to compare.
                key = keys.setdefault((group.name, ranks), (group.name, ranks))
                self.members[key] = ranks
                if not group.ranks:
                    self.unlisted.add(key)
                self._by_rank[number, group.name] = key
        self._issued: dict[Key, dict[int, int]] = defaultdict(dict)
        self._places: dict[Key, list[int]] = {}
        self._at: dict[tuple[Key, int], dict[int, FlightCall]] = defaultdict(dict)
        for rank in self.ranks.values():
            self._index(rank)

    def key(self, rank: int, name: str) -> Key:
        """Return which group a rank means by a name."""
        return self._by_rank.get((rank, name), (name, ()))

    def _index(self, rank: Rank) -> None:
        for call in rank.flight.calls:
            key = self.key(rank.rank, call.group)
            if call.place is None:
                continue
            if call.is_point_to_point:
                channel = (key, call.op, call.root)
                rank.channels[channel] = max(rank.channels.get(channel, 0), call.place)
            else:
                rank.by_place[key, call.place] = call
                self._at[key, call.place][rank.rank] = call
                self._note_issued(key, rank.rank, call.place)
        for group in {group.name: group for group in reversed(rank.flight.groups)}.values():
            if group.issued_place is not None:
                self._note_issued(self.key(rank.rank, group.name), rank.rank, group.issued_place)

    def _note_issued(self, key: Key, rank: int, place: int) -> None:
        places = self._issued[key]
        places[rank] = max(places.get(rank, place), place)

    def issued(self, rank: int, key: Key) -> int | None:
        """Return the last place of the group that a rank has issued; 0 none yet, None if nothing is known."""
        return self.all_issued(key).get(rank, 0) if rank in self.ranks else None

    def all_issued(self, key: Key) -> Mapping[int, int]:
        """Return the last place of the group that each rank has issued; without ranks that issued none."""
        return self._issued.get(key, {})

    def at(self, key: Key, place: int) -> Mapping[int, FlightCall]:
        """Return the collective that each rank issued at a place of a group, by rank."""
        return self._at.get((key, place), {})

    def places(self, key: Key) -> list[int]:
        """Return the places of a group at which some rank issued a collective, ascending."""
        if key not in self._places:
            self._places[key] = sorted(place for (of, place) in self._at if of == key)
        return self._places[key]

    def absent(self) -> tuple[int, ...]:
        """Return ranks of the job's groups of which nothing was read."""
        named = {rank for ranks in self.members.values() for rank in ranks}
        sizes = [rank.flight.world_size for rank in self.ranks.values() if rank.flight.world_size]
        if sizes:
            named |= set(range(min(max(sizes), _MOST_RANKS)))
        return tuple(sorted(named - self.ranks.keys()))


def _one_each(flights: Iterable[RankFlight]) -> dict[int, RankFlight]:
    """Return one flight for each rank: our own file before a dump, a dump before a log; the newest first."""
    order = {"flight": 2, "recorder": 1, "log": 0}
    by_rank: dict[int, list[RankFlight]] = defaultdict(list)
    for each in flights:
        by_rank[each.rank].append(each)
    return {
        rank: max(several, key=lambda each: (order[each.source], each.heartbeat_ns or 0))
        for rank, several in by_rank.items()
    }


def _has_ended(flight: RankFlight) -> bool:
    return flight.life == "dead" or flight.state in ("closed", "failed", "left")


def _lost_peer(flight: RankFlight) -> bool:
    last = flight.calls[-1] if flight.calls else None
    # One may be killed before its audit has noted the exception.
    ended = flight.state == "failed" or (
        flight.state == "open" and flight.life == "dead" and flight.blocked is None
    )
    return ended and last is not None and flight.raised == last.number


def _is_victim(flight: RankFlight) -> bool:
    """Whether the end of another rank, or a collective with it, ended this one."""
    return _lost_peer(flight) or (flight.state == "failed" and bool(_LOST.search(flight.error or "")))


def _rank(
    flight: RankFlight, now_ns: int, newest_ns: int | None, newest_here_ns: int | None, *, died_first: bool
) -> Rank:
    """`newest_ns`: the newest heartbeat of all ranks; `newest_here_ns`: that of the rank's host."""
    beat = flight.heartbeat_ns
    age = None if beat is None or newest_ns is None else newest_ns - beat
    late_ns = max(_LATE_BEATS * (flight.beat_every_ns or 0), _LATE_LEAST_NS)
    # Folders of hosts are copied one after the other, and clocks differ: only one host's beats compare.
    behind_ns = None if beat is None or newest_here_ns is None else newest_here_ns - beat
    stopped_beating = flight.beat_every_ns is not None and behind_ns is not None and behind_ns > late_ns
    lives = flight.life in ("alive", "stopped")
    standing: Standing = "unknown"
    if flight.state in ("closed", "failed", "left"):
        standing = flight.state
    elif flight.life in ("dead", "unknown") and (stopped_beating or (died_first and flight.life == "dead")):
        standing = "dead"
    elif flight.life == "stopped":
        standing = "stopped"
    elif flight.blocked is not None or _in_engine(flight):
        standing = "waits"
    elif flight.source == "flight":
        standing = "runs" if flight.waits_block or not flight.calls else "waits"
    until = now_ns if lives else beat
    # An audit that ends stops its heartbeat itself: that is no silence.
    silent = stopped_beating and flight.state in ("open", "unknown")
    return Rank(flight, standing, until, age, behind_ns if silent else None)


def _in_engine(flight: RankFlight) -> bool:
    return any(name in frame for frame in flight.frames[:3] for name in _ENGINE)


def numbers(ranks: Sequence[int], most: int = 8) -> str:
    """Return `rank 3`, `ranks 0, 2 and 5`, or `ranks 0-7` in words."""
    listed = sorted(set(ranks))
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if len(listed) > 2 and listed[-1] - listed[0] == len(listed) - 1:
        return f"ranks {listed[0]}-{listed[-1]}"
    if len(listed) > most:
        return f"ranks {', '.join(map(str, listed[:most]))} and {len(listed) - most} more"
    return f"ranks {', '.join(map(str, listed[:-1]))} and {listed[-1]}"
