"""The fabric of machines that are described in words, as tables of measurements do."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from shardtoll.analyzers.roofline.machines.fabric import UNKNOWN, Fabric, InterKind, Link
from shardtoll.analyzers.roofline.machines.gpu import find_gpu
from shardtoll.analyzers.roofline.machines.network_words import NetworkWords, network_words
from shardtoll.analyzers.roofline.machines.pick import Known, pick
from shardtoll.analyzers.roofline.machines.quantity import Quantity

_FAMILY: Final = re.compile(
    r"(?:(?<![a-z0-9.])(?P<count>\d{1,2}) ?[x×*] ?|(?<![a-z0-9]))"
    r"(?:nvidia |tesla |amd |instinct |geforce )*"
    r"(?P<name>g[bh][23]00|[bh][123]00|a100|v100|mi\d{3}[axc]?|l40s?|l4|a10g?|a40|t4|rtx ?\d{4})"
    r"(?P<rest>(?:(?:[ -]|(?<=\d)(?=sxm))(?:sxm\d?|pcie|nvl(?!ink|\d)|oam|hgx|hbm\d?e?|"
    r"\d{2,3} ?g(?:i?b)?(?![a-z/])|(?<=-)(?:16|32|40|64|80)(?!\d)))*)"
    r"(?:(?![a-z0-9])|(?=[x×*]\d))"
)
_COUNT_AFTER: Final = re.compile(r"^ ?(?:gpus? ?)?[x×*] ?(\d{1,2})(?!\d)")
_WHOLE_NODE: Final = re.compile(
    r"(?<![a-z0-9])(\d{1,2})(?:-gpu(?![a-z])| ?gpus?(?: ?/ ?| per | a | in a )?(?:node|tray|server))"
)
_VERSION: Final = re.compile(r"nccl[ _-]*v?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuWords:
    """Facts in a description of accelerators; None if it names none."""

    device: str | None = None
    """As a device name would be, for fabrics and accelerators to be found by."""
    count: int | None = None
    """Accelerators of a node."""
    rest: str = ""
    """The text without what was said of them."""


def fabric_of_hardware(text: str, nodes: int | None = None, gpus: int | None = None) -> tuple[Fabric, str]:
    """Return the fabric that a text describes, as `8xH100 SXM, 8x CX-7 IB NDR400`, and how sure it is.

    `nodes` and `gpus` are how many of each were used, if known. Cards and rates that the text gives go before
    those of the shipped fabric. Without an accelerator or machine that is known the fabric is `UNKNOWN`.
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
    """Return the fabric with the network that the text gives, if that differs."""
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


def gpu_words(text: str) -> GpuWords:
    """Return the first accelerator that the text names, with its form (SXM if none is given)."""
    plain = text.casefold()
    node = _WHOLE_NODE.search(plain)
    match = _FAMILY.search(plain)
    if match is None:
        return GpuWords(None, int(node[1]) if node else None, text)
    after = _COUNT_AFTER.search(plain[match.end() :])
    count = match["count"] or (after[1] if after else None) or (node[1] if node else None)
    name = match["name"].upper()
    rest = f"{text[: match.start()]} , {text[match.end() + (after.end() if after else 0) :]}"
    return GpuWords(_device(name, plain, match["rest"]), None if count is None else int(count), rest)


def _device(name: str, text: str, rest: str) -> str:
    """Return a name as drivers give it, as `A100-SXM4-40GB`."""
    memory = re.search(r"\d{2,3}", re.sub(r"sxm\d|hbm\d", "", rest))
    size = "" if memory is None else f"{memory[0]}GB"
    if name.startswith("MI"):
        return name
    if "sxm" not in text and re.search(r"(?<![a-z])nvl(?!ink|\d|[a-z])", rest):
        return f"{name} NVL"
    pcie = "sxm" not in text and "nvswitch" not in text and "nvlink" not in text and "pcie" in rest
    if name == "A100":
        return f"A100-PCIE-{size or '40GB'}" if pcie else f"A100-SXM4{'-' if size else ''}{size}"
    if name == "V100":
        return (
            f"V100-PCIE-{size or '16GB'}"
            if pcie
            else f"V100-SXM{3 if 'dgx-2' in text else 2}-{size or '32GB'}"
        )
    return f"{name} PCIe" if pcie else name
