"""Every algorithm of a collective, run on simulated ranks: what it must send, whoever models it.

Each function runs one algorithm, holds its result to what the collective promises, and returns the
traffic. Written from the algorithms' descriptions: Thakur, Rabenseifner, Gropp (2005) for rings,
recursive doubling and halving, Bruck; Sanders, Speck, Träff (2009) for two trees; NCCL's documentation and
its 2.19-2.30 sources for how rings, trees, switches (NVLS), CollNet and PAT are laid over hosts.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from tests.unit.analyzers.simulated import Machine, Message, Traffic, World


def _rings(world: World) -> list[list[int]]:
    """Return one ring for each card of a host: ring c leaves every host over its c-th card."""
    g = world.per_node
    return [[rank for node in range(world.nodes) for rank in world.on(node, c + 1)] for c in range(g)]


def _turn(machine: Machine, rings: list[list[int]], offset: int) -> None:
    """Go once around every ring: in round t the rank at place p hands on piece p - t + offset."""
    n = machine.world.ranks
    for t in range(n - 1):
        machine.round(
            ((order[p],), (order[(p + 1) % n],), (c, (p - t + offset) % n))
            for c, order in enumerate(rings)
            for p in range(n)
        )


def ring_all_reduce(world: World) -> Traffic:
    machine, rings, n = Machine(world), _rings(world), world.ranks
    pieces = [(c, i) for c in range(len(rings)) for i in range(n)]
    for piece in pieces:
        for rank in range(n):
            machine.give(rank, piece, Fraction(1, len(pieces)))
    _turn(machine, rings, 0)
    _turn(machine, rings, 1)
    machine.all_have(range(n), pieces, range(n))
    return machine.traffic(machine.rounds)


def ring_reduce_scatter(world: World) -> Traffic:
    machine, rings, n = Machine(world), _rings(world), world.ranks
    for c in range(len(rings)):
        for i in range(n):
            for rank in range(n):
                machine.give(rank, (c, i), Fraction(1, n * len(rings)))
    _turn(machine, rings, -1)
    for c, order in enumerate(rings):
        for p, rank in enumerate(order):
            machine.all_have([rank], [(c, p)], range(n))
    return machine.traffic(machine.rounds)


def ring_all_gather(world: World) -> Traffic:
    machine, rings, n = Machine(world), _rings(world), world.ranks
    for c, order in enumerate(rings):
        for p, rank in enumerate(order):
            machine.give(rank, (c, p), Fraction(1, n * len(rings)))
    _turn(machine, rings, 0)
    for c, order in enumerate(rings):
        for p, rank in enumerate(order):
            machine.all_have(range(n), [(c, p)], [rank])
    return machine.traffic(machine.rounds)


def _from(order: list[int], root: int) -> list[int]:
    at = order.index(root)
    return order[at:] + order[:at]


def chain_broadcast(world: World, chunks: int = 1, root: int = 0) -> Traffic:
    """The ring from the root on, in pieces that follow each other: n - 2 + chunks rounds."""
    machine, n = Machine(world), world.ranks
    chains = [_from(order, root) for order in _rings(world)]
    pieces = [(c, i) for c in range(len(chains)) for i in range(chunks)]
    for piece in pieces:
        machine.give(root, piece, Fraction(1, len(pieces)))
    for t in range(n - 2 + chunks if n > 1 else 0):
        machine.round(
            ((chain[h],), (chain[h + 1],), (c, t - h))
            for c, chain in enumerate(chains)
            for h in range(n - 1)
            if 0 <= t - h < chunks
        )
    machine.all_have(range(n), pieces, [root])
    return machine.traffic(machine.rounds)


def chain_reduce(world: World, chunks: int = 1, root: int = 0) -> Traffic:
    """The same chain the other way round: it ends in the root."""
    machine, n = Machine(world), world.ranks
    chains = [[*_from(order, root)[1:], root] for order in _rings(world)]
    pieces = [(c, i) for c in range(len(chains)) for i in range(chunks)]
    for piece in pieces:
        for rank in range(n):
            machine.give(rank, piece, Fraction(1, len(pieces)))
    for t in range(n - 2 + chunks if n > 1 else 0):
        machine.round(
            ((chain[h],), (chain[h + 1],), (c, t - h))
            for c, chain in enumerate(chains)
            for h in range(n - 1)
            if 0 <= t - h < chunks
        )
    machine.all_have([root], pieces, range(n))
    return machine.traffic(machine.rounds)


def _halves(n: int) -> list[int]:
    """Return the powers of two below n, the largest first."""
    return [1 << bit for bit in reversed(range((n - 1).bit_length()))]


def binomial_broadcast(world: World) -> Traffic:
    """All that have the message hand it on, the farthest first: rank r to r + n/2, r + n/4, ..."""
    machine, n = Machine(world), world.ranks
    machine.give(0, "all", Fraction(1))
    for distance in _halves(n):
        machine.round(((r,), (r + distance,), "all") for r in range(0, n - distance, 2 * distance))
    machine.all_have(range(n), ["all"], [0])
    return machine.traffic(machine.rounds)


def binomial_reduce(world: World) -> Traffic:
    machine, n = Machine(world), world.ranks
    for rank in range(n):
        machine.give(rank, "all", Fraction(1))
    for distance in reversed(_halves(n)):
        machine.round(((r + distance,), (r,), "all") for r in range(0, n - distance, 2 * distance))
    machine.all_have([0], ["all"], range(n))
    return machine.traffic(machine.rounds)


def two_trees(nodes: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return child -> parent of two trees over hosts, of which no host is inside (with two children) in both.

    The first is the in-order binary tree over 1 .. nodes-1 below host 0; the second is its mirror image, or
    for an odd number the same tree one host on.
    """
    first = {}
    for host in range(1, nodes):
        bit = host & -host
        above = (host ^ bit) | (bit << 1)
        first[host] = above if above < nodes else host ^ bit
    turned = {host: nodes - 1 - host if nodes % 2 == 0 else (host + 1) % nodes for host in range(nodes)}
    return first, {turned[child]: turned[parent] for child, parent in first.items()}


