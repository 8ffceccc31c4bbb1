"""A fabric as TOML text, so that a measured one can be saved and named again."""

from __future__ import annotations

import json

from shardtoll.analyzers.roofline.fabric import Fabric, Link, Quantity, Rates


def _string(text: str) -> str:
    # A JSON string is a TOML basic string, but for DEL, which only TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _strings(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(_string(value) for value in values) + "]"


def _number(name: str, number: Quantity) -> str:
    # repr gives the shortest text that reads back as the same float.
    return (
        f"{name} = {{ value = {number.value!r}, source = {_string(number.source)}, "
        f"confidence = {_string(number.confidence)} }}"
    )


def _rates(header: str, rates: Rates) -> list[str]:
    return [
        "",
        f"[{header}]",
        _number("step_latency_ns", rates.step_latency_ns),
        _number("bandwidth_gbps", rates.bandwidth_gbps),
    ]


def _link(name: str, link: Link) -> list[str]:
    lines = ["", f"[{name}]", _number("base_latency_ns", link.base_latency_ns)]
    for op, rates in {"default": link.default, **link.per_op}.items():
        lines += _rates(f"{name}.{op}", rates)
    return lines


def to_toml(fabric: Fabric) -> str:
    """Return the fabric as TOML that `load_fabric` reads back as an equal one."""
    lines = [
        f"name = {_string(fabric.name)}",
        f"title = {_string(fabric.title)}",
        f"provenance = {_string(fabric.provenance)}",
        f"measured = {'true' if fabric.measured else 'false'}",
    ]
    for name, values in (
        ("device_names", fabric.device_names),
        ("device_names_not", fabric.device_names_not),
        ("backends", fabric.backends),
    ):
        if values:
            lines.append(f"{name} = {_strings(values)}")
    if fabric.ranks_per_node is not None:
        lines.append(_number("ranks_per_node", fabric.ranks_per_node))
    for name, link in (("intra", fabric.intra), ("inter", fabric.inter)):
        if link is not None:
            lines += _link(name, link)
    return "\n".join(lines) + "\n"
