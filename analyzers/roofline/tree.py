"""Latency and bytes of tree algorithms.

all_reduce: NCCL's double binary tree (Sanders, Speck, Träff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009): a chain inside a host and a tree over hosts, up
and down: 2[(g-1) + log2 k] hops for k hosts of g ranks (NCCL src/graph/tuning.cc, v2.30).
broadcast, reduce: a pipelined binomial tree of ceil(log2 n) hops.
"""

from __future__ import annotations

import math

from shardtoll.analyzers.roofline.fabric import Link
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.analyzers.roofline.ring import CHAINED
from shardtoll.analyzers.roofline.terms import Terms


def tree(op: str, message_bytes: int, at: Placement, intra: Link, inter: Link | None) -> Terms | None:
    """Return the terms of a tree; None for an op that has none, or where a link is not known."""
    if at.spans_nodes and inter is None:
        return None
    if op == "all_reduce":
        return _double_tree(op, message_bytes, at, intra, inter)
    if op in CHAINED:
        return _binomial(op, message_bytes, at, intra, inter)
    return None


def _double_tree(op: str, message_bytes: int, at: Placement, intra: Link, inter: Link | None) -> Terms:
    near = intra.rates(op)
    g, k = at.ranks_per_node, at.nodes
    near_hops, net_hops = 2 * (g - 1), 2 * math.ceil(math.log2(k))
    latency_ns = intra.base_latency_ns.value + near_hops * near.step_latency_ns.value
    if inter is None or k == 1:
        # Up and down again: every rank but the ends sends the message twice.
        wire_bytes = 2 * message_bytes
        return Terms("tree", near_hops, wire_bytes, latency_ns, wire_bytes / near.bandwidth_gbps.value)
    far = inter.rates(op)
    latency_ns += inter.base_latency_ns.value + net_hops * far.step_latency_ns.value
    # A host sends S up and S down; of two hosts each is root of one tree and leaf of the other,
    # so S in all. The ranks of the host share that among their cards.
    host_bytes = message_bytes if k == 2 else 2 * message_bytes
    over_net_ns = host_bytes / (g * far.bandwidth_gbps.value)
    # Inside the host the least is what a reduce-scatter and an all_gather of g ranks move.
    within_bytes = 2 * (g - 1) / g * message_bytes
    transfer_ns = max(over_net_ns, within_bytes / near.bandwidth_gbps.value)
    wire_bytes = math.ceil(within_bytes + host_bytes / g)
    return Terms("tree", near_hops + net_hops, wire_bytes, latency_ns, transfer_ns)


def _binomial(op: str, message_bytes: int, at: Placement, intra: Link, inter: Link | None) -> Terms:
    near = intra.rates(op)
    near_hops = math.ceil(math.log2(at.ranks_per_node))
    net_hops = math.ceil(math.log2(at.nodes))
    latency_ns = intra.base_latency_ns.value + near_hops * near.step_latency_ns.value
    bandwidth_gbps = near.bandwidth_gbps.value
    if inter is not None and at.spans_nodes:
        far = inter.rates(op)
        latency_ns += inter.base_latency_ns.value + net_hops * far.step_latency_ns.value
        over_net_gbps = at.ranks_per_node * far.bandwidth_gbps.value
        bandwidth_gbps = over_net_gbps if at.ranks_per_node == 1 else min(bandwidth_gbps, over_net_gbps)
    return Terms("tree", near_hops + net_hops, message_bytes, latency_ns, message_bytes / bandwidth_gbps)