def depth(tree: dict[int, int]) -> int:
    """Return the edges between the root and the host farthest from it."""
    return max((1 + depth_of(tree, parent) for parent in tree.values()), default=0)


def depth_of(tree: dict[int, int], host: int) -> int:
    return 0 if host not in tree else 1 + depth_of(tree, tree[host])


def _up_and_down(machine: Machine, tree: dict[int, int], heads: list[int], piece: object) -> None:
    """Add a piece up a tree over hosts, from head to head, and hand the sum down again."""
    hosts = sorted(range(machine.world.nodes), key=lambda host: depth_of(tree, host))
    for host in reversed(hosts):
        if host in tree:
            machine.pass_on(heads[host], heads[tree[host]], piece)
    for host in hosts:
        if host in tree:
            machine.pass_on(heads[tree[host]], heads[host], piece)


def double_tree_all_reduce(world: World) -> Traffic:
    """A chain inside each host, two trees over hosts, each with half the message; a pair for each card."""
    machine, n, g, k = Machine(world), world.ranks, world.per_node, world.nodes
    pieces = [(t, c) for t in range(2) for c in range(g)]
    for piece in pieces:
        for rank in range(n):
            machine.give(rank, piece, Fraction(1, len(pieces)))
    for t, tree in enumerate(two_trees(k)):
        for c in range(g):
            chains = [world.on(host, c) for host in range(k)]
            for chain in chains:
                for high, low in reversed(list(pairwise(chain))):
                    machine.pass_on(low, high, (t, c))
            _up_and_down(machine, tree, [chain[0] for chain in chains], (t, c))
            for chain in chains:
                for high, low in pairwise(chain):
                    machine.pass_on(high, low, (t, c))
    machine.all_have(range(n), pieces, range(n))
    return machine.traffic(machine.hops)


def _read_sums(world: World, shards: int) -> list[Message]:
    """Each rank reads the sum of its shard from its host's switch, to which all there send their part."""
    g = world.per_node
    return [
        (tuple(world.on(host)), (rank,), (t, rank % g))
        for host in range(world.nodes)
        for rank in world.on(host)
        for t in range(shards)
    ]


def _write_copies(world: World, shards: int) -> list[Message]:
    return [(targets, sources, piece) for sources, targets, piece in _read_sums(world, shards)]


