"""Algorithms in which a switch reduces: NVLink SHARP (NVLS, NVLSTree) and InfiniBand SHARP (CollNet).

Shapes and latencies: NCCL src/graph/tuning.cc (v2.30); the bytes follow from what the switch does: a rank's
message is read by the switch once, and each rank writes its part of the sum once to all.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from shardtoll.analyzers.roofline.candidate import NOTHING, Candidate
from shardtoll.analyzers.roofline.machine import Machine
from shardtoll.analyzers.roofline.tree import through_trees_ns_per_byte

WITH_SHARP: Final = ("hopper", "blackwell")
"""Generations whose NVSwitch reduces."""

MOST_RANKS: Final = 16
"""NVLSTree is for hosts, not racks: NCCL forms no tree of NVL72 domains."""


def switch_reduces(machine: Machine) -> bool:
    """Whether the group's NVSwitch can reduce, and NCCL lets it: for all GPUs of a host together.

    Of a domain of hosts NCCL takes any more than two GPUs (ncclNvlsInit: `comm->clique.size <= 2`).
    """
    if machine.near.kind != "nvswitch" or machine.generation not in WITH_SHARP:
        return False
    of_a_domain = machine.fabric.ranks_per_domain is not None and not machine.at.spans_nodes
    return (
        machine.at.ranks_per_node > 2 if of_a_domain else machine.whole_node and machine.at.ranks_per_node > 1
    )


def nvls(machine: Machine, op: str) -> list[Candidate]:
    """Return NVLink SHARP for an all_reduce inside one domain: S + S/n bytes a rank, one step."""
    at = machine.at
    if op != "all_reduce" or at.spans_nodes or not switch_reduces(machine):
        return []
    share = 1 + Fraction(1, at.ranks)
    return [
        Candidate(
            algorithm="nvls",
            protocol="Simple",
            steps=1,
            near_share=share,
            net_share=NOTHING,
            latency_ns=machine.latency_ns("nvls", "Simple", 0, 0),
            ns_per_byte=float(share) / machine.near_gbps("nvls"),
            ramp=machine.ramp("nvls", "Simple"),
        )
    ]


def nvlstree(machine: Machine, op: str) -> list[Candidate]:
    """Return NVLSTree for an all_reduce over hosts: NVLS inside each, a double tree over them."""
    at = machine.at
    if op != "all_reduce" or not at.spans_nodes or at.ranks_per_node > MOST_RANKS:
        return []
    if not switch_reduces(machine):
        return []
    k, g = at.nodes, at.ranks_per_node
    share = 1 + Fraction(1, g)
    near_ns_per_byte = float(share) / machine.near_gbps("nvlstree")
    return [
        Candidate(
            algorithm="nvlstree",
            protocol="Simple",
            steps=1 + 2 * math.ceil(math.log2(k)),
            near_share=share,
            net_share=Fraction(2 * (k - 1), k * g),
            latency_ns=machine.latency_ns("nvlstree", "Simple", 0, 2 * math.log2(k)),
            ns_per_byte=max(near_ns_per_byte, through_trees_ns_per_byte(machine)),
            ramp=machine.ramp("nvlstree", "Simple"),
            overrated_ns=machine.overrated_ns("nvlstree", "Simple", 0, 2 * math.log2(k)),
        )
    ]


def collnet(machine: Machine, op: str) -> list[Candidate]:
    """Return CollNet for an all_reduce over hosts: the network's switches reduce what each card sends once.

    Inside a host a reduce-scatter and an all_gather, direct between all pairs.
    """
    at = machine.at
    if op != "all_reduce" or not at.spans_nodes or not machine.fabric.sharp:
        return []
    g = at.ranks_per_node
    near = Fraction(2 * (g - 1), g)
    near_ns_per_byte = 0.0 if g == 1 else float(near) / machine.near_gbps("ring")
    return [
        Candidate(
            algorithm="collnet",
            protocol="Simple",
            steps=2 * min(1, g - 1) + 1,
            near_share=near,
            net_share=Fraction(1, g),
            latency_ns=machine.latency_ns("collnet", "Simple", 2 * (g - 1), 1),
            ns_per_byte=max(near_ns_per_byte, 1 / machine.through_gbps("collnet")),
            ramp=machine.ramp("collnet", "Simple"),
        )
    ]
