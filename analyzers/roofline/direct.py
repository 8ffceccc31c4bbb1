"""Latency and bytes of transfers without a relay: gather, scatter, send, recv."""

from __future__ import annotations

import math
from typing import Final

from shardtoll.analyzers.roofline.fabric import Link
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.analyzers.roofline.terms import Terms

ROOTED: Final = ("gather", "scatter")
PAIRED: Final = ("send", "recv")


def direct(op: str, message_bytes: int, at: Placement, intra: Link, inter: Link | None) -> Terms | None:
    """Return the terms of a direct transfer; None for another op, or where a link is not known.

    send, recv: S bytes over the link between the two. gather, scatter: the root's own link carries
    (n-1)/n S, of which (n-g)/n S come over its network card.
    """
    n, g = at.ranks, at.ranks_per_node
    link = inter if at.spans_nodes else intra
    if link is None or op not in ROOTED + PAIRED:
        return None
    rates = link.rates(op)
    latency_ns = link.base_latency_ns.value + rates.step_latency_ns.value
    if op in PAIRED:
        return Terms("direct", 1, message_bytes, latency_ns, message_bytes / rates.bandwidth_gbps.value)
    wire_bytes = math.ceil((n - 1) * message_bytes / n)
    near_ns = (g - 1) / n * message_bytes / intra.rates(op).bandwidth_gbps.value
    far_ns = 0.0 if inter is None else (n - g) / n * message_bytes / inter.rates(op).bandwidth_gbps.value
    return Terms("direct", 1, wire_bytes, latency_ns, max(near_ns, far_ns))
