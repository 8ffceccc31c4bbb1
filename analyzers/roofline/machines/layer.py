"""Content of one TOML file on a fabric, checked and not yet merged with the file it extends.

A layer has the names of `Fabric`'s fields, and only those the file gives; links are layers of their
own. Numbers are read here, with the name of their own file, so that an error names the file that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from shardtoll.analyzers.roofline.machines.curve import Curve, CurvePoint
from shardtoll.analyzers.roofline.machines.fabric import INTER_KINDS, INTRA_KINDS, LIBRARIES, REACHED
from shardtoll.analyzers.roofline.machines.gpu import read_gpu, shipped_gpu
from shardtoll.analyzers.roofline.machines.table import Table
from shardtoll.ledger.records.volume import OPS

Layer = dict[str, Any]

MOST_REACHED: Final = 1.2
"""A share of the physical rate may be a little above 1 where the network helps reduce."""

MOST_POINTS: Final = 200_000
"""Measured points of one file."""

_TEXTS: Final = ("name", "title", "provenance", "library_version")
_FLAGS: Final = ("measured", "sharp")
_LISTS: Final = ("device_names", "device_names_not", "backends", "hardware", "hosts")
_COUNTS: Final = ("ranks_per_node", "ranks_per_domain")
_CURVE: Final = ("message_bytes", "time_ns", "low_ns", "high_ns", "samples")


def read_layer(root: Table) -> Layer:
    """Return what the file says; FabricError for what it may not say."""
    root.only(*_TEXTS, "extends", "library", "gpu", *_COUNTS, "intra", "inter", *_FLAGS, *_LISTS, "curve")
    layer: Layer = {key: root.text(key) for key in (*_TEXTS, "extends") if key in root}
    layer |= {key: root.flag(key) for key in _FLAGS if key in root}
    layer |= {key: root.texts(key) for key in _LISTS if key in root}
    layer |= {key: root.quantity(key, whole=True, most=1e6) for key in _COUNTS if key in root}
    if "library" in root:
        layer["library"] = root.one_of("library", LIBRARIES)
    if "gpu" in root:
        described = isinstance(root.data["gpu"], Mapping)
        layer["gpu"] = read_gpu(root.table("gpu")) if described else shipped_gpu(root.text("gpu"), root)
    if "intra" in root:
        layer["intra"] = _link(root.table("intra"), INTRA_KINDS, ("peers",))
    if "inter" in root:
        layer["inter"] = _link(root.table("inter"), INTER_KINDS, ("node_gbps", "cards"))
    if "curve" in root:
        curves = [_curve(table) for table in root.tables("curve")]
        if sum(len(curve.points) for curve in curves) > MOST_POINTS:
            raise root.fail("too many measured points", f"keep at most {MOST_POINTS}")
        layer["curves"] = tuple(
            sorted(curves, key=lambda curve: (OPS.index(curve.op), curve.ranks, curve.nodes, curve.sharing))
        )
    return layer


def _link(table: Table, kinds: tuple[str, ...], numbers: tuple[str, ...]) -> Layer:
    latency = ("plugin_latency_ns",) if "cards" in numbers else ()
    table.only("kind", "rank_gbps", *numbers, *latency, "reached")
    link: Layer = {"kind": table.one_of("kind", kinds)} if "kind" in table else {}
    for key in ("rank_gbps", *numbers, *latency):
        if key in table:
            zero, whole = key.endswith("_ns"), key in ("cards", "peers")
            link[key] = table.quantity(key, zero=zero, whole=whole, most=1e9 if zero else 1e6)
    if "reached" in table:
        reached = table.table("reached")
        reached.only(*REACHED)
        link["reached"] = {key: reached.quantity(key, most=MOST_REACHED) for key in REACHED if key in reached}
    return link


def _curve(table: Table) -> Curve:
    table.only("op", "ranks", "nodes", "sharing", "source", *_CURVE)
    for key in ("op", "ranks", "nodes", "source", "message_bytes", "time_ns"):
        if key not in table:
            raise table.fail(
                f"`{key}` is missing", "a [[curve]] has op, ranks, nodes, source, message_bytes, time_ns"
            )
    ranks, nodes = (int(table.quantity(key, whole=True, most=1e6).value) for key in ("ranks", "nodes"))
    sharing = int(table.quantity("sharing", whole=True, most=1e6).value) if "sharing" in table else 1
    if ranks < 2 or nodes > ranks:
        raise table.fail(
            f"{ranks} ranks on {nodes} nodes", "write at least 2 ranks, and no more nodes than ranks"
        )
    sizes, times = table.numbers("message_bytes"), table.numbers("time_ns")
    lows, highs = (table.numbers(key) if key in table else times for key in ("low_ns", "high_ns"))
    samples = table.numbers("samples") if "samples" in table else [1] * len(sizes)
    if not sizes or len({len(part) for part in (sizes, times, lows, highs, samples)}) != 1:
        raise table.fail("its lists differ in length, or are empty", "write one number a point in each")
    if any(after <= before for before, after in pairwise(sizes)):
        raise table.fail("`message_bytes` does not ascend", "write each size once, the smallest first")
    for low, time, high, count in zip(lows, times, highs, samples, strict=True):
        if not 0 < low <= time <= high or count < 1:
            raise table.fail(
                f"a point of {low} <= {time} <= {high} ns from {count} samples",
                "write 0 < low_ns <= time_ns <= high_ns, and at least 1 sample",
            )
    points = map(CurvePoint, sizes, times, lows, highs, samples)
    return Curve(table.one_of("op", OPS), ranks, nodes, tuple(points), table.text("source"), sharing)
