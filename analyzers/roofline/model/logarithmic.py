"""Algorithms whose number of steps grows with the logarithm of the ranks.

Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). PAT:
NCCL's all_gather and reduce_scatter with one rank a host (src/graph/tuning.cc, v2.30).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from shardtoll.analyzers.roofline.model.candidate import NOTHING, Candidate
from shardtoll.analyzers.roofline.model.machine import Machine


def _rounds(ranks: int) -> int:
    return math.ceil(math.log2(ranks))


def _near_and_net_rounds(machine: Machine) -> tuple[int, int]:
    """Return the rounds between ranks of one host, and those between hosts."""
    placement = machine.at
    near = _rounds(placement.ranks_per_node)
    return near, _rounds(placement.ranks) - near if placement.spans_nodes else 0


def _far(machine: Machine, sent: Callable[[int], Fraction]) -> float:
    """Return ns a byte on the busiest host's cards; `sent`: what a host of so many ranks sends, or receives.

    A host with fewer ranks has fewer cards, and each of its ranks more to get from elsewhere.
    """
    placement = machine.at
    if not placement.spans_nodes:
        return 0.0
    full = float(sent(placement.ranks_per_node)) / machine.net_gbps("ring")
    if placement.fewest_ranks is None:
        return full
    return max(full, float(sent(placement.fewest_ranks)) / machine.through_gbps("ring"))


def _candidate(
    machine: Machine,
    algorithm: str,
    rounds: tuple[int, int],
    shares: tuple[Fraction, Fraction],
    sent: Callable[[int], Fraction],
) -> Candidate:
    """`shares`: what a rank sends to its host's ranks and to others; `sent`: see `_far`."""
    near_rounds, net_rounds = rounds
    near_ns_per_byte = float(shares[0]) / machine.near_gbps("ring") if shares[0] else 0.0
    return Candidate(
        algorithm=algorithm,
        protocol="",
        steps=near_rounds + net_rounds,
        near_share=shares[0],
        net_share=shares[1],
        latency_ns=machine.latency_ns("direct", "", near_rounds, net_rounds),
        ns_per_byte=near_ns_per_byte + _far(machine, sent),
        ramp=machine.ramp("direct", ""),
    )


def recursive_doubling(machine: Machine, op: str) -> list[Candidate]:
    """Return an all_reduce of ceil(log2 n) exchanges of the whole message between ever farther ranks."""
    if op != "all_reduce":
        return []
    rounds = _near_and_net_rounds(machine)
    near, net = map(Fraction, rounds)
    return [_candidate(machine, "recursive_doubling", rounds, (near, net), lambda g: g * net)]


def halving_doubling(machine: Machine, op: str) -> list[Candidate]:
    """Return Rabenseifner's all_reduce: halves, quarters, ... exchanged and added, then gathered back.

    2(n-1)/n S bytes per rank; the larger exchanges are between ranks of one host.
    """
    if op != "all_reduce":
        return []
    placement, (near_rounds, net_rounds) = machine.at, _near_and_net_rounds(machine)
    g = placement.ranks_per_node
    near = Fraction(2 * (g - 1), g)
    net = Fraction(2 * (placement.ranks - 1), placement.ranks) - near if placement.spans_nodes else NOTHING
    rounds = 2 * near_rounds, 2 * net_rounds
    return [
        _candidate(
            machine, "halving_doubling", rounds, (near, net), lambda g: 2 - Fraction(2 * g, placement.ranks)
        )
    ]


def bruck(machine: Machine, op: str) -> list[Candidate]:
    """Return Bruck's all_gather: ceil(log2 n) rounds of doubling size, (n-1)/n S bytes per rank."""
    if op != "all_gather":
        return []
    placement = machine.at
    g, n = placement.ranks_per_node, placement.ranks
    near = Fraction(g - 1, n)
    net = Fraction(n - g, n) if placement.spans_nodes else NOTHING
    rounds = _near_and_net_rounds(machine)
    return [_candidate(machine, "bruck", rounds, (near, net), lambda g: Fraction(g * (n - g), n))]


def pat(machine: Machine, op: str) -> list[Candidate]:
    """Return NCCL's parallel aggregated trees, for gathers and reduce-scatters with one rank a host."""
    placement = machine.at
    if (
        op not in ("all_gather", "reduce_scatter")
        or placement.ranks_per_node > 1
        or not placement.spans_nodes
    ):
        return []
    net = Fraction(placement.ranks - 1, placement.ranks)
    return [
        Candidate(
            algorithm="pat",
            protocol="Simple",
            steps=_rounds(placement.ranks),
            near_share=NOTHING,
            net_share=net,
            latency_ns=machine.latency_ns("pat", "Simple", placement.ranks, _rounds(placement.ranks)),
            ns_per_byte=float(net) / machine.net_gbps("pat"),
            ramp=machine.ramp("pat", "Simple"),
        )
    ]
