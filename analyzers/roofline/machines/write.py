"""A fabric as TOML text, so that a measured one can be saved and named again."""

from __future__ import annotations

from collections.abc import Iterable

from shardtoll.analyzers.roofline.machines.fabric import Fabric, Link
from shardtoll.analyzers.roofline.machines.gpu import Gpu, capability_text, known_gpus
from shardtoll.analyzers.roofline.machines.quantity import Quantity
from shardtoll.ledger.measured.curve_toml import curve_lines
from shardtoll.ledger.measured.curve_toml import text as _string


def to_toml(fabric: Fabric) -> str:
    """Return the fabric as TOML that `load_fabric` reads back as an equal one, without `extends`."""
    lines = [
        f"name = {_string(fabric.name)}",
        f"title = {_string(fabric.title)}",
        f"provenance = {_string(fabric.provenance)}",
        f"library = {_string(fabric.library)}",
    ]
    if fabric.library_version is not None:
        lines.append(f"library_version = {_string(fabric.library_version)}")
    lines += [f"{key} = true" for key in ("measured", "sharp") if getattr(fabric, key)]
    for key in ("device_names", "device_names_not", "backends", "hardware", "hosts"):
        if getattr(fabric, key):
            lines.append(_strings(key, getattr(fabric, key)))
    for key in ("ranks_per_node", "ranks_per_domain"):
        lines += _numbers((key, getattr(fabric, key)))
    if fabric.gpu is not None:
        lines += [f"gpu = {_string(fabric.gpu.name)}"] if fabric.gpu in known_gpus() else _own(fabric.gpu)
    for name, link in (("intra", fabric.intra), ("inter", fabric.inter)):
        if link is not None:
            lines += _link(name, link)
    for curve in fabric.curves:
        lines += curve_lines(
            curve.op, curve.ranks, curve.nodes, curve.source, curve.points, sharing=curve.sharing
        )
    return "\n".join(lines) + "\n"


def gpu_to_toml(gpu: Gpu) -> str:
    """Return the accelerator as TOML that `load_gpu` reads back as an equal one."""
    return "\n".join(_gpu(gpu, _string(gpu.name))) + "\n"


def _strings(key: str, values: Iterable[str]) -> str:
    return f"{key} = [{', '.join(_string(value) for value in values)}]"


def _numbers(*named: tuple[str, Quantity | None]) -> list[str]:
    # repr gives the shortest text that reads back as the same float.
    return [
        f"{name} = {{ value = {number.value!r}, source = {_string(number.source)}, "
        f"confidence = {_string(number.confidence)} }}"
        for name, number in named
        if number is not None
    ]


def _gpu(gpu: Gpu, table: str) -> list[str]:
    lines = [f"[{table}]", f"title = {_string(gpu.title)}"]
    lines += [
        _strings(key, getattr(gpu, key)) for key in ("device_names", "device_names_not") if getattr(gpu, key)
    ]
    if gpu.family is not None:
        lines.append(f"family = {_string(gpu.family)}")
    if gpu.capability is not None:
        lines.append(f"capability = {_string(capability_text(gpu.capability))}")
    if gpu.sms is not None:
        lines.append(f"sms = {gpu.sms}")
    lines += _numbers(*((name, number) for name, number in gpu.quantities() if "." not in name))
    return [*lines, f"[{table}.peak_tflops]", *_numbers(*gpu.peak_tflops.items())]


def _own(gpu: Gpu) -> list[str]:
    head, *rest = _gpu(gpu, "gpu")
    return ["", head, f"name = {_string(gpu.name)}", *rest]


def _link(name: str, link: Link) -> list[str]:
    lines = ["", f"[{name}]", f"kind = {_string(link.kind)}"]
    lines += _numbers(*((key, number) for key, number in link.quantities() if "." not in key))
    if link.reached:
        lines += [f"[{name}.reached]", *_numbers(*link.reached.items())]
    return lines
