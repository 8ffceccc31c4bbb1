"""Rings and chains.

Formulas: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005).
NCCL's tuning model (src/graph/tuning.cc, v2.30) says which hops cross hosts, and that every card of a host
carries a ring of its own.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from shardtoll.analyzers.roofline.model.candidate import NOTHING, Candidate
from shardtoll.analyzers.roofline.model.machine import Machine

ROUNDS: Final[dict[str, int]] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
CHAINED: Final = ("broadcast", "reduce")


def ring(machine: Machine, op: str) -> list[Candidate]:
    """Return rings over all ranks, one a protocol.

    n ranks on k hosts, S bytes: a gather or reduce-scatter takes n-1 hops, k-1 of them between hosts, and
    (n-1)/n S bytes per rank. An all_reduce takes twice both. With a ring for each of a host's g ranks, a rank
    sends 1/g of its bytes to another host.
    """
    if op not in ROUNDS:
        return []
    placement, rounds = machine.at, ROUNDS[op]
    n, k, g = placement.ranks, placement.nodes, placement.ranks_per_node
    wire = Fraction(rounds * (n - 1), n)
    net = NOTHING if k == 1 else wire / g
    net_hops = rounds * (k - 1)
    near_hops = rounds * (n - 1) - net_hops
    family = "ring" if rounds == 2 else "gather"
    ns_per_byte = float(wire - net) / machine.near_gbps("ring")
    if k > 1:
        special = (f"rails_{machine.net.kind}",) if machine.net is not None and machine.rails else ()
        ns_per_byte = max(ns_per_byte, float(wire) / machine.through_gbps("ring", *special))
    return [
        Candidate(
            algorithm="ring",
            protocol=protocol,
            steps=rounds * (n - 1),
            near_share=wire - net,
            net_share=net,
            latency_ns=machine.latency_ns(family, protocol, near_hops, net_hops),
            ns_per_byte=ns_per_byte / machine.protocol_share(protocol),
            ramp=machine.ramp(family, protocol),
        )
        for protocol in machine.library.protocols
    ]


def chain(machine: Machine, op: str) -> list[Candidate]:
    """Return pipelined chains from the root, or to it: n-1 hops; every rank but the last sends S bytes.

    They are the rings, cut before the root: of a host's g chains each leaves it over another card.
    """
    if op not in CHAINED:
        return []
    placement = machine.at
    n, k, g = placement.ranks, placement.nodes, placement.ranks_per_node
    net = NOTHING if k == 1 else Fraction(n - 1, n * g)
    ns_per_byte = 0.0 if g == 1 else 1 / machine.near_gbps("ring")
    if k > 1:
        ns_per_byte = max(ns_per_byte, 1 / machine.through_gbps("ring"))
    return [
        Candidate(
            algorithm="chain",
            protocol=protocol,
            steps=n - 1,
            near_share=Fraction(n - 1, n) - net,
            net_share=net,
            latency_ns=machine.latency_ns("gather", protocol, n - k, k - 1),
            ns_per_byte=ns_per_byte / machine.protocol_share(protocol),
            ramp=machine.ramp("gather", protocol),
            wire_share=Fraction(1),
        )
        for protocol in machine.library.protocols
    ]