def nvls_all_reduce(world: World) -> Traffic:
    """One domain: the switch adds what a rank reads and copies what it writes: one step."""
    assert world.nodes == 1
    return nvls_tree_all_reduce(world)


def nvls_tree_all_reduce(world: World) -> Traffic:
    """A switch in each host, two trees over hosts for each card's shard; a pass of the switch is one step."""
    machine, n, g = Machine(world), world.ranks, world.per_node
    pieces = [(t, c) for t in range(2) for c in range(g)]
    for piece in pieces:
        for rank in range(n):
            machine.give(rank, piece, Fraction(1, len(pieces)))
    machine.round(_read_sums(world, 2))
    for t, tree in enumerate(two_trees(world.nodes)):
        for c in range(g):
            _up_and_down(machine, tree, [world.on(host, c)[0] for host in range(world.nodes)], (t, c))
    machine.round(_write_copies(world, 2))
    machine.all_have(range(n), pieces, range(n))
    return machine.traffic(machine.hops - 1)


def nvls_reduce_scatter(world: World) -> Traffic:
    machine, n = Machine(world), world.ranks
    assert world.nodes == 1
    for c in range(n):
        for rank in range(n):
            machine.give(rank, (0, c), Fraction(1, n))
    machine.round(_read_sums(world, 1))
    for rank in range(n):
        machine.all_have([rank], [(0, rank)], range(n))
    return machine.traffic(machine.rounds)


def nvls_all_gather(world: World) -> Traffic:
    machine, n = Machine(world), world.ranks
    assert world.nodes == 1
    for rank in range(n):
        machine.give(rank, (0, rank), Fraction(1, n))
    machine.round(_write_copies(world, 1))
    for rank in range(n):
        machine.all_have(range(n), [(0, rank)], [rank])
    return machine.traffic(machine.rounds)


def _through_network(world: World, shards: int) -> list[Message]:
    """The heads of all hosts send a shard to the network's switches and get the sum."""
    heads = [tuple(world.on(host, c)[0] for host in range(world.nodes)) for c in range(shards)]
    return [(heads[c], tuple(reversed(heads[c])), c) for c in range(shards)]


def collnet_direct_all_reduce(world: World) -> Traffic:
    """In a host each rank gets its shard from all others at once; the network adds; and back."""
    machine, n, g = Machine(world), world.ranks, world.per_node
    assert world.nodes > 1
    for c in range(g):
        for rank in range(n):
            machine.give(rank, c, Fraction(1, g))
    pairs = [(a, b) for host in range(world.nodes) for a in world.on(host) for b in world.on(host) if a != b]
    machine.round(((a,), (b,), b % g) for a, b in pairs)
    machine.round(_through_network(world, g))
    machine.round(((a,), (b,), a % g) for a, b in pairs)
    machine.all_have(range(n), range(g), range(n))
    return machine.traffic(machine.rounds)


def collnet_chain_all_reduce(world: World) -> Traffic:
    """In a host a chain for each card's shard, up to the rank with that card and down again."""
    machine, n, g = Machine(world), world.ranks, world.per_node
    assert world.nodes > 1
    for c in range(g):
        for rank in range(n):
            machine.give(rank, c, Fraction(1, g))
    chains = [(c, world.on(host, c)) for c in range(g) for host in range(world.nodes)]
    for step in range(g - 1, 0, -1):
        machine.round(((chain[step],), (chain[step - 1],), c) for c, chain in chains)
    machine.round(_through_network(world, g))
    for step in range(g - 1):
        machine.round(((chain[step],), (chain[step + 1],), c) for c, chain in chains)
    machine.all_have(range(n), range(g), range(n))
    return machine.traffic(machine.rounds)


def _folded(machine: Machine, pieces: list[object]) -> list[int]:
    """Let ranks beyond the largest power of two add theirs to another; return the ranks that go on."""
    n = machine.world.ranks
    power = 1 << (n.bit_length() - 1)
    machine.round(((rank,), (rank - power,), piece) for rank in range(power, n) for piece in pieces)
    return list(range(power))


