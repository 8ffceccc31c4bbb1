"""Fabrics from TOML: those shipped here, by name, and the user's own, by path."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from shardtoll.analyzers.roofline.fabric import CERTAINTIES, Fabric, Link, Quantity, Rates
from shardtoll.ledger import FabricError
from shardtoll.ledger.volume import OPS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_DATA = "shardtoll.analyzers.roofline.fabrics"
_HINT = "see a shipped fabric for the form: every number is {value, source, confidence}"


class _Table:
    """One TOML table that is read with the place of each mistake in the message."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def fail(self, what: str) -> FabricError:
        return FabricError(f"fabric {self.where}: {what}", _HINT)

    def only(self, *allowed: str) -> None:
        for key in self.data:
            if key not in allowed:
                raise self.fail(f"unknown key `{key}` (known: {', '.join(allowed)})")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        if key not in self.data:
            if default is None:
                raise self.fail(f"`{key}` is missing")
            return default
        value = self.data[key]
        if not isinstance(value, kind):
            raise self.fail(f"`{key}` must be a {kind.__name__}, not {type(value).__name__} {value!r}")
        return value

    def table(self, key: str) -> _Table:
        return _Table(self.get(key, dict), f"{self.where} [{key}]")

    def strings(self, key: str) -> tuple[str, ...]:
        values = self.get(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise self.fail(f"`{key}` must hold strings, not {values!r}")
        return tuple(values)

    def number(self, key: str, *, zero: bool) -> Quantity:
        entry = self.table(key)
        entry.only("value", "source", "confidence")
        value = entry.data.get("value")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(f"`{key}` needs a number as value, not {value!r}")
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise self.fail(f"`{key}` is {value}, it must be {'at least' if zero else 'above'} 0")
        confidence = entry.get("confidence", str)
        if confidence not in CERTAINTIES:
            raise self.fail(f"`{key}` has confidence {confidence!r}, not one of {', '.join(CERTAINTIES)}")
        return Quantity(float(value), entry.get("source", str), confidence)


def _rates(table: _Table) -> Rates:
    table.only("step_latency_ns", "bandwidth_gbps")
    return Rates(table.number("step_latency_ns", zero=True), table.number("bandwidth_gbps", zero=False))


def _link(table: _Table) -> Link:
    table.only("base_latency_ns", "default", *OPS)
    per_op = {op: _rates(table.table(op)) for op in OPS if op in table.data}
    return Link(table.number("base_latency_ns", zero=True), _rates(table.table("default")), per_op)


def parse_fabric(text: str, where: str) -> Fabric:
    """Return the fabric a TOML text describes; `where` names it in messages.

    Raises FabricError for malformed TOML and for a number that is missing, of a wrong type or negative.
    """
    try:
        root = _Table(tomllib.loads(text), where)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FabricError(f"fabric {where}: not TOML ({error})", _HINT) from error
    root.only(
        "name", "title", "provenance", "measured", "ranks_per_node", "intra", "inter",
        "device_names", "device_names_not", "backends",
    )  # fmt: skip
    return Fabric(
        name=root.get("name", str),
        title=root.get("title", str),
        provenance=root.get("provenance", str),
        measured=root.get("measured", bool, False),
        ranks_per_node=root.number("ranks_per_node", zero=False) if "ranks_per_node" in root.data else None,
        intra=_link(root.table("intra")),
        inter=_link(root.table("inter")) if "inter" in root.data else None,
        device_names=root.strings("device_names"),
        device_names_not=root.strings("device_names_not"),
        backends=root.strings("backends"),
    )


def known_fabrics() -> list[Fabric]:
    """Return the shipped fabrics, by name."""
    files = (item for item in resources.files(_DATA).iterdir() if item.name.endswith(".toml"))
    fabrics = [parse_fabric(item.read_text(encoding="utf-8"), item.name) for item in files]
    return sorted(fabrics, key=lambda fabric: fabric.name)


def load_fabric(name_or_path: str | Path) -> Fabric:
    """Return a shipped fabric by its name, or the one in a TOML file.

    Whatever ends in `.toml` or has a folder in it is a path. Raises FabricError for an unknown name
    (with the known ones), a file that is missing or unreadable, and as `parse_fabric`.
    """
    text = str(name_or_path)
    path = Path(text)
    if path.suffix != ".toml" and len(path.parts) <= 1:
        shipped = known_fabrics()
        for fabric in shipped:
            if fabric.name == text:
                return fabric
        names = ", ".join(fabric.name for fabric in shipped)
        raise FabricError(f"no fabric named {text!r}", f"use one of {names}, or the path of a .toml file")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "not UTF-8 text") or str(error)
        raise FabricError(
            f"fabric file {path} cannot be read ({reason})", "name a readable .toml file"
        ) from error
    return parse_fabric(content, str(path))
