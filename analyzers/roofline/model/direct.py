"""Transfers without a relay: all_to_all between all pairs, gather, scatter, send, recv."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from shardtoll.analyzers.roofline.model.candidate import NOTHING, Candidate
from shardtoll.analyzers.roofline.model.machine import Machine

ROOTED: Final = ("gather", "scatter")
PAIRED: Final = ("send", "recv")


def pairwise(machine: Machine, op: str) -> list[Candidate]:
    """Return the all_to_all in n-1 exchanges; the slower of host and network bounds it.

    A rank sends (n-1)/n S bytes; (n-g)/n S of them leave a host that holds g of the ranks.
    """
    if op != "all_to_all":
        return []
    n, g = machine.at.ranks, machine.at.ranks_per_node
    near, net = Fraction(g - 1, n), Fraction(n - g, n) if machine.at.spans_nodes else NOTHING
    ns_per_byte = float(near) / machine.near_gbps("pairwise") if near else 0.0
    if net:
        few = machine.at.fewest_ranks or g
        # On hosts with fewer ranks each rank sends more out, and over its own card as well.
        near_ns_per_byte = few * (n - few) / n / machine.through_gbps("pairwise")
        ns_per_byte = max(ns_per_byte, g * float(net) / machine.net_gbps("pairwise"), near_ns_per_byte)
    return [
        Candidate(
            algorithm="pairwise",
            protocol="",
            steps=n - 1,
            near_share=near,
            net_share=net,
            latency_ns=machine.latency_ns("pairwise", "", g - 1, n - g if net else 0, at_once=True),
            ns_per_byte=ns_per_byte,
            ramp=machine.ramp("pairwise", ""),
        )
    ]


def direct(machine: Machine, op: str) -> list[Candidate]:
    """Return a direct transfer.

    `send`, `recv`: S bytes over the link between the two. `gather`, `scatter`: the root's own link carries
    (n-1)/n S, of which (n-g)/n S come over its network card.
    """
    if op in PAIRED:
        return [_paired(machine)]
    return [_rooted(machine)] if op in ROOTED else []


def _paired(machine: Machine) -> Candidate:
    far = machine.at.spans_nodes
    few = least = 0.0
    if far:
        special = (f"rails_{machine.net.kind}",) if machine.net is not None and machine.rails else ()
        ns_per_byte = 1 / (machine.net_gbps("direct", *special) / machine.at.ranks_per_node)
    else:
        ns_per_byte = 1 / machine.near_gbps("direct")
        few = machine.library.number("few_channels_gbps", otherwise=0.0) / machine.at.ranks_per_node
        least = machine.library.number("few_channels_bytes", otherwise=0.0) if few else 0.0
    return Candidate(
        algorithm="direct",
        protocol="",
        steps=1,
        near_share=NOTHING if far else Fraction(1),
        net_share=Fraction(1) if far else NOTHING,
        latency_ns=machine.latency_ns("direct", "", 0 if far else 1, 1 if far else 0),
        ns_per_byte=ns_per_byte,
        ramp=machine.ramp("direct", ""),
        few_channels_ns_per_byte=1 / few if few else 0.0,
        few_channels_bytes=int(least) if few else 0,
    )


def _rooted(machine: Machine) -> Candidate:
    n, g = machine.at.ranks, machine.at.ranks_per_node
    near, net = Fraction(g - 1, n), Fraction(n - g, n) if machine.at.spans_nodes else NOTHING
    ns_per_byte = float(near) / machine.near_gbps("direct") if near else 0.0
    if net:
        # All bytes pass the root's own share of the cards, which is one rank's.
        one_rank_gbps = machine.net_gbps("direct") / g
        ns_per_byte = max(ns_per_byte, float(net) / one_rank_gbps)
        few = machine.at.fewest_ranks
        if few is not None:
            # The root may be on any host; if it shares it with fewest, most comes over its card.
            ns_per_byte = max(ns_per_byte, few * (n - few) / n / machine.through_gbps("direct"))
    return Candidate(
        algorithm="direct",
        protocol="",
        steps=1,
        near_share=near,
        net_share=net,
        latency_ns=machine.latency_ns("direct", "", 1 if near else 0, 1 if net else 0),
        ns_per_byte=ns_per_byte,
        ramp=machine.ramp("direct", ""),
        wire_share=Fraction(n - 1, n),
    )
