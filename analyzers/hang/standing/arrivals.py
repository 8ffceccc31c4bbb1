"""When all ranks of a group had come to a collective in which one of them ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from shardtoll.ledger.records.flight import RankFlight

_Collective = tuple[str, int, tuple[int, ...]]


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