def _unfolded(machine: Machine, pieces: list[object]) -> None:
    n = machine.world.ranks
    power = 1 << (n.bit_length() - 1)
    machine.round(((rank - power,), (rank,), piece) for rank in range(power, n) for piece in pieces)


def recursive_doubling_all_reduce(world: World) -> Traffic:
    machine, n = Machine(world), world.ranks
    for rank in range(n):
        machine.give(rank, "all", Fraction(1))
    ranks = _folded(machine, ["all"])
    distance = 1
    while distance < len(ranks):
        machine.round(((rank,), (rank ^ distance,), "all") for rank in ranks)
        distance *= 2
    _unfolded(machine, ["all"])
    machine.all_have(range(n), ["all"], range(n))
    return machine.traffic(machine.rounds)


def halving_doubling_all_reduce(world: World) -> Traffic:
    """Rabenseifner: halve what is added with each neighbour, the nearest first, and double it again.

    Nearest first, as MPICH does, keeps the large halves inside hosts.
    """
    machine, n = Machine(world), world.ranks
    power = 1 << (n.bit_length() - 1)
    pieces: list[object] = list(range(power))
    for rank in range(n):
        for piece in pieces:
            machine.give(rank, piece, Fraction(1, power))
    ranks = _folded(machine, pieces)
    distances = [1 << bit for bit in range(power.bit_length() - 1)]

    def kept(rank: int, distance: int) -> list[int]:
        """Return the pieces that are left to the rank after the exchange at this distance."""
        return [piece for piece in range(power) if (piece ^ rank) % (2 * distance) == 0]

    for distance in distances:
        machine.round(
            ((rank,), (rank ^ distance,), piece)
            for rank in ranks
            for piece in kept(rank ^ distance, distance)
        )
    for distance in reversed(distances):
        machine.round(
            ((rank,), (rank ^ distance,), piece) for rank in ranks for piece in kept(rank, distance)
        )
    _unfolded(machine, pieces)
    machine.all_have(range(n), pieces, range(n))
    return machine.traffic(machine.rounds)


def bruck_all_gather(world: World) -> Traffic:
    """In each round a rank sends all it has, or what is lacking, twice as far as before."""
    machine, n = Machine(world), world.ranks
    for rank in range(n):
        machine.give(rank, rank, Fraction(1, n))
    distance = 1
    while distance < n:
        count = min(distance, n - distance)
        machine.round(
            ((rank,), ((rank - distance) % n,), (rank + i) % n) for rank in range(n) for i in range(count)
        )
        distance *= 2
    for rank in range(n):
        machine.all_have(range(n), [rank], [rank])
    return machine.traffic(machine.rounds)


def _pat_edges(n: int) -> list[list[tuple[int, int]]]:
    """Return, phase by phase, the edges of a binomial tree whose far edges come first, as offsets."""
    return [[(x, x + d) for x in range(0, n, 2 * d) if x + d < n] for d in _halves(n)]


def pat_all_gather(world: World) -> Traffic:
    """Parallel trees: one rooted in each rank, all going on at once, messages to one rank sent as one."""
    machine, n = Machine(world), world.ranks
    for rank in range(n):
        machine.give(rank, rank, Fraction(1, n))
    for edges in _pat_edges(n):
        machine.round((((o + x) % n,), ((o + y) % n,), o) for o in range(n) for x, y in edges)
    for rank in range(n):
        machine.all_have(range(n), [rank], [rank])
    return machine.traffic(machine.rounds)


def pat_reduce_scatter(world: World) -> Traffic:
    machine, n = Machine(world), world.ranks
    for rank in range(n):
        for piece in range(n):
            machine.give(rank, piece, Fraction(1, n))
    for edges in reversed(_pat_edges(n)):
        machine.round((((o + y) % n,), ((o + x) % n,), o) for o in range(n) for x, y in edges)
    for rank in range(n):
        machine.all_have([rank], [rank], range(n))
    return machine.traffic(machine.rounds)


def _lap(machine: Machine, order: list[int], pieces: list[list[object]], offset: int) -> list[list[Message]]:
    """Return the rounds of one turn around a small ring: pieces[i] are what place i answers for."""
    m = len(order)
    return [
        [
            ((order[p],), (order[(p + 1) % m],), piece)
            for p in range(m)
            for piece in pieces[(p - t + offset) % m]
        ]
        for t in range(m - 1)
    ]


