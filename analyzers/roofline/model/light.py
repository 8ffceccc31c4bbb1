"""Speed of light: the time below which no library can be, from the rates of the links and nothing else.

Lower bounds on what must cross a link, whatever the algorithm: every rank of an all_gather receives what the
others hold, (n-1)/n S. An all_reduce without a switch that adds needs 2(n-1) S sent in all, so 2(n-1)/n S by
some rank. With such a switch it needs half of that (Patarasu, Yuan, "Bandwidth optimal all-reduce algorithms
for clusters of workstations", 2009). Latencies count as nothing.
"""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.roofline.model.direct import PAIRED, ROOTED
from shardtoll.analyzers.roofline.model.machine import Machine, physical_near_gbps, physical_net_gbps
from shardtoll.analyzers.roofline.model.place import Placement
from shardtoll.analyzers.roofline.model.ring import CHAINED, ROUNDS
from shardtoll.analyzers.roofline.model.switched import WITH_SHARP


def light_ns_per_byte(machine: Machine, op: str) -> float:
    """Return the least ns a byte of the message for `op`; times add to it, never less."""
    fabric, placement = machine.fabric, machine.at
    n, k, g = placement.ranks, placement.nodes, placement.ranks_per_node
    near_gbps = physical_near_gbps(machine.near, g)
    if k == 1:
        return _rank_share(op, n, adding=_switch_adds(machine)) / near_gbps
    # Only groups that surely share the cards count here: with more of them the bound would be too high.
    placement = replace(placement, sharing=placement.surely_sharing or placement.sharing, surely_sharing=None)
    net_gbps = physical_net_gbps(fabric, placement)
    own_gbps = net_gbps / g
    if op in PAIRED:
        return 1 / net_gbps
    # A rank's bytes may go both ways at once.
    both = _rank_share(op, n, adding=_switch_adds(machine) or fabric.sharp) / (near_gbps + own_gbps)
    bounds = [both, _host_share(op, placement, sharp=fabric.sharp) / net_gbps]
    if placement.fewest_ranks is not None and (op in ROUNDS or op == "all_to_all"):
        # On the host with the fewest ranks, its cards carry the bytes that its ranks need from others, or
        # alone hold.
        few = (n - placement.fewest_ranks) / n * (placement.fewest_ranks if op == "all_to_all" else 1)
        few = 1.0 if op == "all_reduce" else few
        bounds.append(few / physical_net_gbps(fabric, placement, placement.fewest_ranks))
    return max(bounds)


def _switch_adds(machine: Machine) -> bool:
    return machine.near.kind == "nvswitch" and machine.generation in WITH_SHARP


def _rank_share(op: str, n: int, *, adding: bool) -> float:
    """Return the bytes that some rank must send or receive, per byte of the message."""
    if op == "all_reduce":
        return (1 if adding else 2) * (n - 1) / n
    if op in CHAINED or op in PAIRED:
        return 1.0
    return (n - 1) / n


def _host_share(op: str, placement: Placement, *, sharp: bool) -> float:
    """Return the bytes that some host must send or receive over its cards, per byte of the message."""
    n, k, g = placement.ranks, placement.nodes, placement.ranks_per_node
    if op == "all_reduce":
        return 1.0 if sharp else 2 * (k - 1) / k
    if op in CHAINED:
        return 1.0
    if op in ROOTED:
        return (n - g) / n
    # A host of g ranks sends, or receives, what g ranks have for or want from all others.
    return g * (n - g) / n if op == "all_to_all" else (n - g) / n
