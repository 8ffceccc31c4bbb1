"""Trees.

all_reduce: the double binary tree (Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009). NCCL builds it of a chain inside a host and a tree over hosts. Up and down, it
takes 2[(g-1) + log2 k] hops for k hosts of g ranks (NCCL src/graph/tuning.cc, v2.30). A binomial tree:
broadcast and reduce of libraries without pipelines.
"""

from __future__ import annotations

import math
from fractions import Fraction

from shardtoll.analyzers.roofline.model.candidate import Candidate
from shardtoll.analyzers.roofline.model.machine import Machine
from shardtoll.analyzers.roofline.model.ring import CHAINED


def most_of_a_host(nodes: int) -> float:
    """Return how many times the message the busiest host of a double tree sends, up and down together.

    A host inside one of the trees has a parent and two children there and is a leaf of the other. With half
    of the message in each tree it sends 1/2 + 2/2 + 1/2. With two hosts each is root of one tree and leaf of
    the other: 1/2 + 1/2. With three, none has two children: 1/2 + 1/2 in one tree, 1/2 in the other.
    """
    return {2: 1.0, 3: 1.5}.get(nodes, 2.0)


def end_of_the_trees(nodes: int) -> float:
    """Return the same of the first and the last host: never inside with two children.

    If the number of hosts is even, each is a leaf of one tree and root of the other: 1/2 + 1/2. If it is odd,
    each has a parent and one child in one tree. In the other it is a leaf, or the root with one child: 1 +
    1/2.
    """
    return 1.0 if nodes % 2 == 0 else 1.5


def through_trees_ns_per_byte(machine: Machine) -> float:
    """Return ns a byte of the busiest host's cards in a double tree over hosts.

    A host with fewer ranks than all others is the rest of a job, its last one. If there are several, they
    need not stand at the ends.
    """
    placement = machine.at
    full = most_of_a_host(placement.nodes) / machine.net_gbps("tree")
    if placement.fewest_ranks is None:
        return full
    alone = placement.ranks == (placement.nodes - 1) * placement.ranks_per_node + placement.fewest_ranks
    share = end_of_the_trees(placement.nodes) if alone else most_of_a_host(placement.nodes)
    return max(full, share / machine.through_gbps("tree"))


def tree(machine: Machine, op: str) -> list[Candidate]:
    """Return double binary trees for an all_reduce, one a protocol.

    Means over ranks: each of the tree's edges carries the message up and down.
    """
    if op != "all_reduce":
        return []
    placement = machine.at
    k, g = placement.nodes, placement.ranks_per_node
    ns_per_byte = 0.0 if g == 1 else 2 / machine.near_gbps("tree")
    if k > 1:
        ns_per_byte = max(ns_per_byte, through_trees_ns_per_byte(machine))
    near_hops, net_hops = 2 * (g - 1), 2 * math.ceil(math.log2(k))
    return [
        Candidate(
            algorithm="tree",
            protocol=protocol,
            steps=near_hops + net_hops,
            near_share=Fraction(2 * (g - 1), g),
            net_share=Fraction(2 * (k - 1), k * g),
            latency_ns=machine.latency_ns("tree", protocol, near_hops, 2 * math.log2(k)),
            ns_per_byte=ns_per_byte / machine.protocol_share(protocol),
            ramp=machine.ramp("tree", protocol),
            overrated_ns=machine.overrated_ns("tree", protocol, near_hops, 2 * math.log2(k)),
        )
        for protocol in machine.library.protocols
    ]


def binomial(machine: Machine, op: str) -> list[Candidate]:
    """Return the binomial tree of a broadcast or reduce: ceil(log2 n) rounds, each of the whole message."""
    if op not in CHAINED:
        return []
    placement = machine.at
    n, k, g = placement.ranks, placement.nodes, placement.ranks_per_node
    near_rounds = math.ceil(math.log2(g))
    net_rounds = 0 if k == 1 else math.ceil(math.log2(n)) - near_rounds
    ns_per_byte = 0.0 if g == 1 else near_rounds / machine.near_gbps("direct")
    if k > 1:
        ns_per_byte += net_rounds / machine.through_gbps("direct")
    net = Fraction(k - 1, n)
    return [
        Candidate(
            algorithm="binomial",
            protocol=protocol,
            steps=near_rounds + net_rounds,
            near_share=Fraction(n - 1, n) - net,
            net_share=net,
            latency_ns=machine.latency_ns("direct", protocol, near_rounds, net_rounds),
            ns_per_byte=ns_per_byte / machine.protocol_share(protocol),
            ramp=machine.ramp("direct", protocol),
            wire_share=Fraction(1),
        )
        for protocol in machine.library.protocols
    ]
