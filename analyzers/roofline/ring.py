"""Latency and bytes of ring, chain and pairwise algorithms.

Formulas: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005); which hops cross hosts, and that every rank of a host brings its own network card to
a multi-ring, follows NCCL's tuning model (src/graph/tuning.cc, v2.30).
"""

from __future__ import annotations

import math
from typing import Final

from shardtoll.analyzers.roofline.fabric import Link
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.analyzers.roofline.terms import Terms

_ROUNDS: Final[dict[str, int]] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
CHAINED: Final = ("broadcast", "reduce")


def ring(op: str, message_bytes: int, at: Placement, intra: Link, inter: Link | None) -> Terms | None:
    """Return the terms of a ring over all ranks; None for an op that has none.

    n ranks, S bytes: n-1 hops and (n-1)/n S bytes a rank for a gather or reduce-scatter, twice
    both for an all_reduce; n-1 hops and S bytes for a broadcast or reduce cut in many pieces.
    """
    n = at.ranks
    if op in _ROUNDS:
        rounds = _ROUNDS[op]
        wire_bytes = math.ceil(rounds * (n - 1) * message_bytes / n)
    elif op in CHAINED:
        rounds, wire_bytes = 1, message_bytes
    else:
        return None
    net_hops = rounds * (at.nodes - 1)
    near_hops = rounds * (n - 1) - net_hops
    near = intra.rates(op)
    latency_ns = intra.base_latency_ns.value + near_hops * near.step_latency_ns.value
    bandwidth_gbps = near.bandwidth_gbps.value
    if at.spans_nodes:
        if inter is None:
            return None
        far = inter.rates(op)
        latency_ns += inter.base_latency_ns.value + net_hops * far.step_latency_ns.value
        # One ring per network card: together the rings leave a host at all cards' rate.
        over_net_gbps = at.ranks_per_node * far.bandwidth_gbps.value
        bandwidth_gbps = over_net_gbps if at.ranks_per_node == 1 else min(bandwidth_gbps, over_net_gbps)
    return Terms(
        "ring" if op in _ROUNDS else "chain",
        rounds * (n - 1),
        wire_bytes,
        latency_ns,
        wire_bytes / bandwidth_gbps,
    )


def pairwise(op: str, message_bytes: int, at: Placement, intra: Link, inter: Link | None) -> Terms | None:
    """Return the terms of an all_to_all in n-1 rounds; the slower of host and network bounds it.

    Of a rank's (n-1)/n S bytes, (n-g)/n S leave a host that holds g of the ranks.
    """
    if op != "all_to_all":
        return None
    n, g = at.ranks, at.ranks_per_node
    near = intra.rates(op)
    latency_ns = intra.base_latency_ns.value + (g - 1) * near.step_latency_ns.value
    transfer_ns = (g - 1) / n * message_bytes / near.bandwidth_gbps.value
    if at.spans_nodes:
        if inter is None:
            return None
        far = inter.rates(op)
        latency_ns += inter.base_latency_ns.value + (n - g) * far.step_latency_ns.value
        transfer_ns = max(transfer_ns, (n - g) / n * message_bytes / far.bandwidth_gbps.value)
    wire_bytes = math.ceil((n - 1) * message_bytes / n)
    return Terms("pairwise", n - 1, wire_bytes, latency_ns, transfer_ns)
