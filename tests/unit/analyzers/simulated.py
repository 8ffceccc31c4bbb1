"""A machine of simulated ranks that pass real pieces of a message on and count what they send.

A piece is a part of the message. A rank holds of a piece a set of contributors: whose values are in
the sum it has. A message hands that set on; sets that overlap without one holding the other would
count a value twice, which is an error. All sizes are exact fractions of S, the message bytes in
nccl-tests' sense. Nothing here is taken from the cost model: the model is held to it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

Piece = Hashable
Message = tuple[tuple[int, ...], tuple[int, ...], Piece]
"""Senders, receivers, piece. More of either: a switch adds up or copies; each sends or gets it once."""


@dataclass(frozen=True)
class World:
    """`nodes` hosts of `per_node` ranks each; ranks are numbered host by host."""

    nodes: int
    per_node: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def node(self, rank: int) -> int:
        return rank // self.per_node

    def on(self, node: int, first: int = 0) -> list[int]:
        """Return the ranks of a host as a chain that begins with its `first`-th."""
        g = self.per_node
        return [node * g + (first + step) % g for step in range(g)]


@dataclass(frozen=True)
class Traffic:
    """What one algorithm took: `near` and `net` are shares of S each rank sent within and out of its host."""

    steps: int
    near: tuple[Fraction, ...]
    net: tuple[Fraction, ...]
    near_in: tuple[Fraction, ...]
    net_in: tuple[Fraction, ...]

    @property
    def sent(self) -> tuple[Fraction, ...]:
        return tuple(near + net for near, net in zip(self.near, self.net, strict=True))

    @property
    def most(self) -> Fraction:
        """What the busiest rank sends in all."""
        return max(self.sent)


class Machine:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rounds = 0
        self._share: dict[Piece, Fraction] = {}
        self._held: dict[tuple[int, Piece], tuple[frozenset[int], int]] = {}
        self._near, self._net, self._near_in, self._net_in = ([Fraction()] * world.ranks for _ in range(4))

    def give(self, rank: int, piece: Piece, share: Fraction) -> None:
        """Let the rank hold its own values of a piece that is `share` of S."""
        assert self._share.setdefault(piece, share) == share
        self._held[rank, piece] = (frozenset([rank]), 0)

    def has(self, rank: int, piece: Piece) -> frozenset[int]:
        return self._held.get((rank, piece), (frozenset(), 0))[0]

    def all_have(self, ranks: Iterable[int], pieces: Iterable[Piece], contributors: Iterable[int]) -> None:
        """Hold the result of a collective to its definition."""
        wanted, pieces = frozenset(contributors), list(pieces)
        assert pieces
        for rank in ranks:
            for piece in pieces:
                assert self.has(rank, piece) == wanted, (rank, piece)

    def round(self, messages: Iterable[Message]) -> None:
        """Pass messages on at once: each carries what its senders held before the round."""
        arriving = list(self._read(messages))
        self.rounds += bool(arriving)
        for targets, piece, values, hops in arriving:
            for target in targets:
                own = self._held.get((target, piece), (frozenset(), 0))
                if own[0] <= values:  # a copy, which loses nothing
                    self._held[target, piece] = (values, hops)
                else:
                    assert not own[0] & values, f"rank {target} would count a value of {piece} twice"
                    self._held[target, piece] = (own[0] | values, max(own[1], hops))

    def pass_on(self, source: int, target: int, piece: Piece) -> None:
        """Pass one message on, as soon as its sender has it: for algorithms that keep no rounds."""
        self.round([((source,), (target,), piece)])

    def _read(
        self, messages: Iterable[Message]
    ) -> Iterator[tuple[tuple[int, ...], Piece, frozenset[int], int]]:
        for sources, targets, piece in messages:
            assert sources != targets
            parts = [self._held[source, piece] for source in sources]
            values = frozenset().union(*(part for part, _ in parts))
            assert len(values) == sum(len(part) for part, _ in parts), "a switch would count a value twice"
            self._count(sources, targets, self._share[piece])
            yield targets, piece, values, 1 + max(hops for _, hops in parts)

    def _count(self, sources: tuple[int, ...], targets: tuple[int, ...], share: Fraction) -> None:
        within = len({self.world.node(rank) for rank in (*sources, *targets)}) == 1
        sent, received = (self._near, self._near_in) if within else (self._net, self._net_in)
        for source in sources:
            sent[source] += share
        for target in targets:
            received[target] += share

    @property
    def hops(self) -> int:
        """The longest row of messages of which each had to wait for the one before."""
        return max((hops for _, hops in self._held.values()), default=0)

    def traffic(self, steps: int) -> Traffic:
        return Traffic(steps, *map(tuple, (self._near, self._net, self._near_in, self._net_in)))
