"""One rank of a job: what it is in, how long it has stood still, and whether it lives."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from shardtoll.analyzers.hang.standing.unseen import in_engine
from shardtoll.analyzers.hang.standing.victims import (
    gave_up,
    lost_by_words,
    lost_peer,
    lost_unseen,
    timed_out,
)
from shardtoll.ledger.answers.hang import Standing
from shardtoll.ledger.records.flight import FlightCall, RankFlight

_LATE_BEATS: Final = 4
_LATE_LEAST_NS: Final = 2_000_000_000
"""A heartbeat that is older than the newest one of its host by this and by so many beats has stopped."""
_GONE: Final[frozenset[Standing]] = frozenset(("dead", "failed", "closed", "left"))


class Key(tuple[str, tuple[int, ...]]):
    """A group by name and ranks: ranks of one mesh may use one name for several groups."""

    __slots__ = ()

    def __hash__(self) -> int:
        """Return a hash that does not take long for a group of many thousand ranks."""
        name, ranks = self
        return hash((name, len(ranks), ranks[:1], ranks[-1:]))


class Rank(Struct):
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
    sides: dict[tuple[Key, str, int | None, int], FlightCall] = field(default_factory=dict)
    """Sends and receives by direction, other side and place."""
    own_error: bool = False
    """Whether an exception of its own ended it inside a collective."""

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
        return not self.own_error and lost_peer(self.flight)

    @property
    def ended_in_wait(self) -> bool:
        """Whether the loss of a peer, or torch's limit, ended it in a wait, seen or unseen."""
        return self.lost_peer or lost_unseen(self.flight)

    @property
    def is_victim(self) -> bool:
        """Whether it failed because of another rank, as far as its exception says."""
        return self.lost_peer or lost_by_words(self.flight)

    @property
    def timed_out(self) -> bool:
        """Whether it gave its last wait up as torch's own limit was over."""
        return not self.own_error and timed_out(self.flight)

    @property
    def gave_up(self) -> bool:
        """Whether it gave its last collective up itself: by torch's limit, or by code of the user's."""
        return not self.own_error and gave_up(self.flight)

    @property
    def last_step(self) -> int | None:
        """The last step that it is known to have been in; None unknown."""
        steps = [self.flight.step, *(call.step for call in self.flight.calls)]
        return max((step for step in steps if step is not None), default=None)

    @property
    def in_backward(self) -> bool:
        """Whether it stands in autograd's engine, or a call of DDP's, where C++ waits unseen."""
        return in_engine(self.flight)

    @property
    def waits(self) -> bool:
        """Whether it is in a collective, seen or unseen, or in the wait for one."""
        if self.standing not in ("waits", "stopped"):
            return self.ended_in_wait
        return self.flight.blocked is not None or self.in_backward or not self.flight.waits_block

    @property
    def for_ns(self) -> int | None:
        """How long it has waited, or issued nothing; None unknown."""
        if self.flight.waited_ns is not None:
            return self.flight.waited_ns
        if self.ended_in_wait:
            return None
        since = self.flight.blocked_since_ns if self.flight.blocked is not None else self._stood_since_ns
        if since is None or self.until_ns is None:
            return None
        return max(self.until_ns - since, 0)

    @property
    def _stood_since_ns(self) -> int | None:
        """When a rank in no collective of its program moved last, by its last heartbeat if it has died since.

        The end of one rank ends the others' waits, and may kill them before they note why.
        """
        flight = self.flight
        moved_ns, stood_ns, beat_ns = flight.moved_ns, flight.stood_since_ns, flight.heartbeat_ns
        if flight.life != "dead" or moved_ns is None or stood_ns is None or moved_ns <= (beat_ns or moved_ns):
            return moved_ns
        return stood_ns - (flight.beat_every_ns or 0)

    @property
    def waits_since_ns(self) -> int | None:
        """Since when it is in a collective, or was as an exception ended it; None if in none, or unknown."""
        if self.lost_peer:
            return self.flight.raised_since_ns
        if self.ended_in_wait:
            # The exception moved it on through the step's end; one beat before, it had moved last.
            stood_ns = self.flight.stood_since_ns
            return None if stood_ns is None else stood_ns - (self.flight.beat_every_ns or 0)
        if self.flight.blocked is None and self.in_backward:
            # Collectives of C++ there have no time of their own.
            return self.flight.moved_ns
        return self.flight.blocked_since_ns

    @property
    def last_call(self) -> FlightCall | None:
        """The collective it issued last."""
        return self.flight.calls[-1] if self.flight.calls else None


def rank_of(
    flight: RankFlight,
    now_ns: int,
    newest_ns: int | None,
    newest_here_ns: int | None,
    *,
    died_first: bool,
    own_error: bool,
) -> Rank:
    """Return a rank with its standing.

    `newest_ns`: the newest heartbeat of all ranks; `newest_here_ns`: that of the rank's host.
    `died_first`: whether a dead process of the job ended before the others.
    """
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
    elif flight.blocked is not None or in_engine(flight):
        standing = "waits"
    elif flight.source == "flight":
        standing = "runs" if flight.waits_block or not flight.calls else "waits"
    until = now_ns if lives else beat
    # An audit that ends stops its heartbeat itself: that is no silence.
    silent = stopped_beating and flight.state in ("open", "unknown")
    return Rank(flight, standing, until, age, behind_ns if silent else None, own_error=own_error)
