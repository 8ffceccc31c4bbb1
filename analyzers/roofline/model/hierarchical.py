"""The two-level all_reduce: reduce-scatter inside each host, all_reduce between hosts, all_gather inside.

Bytes: 2(g-1)/g S per rank inside, 2(k-1)/k S/g between hosts; the three phases follow one another.
"""

from __future__ import annotations

from fractions import Fraction

from shardtoll.analyzers.roofline.model.candidate import Candidate
from shardtoll.analyzers.roofline.model.machine import Machine


def hierarchical(machine: Machine, op: str) -> list[Candidate]:
    """Return the two-level all_reduce; nothing for a group inside one host, or with one rank a host."""
    placement = machine.at
    k, g = placement.nodes, placement.ranks_per_node
    if op != "all_reduce" or k == 1 or g == 1:
        return []
    near, net = Fraction(2 * (g - 1), g), Fraction(2 * (k - 1), k * g)
    return [
        Candidate(
            algorithm="hierarchical",
            protocol=protocol,
            steps=2 * (g - 1) + 2 * (k - 1),
            near_share=near,
            net_share=net,
            latency_ns=machine.latency_ns("ring", protocol, 2 * (g - 1), 2 * (k - 1)),
            ns_per_byte=(
                float(near) / machine.near_gbps("ring") + float(net) * g / machine.through_gbps("ring")
            )
            / machine.protocol_share(protocol),
            ramp=machine.ramp("ring", protocol),
        )
        for protocol in machine.library.protocols
    ]
