"""Algorithms in which a switch reduces: NVLink SHARP (NVLS, NVLSTree) and InfiniBand SHARP (CollNet).

Shapes and latencies: NCCL src/graph/tuning.cc (v2.30). The bytes follow from the switch: it reads a rank's
message once, and each rank writes its part of the sum once to all.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from shardtoll.analyzers.roofline.model.candidate import NOTHING, Candidate
from shardtoll.analyzers.roofline.model.machine import Machine
from shardtoll.analyzers.roofline.model.tree import through_trees_ns_per_byte

WITH_SHARP: Final = ("hopper", "blackwell")
"""Generations whose NVSwitch reduces."""


def switch_reduces(machine: Machine) -> bool:
    """Whether the group's NVSwitch can reduce, and NCCL lets it: for all GPUs of a host together.

    In a domain of hosts, NCCL allows any number of GPUs above two (ncclNvlsInit: `comm->clique.size <= 2`).
    """
    if machine.near.kind != "nvswitch" or machine.generation not in WITH_SHARP:
        return False
    if machine.fabric.ranks_per_domain is not None:
        return machine.at.ranks_per_node > 2
    return machine.whole_node and machine.at.ranks_per_node > 1


def nvls(machine: Machine, op: str) -> list[Candidate]:
    """Return NVLink SHARP for an all_reduce inside one domain: S + S/n bytes per rank, one step."""
    placement = machine.at
    if op != "all_reduce" or placement.spans_nodes or not switch_reduces(machine):
        return []
    share = 1 + Fraction(1, placement.ranks)
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
    """Return NVLSTree for an all_reduce over hosts: NVLS inside each, a double tree over them.

    A domain of many hosts, as an NVL72 rack, is one of the tree's places. Two of them are a root and a leaf
    each. With three and more, some have two children, and NCCL's own table halves a channel's rate there.
    """
    placement = machine.at
    if op != "all_reduce" or not placement.spans_nodes or not switch_reduces(machine):
        return []
    k, g = placement.nodes, placement.ranks_per_node
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
    placement = machine.at
    if op != "all_reduce" or not placement.spans_nodes or not machine.fabric.sharp:
        return []
    g = placement.ranks_per_node
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
