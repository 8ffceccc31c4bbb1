"""The ranks of one job side by side: their groups, and how far each has come in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from shardtoll.analyzers.hang.standing.rank import Key, Rank, rank_of
from shardtoll.analyzers.hang.standing.victims import lost_by_words, lost_peer, own_errors
from shardtoll.ledger.records.flight import FlightCall, RankFlight

DEFAULT_AFTER_NS: Final = 120_000_000_000
SURE_AFTER_NS: Final = 1_000_000_000
"""Ranks that can never go on are called hung after this; files of ranks are not read at one instant."""
_MOST_RANKS: Final = 1 << 17
"""A damaged file could name any number."""


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
        own_ends = own_errors(chosen)
        victims = {number for number, each in chosen.items() if lost_peer(each) or lost_by_words(each)}
        victims -= own_ends
        own = any(each.state == "failed" and number not in victims for number, each in chosen.items())
        self.ranks: dict[int, Rank] = {
            # Its peers noticed its end: it ended before them.
            number: rank_of(
                each,
                now_ns,
                self.newest_ns,
                beats.get(each.host),
                died_first=may_live or (bool(victims) and not own),
                own_error=number in own_ends,
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
        unlisted = {name: tuple(sorted(ranks)) for name, ranks in users.items()}
        keys: dict[Key, Key] = {}
        for number, each in chosen.items():
            for group in each.groups:
                # A log does not say who belongs to a group: at least those that speak of it.
                ranks = group.ranks or unlisted[group.name]
                # One object for each group: equal ones of many ranks take long to compare.
                named = Key((group.name, ranks))
                key = keys.setdefault(named, named)
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
        return self._by_rank.get((rank, name)) or Key((name, ()))

    def _index(self, rank: Rank) -> None:
        for call in rank.flight.calls:
            key = self.key(rank.rank, call.group)
            if call.place is None:
                continue
            if call.is_point_to_point:
                channel = (key, call.op, call.root)
                rank.sides[key, call.op, call.root, call.place] = call
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
        """Return ranks of the job's groups without a file that was read."""
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