def _laps(machine: Machine, laps: list[list[list[Message]]]) -> None:
    for together in zip(*laps, strict=True):
        machine.round(message for one in together for message in one)


def _hosts(machine: Machine, offset: int) -> None:
    """Every host's ring at once; local rank c answers for all pieces (c, ...)."""
    world = machine.world
    g, k = world.per_node, world.nodes
    pieces: list[list[object]] = [[(c, h) for h in range(k)] for c in range(g)]
    _laps(machine, [_lap(machine, world.on(host), pieces, offset) for host in range(k)])


def _rails(machine: Machine, offset: int) -> None:
    """The ranks with the same place in their hosts, in rings over the network; host h answers for (c, h)."""
    world = machine.world
    g, k = world.per_node, world.nodes
    _laps(
        machine,
        [
            _lap(machine, [world.on(host, c)[0] for host in range(k)], [[(c, h)] for h in range(k)], offset)
            for c in range(g)
        ],
    )


def two_level_all_reduce(world: World) -> Traffic:
    """Reduce-scatter in each host, all_reduce of each shard over hosts, all_gather in each host."""
    machine, n = Machine(world), world.ranks
    pieces = [(c, h) for c in range(world.per_node) for h in range(world.nodes)]
    for piece in pieces:
        for rank in range(n):
            machine.give(rank, piece, Fraction(1, n))
    _hosts(machine, -1)
    _rails(machine, -1)
    _rails(machine, 0)
    _hosts(machine, 0)
    machine.all_have(range(n), pieces, range(n))
    return machine.traffic(machine.rounds)


def two_level_all_gather(world: World) -> Traffic:
    machine, n, g = Machine(world), world.ranks, world.per_node
    for rank in range(n):
        machine.give(rank, (rank % g, rank // g), Fraction(1, n))
    _rails(machine, 0)
    _hosts(machine, 0)
    for rank in range(n):
        machine.all_have(range(n), [(rank % g, rank // g)], [rank])
    return machine.traffic(machine.rounds)


def two_level_reduce_scatter(world: World) -> Traffic:
    machine, n, g = Machine(world), world.ranks, world.per_node
    for rank in range(n):
        for piece in [(c, h) for c in range(g) for h in range(world.nodes)]:
            machine.give(rank, piece, Fraction(1, n))
    _hosts(machine, -1)
    _rails(machine, -1)
    for rank in range(n):
        machine.all_have([rank], [(rank % g, rank // g)], range(n))
    return machine.traffic(machine.rounds)


def pairwise_all_to_all(world: World) -> Traffic:
    """In round r each rank sends its part to the rank r further on."""
    machine, n = Machine(world), world.ranks
    for a in range(n):
        for b in range(n):
            machine.give(a, (a, b), Fraction(1, n))
    for r in range(1, n):
        machine.round(((a,), ((a + r) % n,), (a, (a + r) % n)) for a in range(n))
    for a in range(n):
        for b in range(n):
            machine.all_have([b], [(a, b)], [a])
    return machine.traffic(machine.rounds)


def direct_gather(world: World) -> Traffic:
    machine, n = Machine(world), world.ranks
    for rank in range(n):
        machine.give(rank, rank, Fraction(1, n))
    machine.round(((rank,), (0,), rank) for rank in range(1, n))
    for rank in range(n):
        machine.all_have([0], [rank], [rank])
    return machine.traffic(machine.rounds)


def direct_scatter(world: World) -> Traffic:
    machine, n = Machine(world), world.ranks
    for rank in range(n):
        machine.give(0, rank, Fraction(1, n))
    machine.round(((0,), (rank,), rank) for rank in range(1, n))
    for rank in range(n):
        machine.all_have([rank], [rank], [0])
    return machine.traffic(machine.rounds)


def direct_send(world: World) -> Traffic:
    """The last rank sends to rank 0: within a host of one, out of it of two."""
    machine = Machine(world)
    last = world.ranks - 1
    machine.give(last, "all", Fraction(1))
    machine.round([((last,), (0,), "all")])
    machine.all_have([0], ["all"], [last])
    return machine.traffic(machine.rounds)
