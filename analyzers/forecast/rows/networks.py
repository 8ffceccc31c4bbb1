"""The network of a published row: a fabric that its words name, or bandwidths that were measured on its
cluster."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources
from typing import Final

from shardtoll.analyzers.forecast.plan.check import usual_fabric
from shardtoll.analyzers.forecast.plan.network import FabricNetwork, MeasuredNetwork, Network
from shardtoll.analyzers.roofline import Fabric, fabric_names, load_fabric

DATA: Final = "shardtoll.analyzers.forecast.data"

_WORDS: Final = (
    ("p4d", "aws-p4d"),
    ("p4de", "aws-p4de"),
    ("p5en", "aws-p5en"),
    ("p5e", "aws-p5e"),
    ("p5", "aws-p5"),
    ("a3 mega", "gcp-a3-mega"),
    ("a3-mega", "gcp-a3-mega"),
)


@cache
def measured_networks() -> tuple[tuple[tuple[str, ...], MeasuredNetwork], ...]:
    """Return the clusters whose bandwidth by node count is packaged, with the words that name them."""
    text = resources.files(DATA).joinpath("forecast_networks.json").read_text(encoding="utf-8")
    return tuple(
        (
            tuple(entry["words"]),
            MeasuredNetwork(
                name,
                {
                    op: tuple((int(n), float(low), float(mid), float(high)) for n, low, mid, high in table)
                    for op, table in entry["busbw_gbps"].items()
                },
                entry["ranks_per_node"],
                part_shares=tuple((int(n), float(share)) for n, share in entry["part_shares"]),
            ),
        )
        for name, entry in json.loads(text).items()
    )


@lru_cache(maxsize=512)
def network_of(gpu: str, hardware: str, net: str) -> tuple[Network, bool]:
    """Return the network, and whether the row states it; `net` may be a fabric's name or its TOML file.

    Raises UsageError for a GPU without a usual fabric, FabricError for a file that describes no fabric.
    """
    if net.endswith(".toml") or net in fabric_names():
        return FabricNetwork(load_fabric(net)), True
    text = f"{hardware} {net}".casefold()
    for words, measured in measured_networks():
        if any(word in text for word in words):
            return measured, True
    base = usual_fabric(gpu)
    rate = _card_gbps(text)
    for word, name in _WORDS:
        if re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", text):
            return FabricNetwork(load_fabric(name)), True
    fabric = load_fabric(base)
    if "roce" in text and gpu.startswith("h100"):
        fabric = load_fabric("h100x8-roce400")
    stated = rate is not None and "not stated" not in text
    if rate is not None:
        fabric = _with_rate(fabric, rate)
    return FabricNetwork(fabric), stated


_RATES: Final = (
    (re.compile(r"(\d+)\s*(?:gbps|gb/s|gbit/s)\s*(?:/|per |a )\s*node"), 8),
    (re.compile(r"8\s*x\s*(?:ib\s*)?(?:hdr|ndr|edr)?\s*(\d{3})"), 1),
    (re.compile(r"4\s*x\s*(?:ib\s*)?(?:hdr|ndr|edr)\s*(\d{3})"), 2),
    (re.compile(r"(\d+)\s*(?:gbps|gb/s|gbit/s)\s*(?:/|per |a )\s*gpu"), 1),
    (re.compile(r"([\d.]+)\s*tb(?:/s|ps)?\s*roce"), 0.008),
    # As names of fabrics have it: h100x8-ib400 has 400 Gb/s for each GPU.
    (re.compile(r"(?<![a-z0-9])(?:ib|roce)(\d{3})(?!\d)"), 1),
)


def _card_gbps(text: str) -> float | None:
    """Return GB/s in one direction that one of eight GPUs has, from words as `1600Gbps/node` or `8x
    HDR200`."""
    for pattern, per_gpu in _RATES:
        match = pattern.search(text)
        if match is not None:
            return float(match[1]) / per_gpu / 8
    return None


def _with_rate(fabric: Fabric, gbps: float) -> Fabric:
    """Return the fabric with cards of that rate, one a GPU."""
    inter = fabric.inter
    if inter is None or abs(inter.rank_gbps.value / gbps - 1) < 0.02:
        return fabric
    rate = replace(inter.rank_gbps, value=gbps, source="the row's own words")
    node = inter.node_gbps and replace(inter.node_gbps, value=8 * gbps, source="the row's own words")
    named = f"{fabric.name}, {gbps:g} GB/s a GPU"
    return replace(fabric, name=named, inter=replace(inter, rank_gbps=rate, node_gbps=node), curves=())
