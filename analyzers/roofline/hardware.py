"""The fabric of machines that are described in words, as tables of measurements do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.roofline.fabric import UNKNOWN, Fabric, InterKind, Link
from shardtoll.analyzers.roofline.gpu_words import gpu_words
from shardtoll.analyzers.roofline.gpus import find_gpu
from shardtoll.analyzers.roofline.network_words import NetworkWords, network_words
from shardtoll.analyzers.roofline.pick import Known, pick
from shardtoll.analyzers.roofline.quantity import Quantity

_VERSION: Final = re.compile(r"nccl[ _-]*v?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", re.IGNORECASE)


def fabric_of_hardware(text: str, nodes: int | None = None, gpus: int | None = None) -> tuple[Fabric, str]:
    """Return the fabric that a text describes, as `8xH100 SXM, 8x CX-7 IB NDR400`, and how sure it is.

    `nodes` and `gpus` are how many of each were used, where known. Cards and rates that the text gives
    go before those of the shipped fabric. Without an accelerator or machine that is known the fabric is
    `UNKNOWN`.
    """
    said = gpu_words(text[:1000])
    net = network_words(said.rest)
    used = -(-gpus // nodes) if nodes and gpus else None
    whole = said.count if said.count is not None and (used is None or said.count >= used) else None
    choice = pick(Known(said.device, text[:1000], nodes == 1, whole, used, net))
    if choice.fabric is UNKNOWN:
        return UNKNOWN, str(choice)
    fabric = choice.fabric
    gpu = find_gpu(said.device)
    if gpu is not None:
        fabric = replace(fabric, gpu=gpu)
    fabric = _told(fabric, net, whole, text)
    version = _VERSION.search(text[:1000])
    if version is not None and fabric.library == "nccl":
        fabric = replace(fabric, library_version=version[1])
    return replace(fabric, provenance=f"{fabric.provenance} ({choice})"), str(choice)


def _told(fabric: Fabric, net: NetworkWords, whole: int | None, text: str) -> Fabric:
    """Return the fabric with the network that the text gives, where that differs."""
    size = whole or (int(fabric.ranks_per_node.value) if fabric.ranks_per_node is not None else None)
    if size is not None and fabric.ranks_per_node is not None and size != fabric.ranks_per_node.value:
        fabric = replace(fabric, ranks_per_node=Quantity(float(size), _source(text), "derived"))
    old = fabric.inter
    node_gbps = net.node_gbps(size, old.cards.value if old is not None and old.cards is not None else None)
    if node_gbps is None or size is None:
        return fabric
    if old is not None and old.node_gbps is not None and abs(node_gbps / old.node_gbps.value - 1) < 0.01:
        return fabric
    cards = (
        net.cards or (size if net.each_gpu else None) or (int(old.cards.value) if old and old.cards else size)
    )
    rank_gbps = max(node_gbps / size, node_gbps / cards)
    kind: InterKind = net.kind or "infiniband"
    base = old if old is not None and net.kind in (None, old.kind) else Link(kind, _said(rank_gbps, text))
    inter = replace(
        base, rank_gbps=_said(rank_gbps, text), node_gbps=_said(node_gbps, text), cards=_said(cards, text)
    )
    return replace(fabric, inter=inter)


def _said(value: float, text: str) -> Quantity:
    return Quantity(float(value), _source(text), "derived")


def _source(text: str) -> str:
    return f"the description of the hardware: {text[:200]}"
