"""Fabrics from TOML: those shipped here, by name, and the user's own, by path.

A file may name another with `extends = "name"`: what it does not say is taken from there, and so on.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from shardtoll.analyzers.roofline.machines.fabric import Fabric, Link
from shardtoll.analyzers.roofline.machines.gpu import DATA, GPUS_FILE, named
from shardtoll.analyzers.roofline.machines.layer import Layer, read_layer
from shardtoll.analyzers.roofline.machines.table import Table, is_text, read_file, read_toml
from shardtoll.ledger import FabricError

MOST_EXTENDED: Final = 16
"""Files in one chain of `extends`."""

_LINE: Final = re.compile(r"^(device_names|extends) = (.*)$", re.MULTILINE)
_QUOTED: Final = re.compile(r'"([^"]*)"')
"""Lines of shipped files, which have them in this form, and the words in them."""

_NOT_INHERITED: Final = ("measured", "hardware", "backends", "hosts")
"""Fields that hold for one fabric only: those that extend it have other names and other measurements."""


def parse_fabric(text: str, where: str) -> Fabric:
    """Return the fabric a TOML text describes; `where` names it in messages, and is where `extends` starts.

    Raises FabricError, in one line with file, key and what to write, for whatever is wrong.
    """
    return _fabric(_merged(read_layer(read_toml(text, where)), where, (_key(where),)), where)


@cache
def fabric_names() -> tuple[str, ...]:
    """Return the names of the shipped fabrics, sorted."""
    files = (item.name for item in resources.files(DATA).iterdir())
    return tuple(sorted(name[:-5] for name in files if name.endswith(".toml") and name != GPUS_FILE))


def known_fabrics() -> list[Fabric]:
    """Return the shipped fabrics, by name."""
    return [_shipped(name) for name in fabric_names()]


def fabrics_with(key: str) -> list[Fabric]:
    """Return the shipped fabrics whose own file says this key, by name; no other file is parsed."""
    return [_shipped(name) for name in fabric_names() if f"\n{key} = " in _text_of(name)]


def fabrics_of(device: str) -> list[Fabric]:
    """Return the shipped fabrics of this accelerator, by name; files of others are not parsed."""
    likely = (_shipped(name) for name in fabric_names() if named(device, _names_of_device(name)))
    return [fabric for fabric in likely if named(device, fabric.device_names, fabric.device_names_not)]


@cache
def _names_of_device(name: str) -> tuple[str, ...]:
    """Return the `device_names` of a shipped fabric, its own or those of the one that it extends."""
    lines = dict(_LINE.findall(_text_of(name)))
    if "device_names" in lines or "extends" not in lines:
        return tuple(_QUOTED.findall(lines.get("device_names", "")))
    return _names_of_device(_QUOTED.findall(lines["extends"])[0])


def load_fabric(name_or_path: str | Path) -> Fabric:
    """Return a shipped fabric by its name, the one in a TOML file, or that of a TOML text, as runs keep it.

    Whatever ends in `.toml` or has a folder in it is a path; a text has several lines. Raises
    FabricError for an unknown name (with the known ones), a file that cannot be read, and as `parse_fabric`.
    """
    text = str(name_or_path)
    if is_text(text):
        return parse_fabric(text, "on record")
    if _is_path(text):
        return parse_fabric(read_file(Path(text), text), text)
    if text not in fabric_names():
        raise FabricError(f"no fabric named {text!r:.80}", _instead(text))
    return _shipped(text)


@cache
def _shipped(name: str) -> Fabric:
    where = f"{name}.toml"
    return _fabric(_merged(_shipped_layer(name), where, (name,)), where)


@cache
def _shipped_layer(name: str) -> Layer:
    return read_layer(read_toml(_text_of(name), f"{name}.toml"))


@cache
def _text_of(name: str) -> str:
    return resources.files(DATA).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def _instead(name: str) -> str:
    """Return a hint for an unknown name: similar names, and where all are listed."""
    begun = [each for each in fabric_names() if each.startswith(name[:4].casefold())] if name else []
    alike = begun[:6] or difflib.get_close_matches(name, fabric_names(), 4, 0.6) or ["h100x8-ib400"]
    return f"name one that `shardtoll fabrics` lists, as {', '.join(alike)}, or the path of a .toml file"


def _is_path(text: str) -> bool:
    return text.endswith(".toml") or len(Path(text).parts) > 1


def _key(where: str) -> str:
    """Return what tells two files of a chain apart: the name of a shipped one, the path of another."""
    if not Path(where).is_file() and where.removesuffix(".toml") in fabric_names():
        return where.removesuffix(".toml")
    return str(Path(where).resolve())


def _merged(layer: Layer, where: str, chain: tuple[str, ...]) -> Layer:
    """Return a file's layer over those that it extends; `chain` names the files on the way."""
    name = layer.get("extends")
    if name is None:
        return layer
    layer = {key: value for key, value in layer.items() if key != "extends"}
    root = Table(layer, where)
    if _is_path(name):
        # A path in a file is meant from that file's folder, wherever the command runs.
        path = Path(where).parent / name
        where_base, key = str(path), str(path.resolve())
    elif name in fabric_names():
        where_base, key = f"{name}.toml", name
    else:
        raise root.fail(f"`extends` names no fabric {name!r:.60}", _instead(name))
    if key in chain or len(chain) >= MOST_EXTENDED:
        what = "comes back to itself" if key in chain else f"goes on for more than {MOST_EXTENDED} files"
        raise root.fail(f"`extends` {what} at {name!r:.60}", "let the last file stand on its own")
    base = (
        read_layer(read_toml(read_file(path, where_base), where_base))
        if _is_path(name)
        else _shipped_layer(name)
    )
    return _over(_merged(base, where_base, (*chain, key)), layer, where)


def _over(base: Layer, layer: Layer, where: str) -> Layer:
    """Return `base` with what `layer`, from the file `where`, says instead.

    A number is taken whole, never its value from one file and its source from another. A link of
    another kind inherits nothing of the old one. Measured times stay if no link they crossed has changed. A
    provenance that the file does not give is the other file's, marked as changed.
    """
    merged = {key: value for key, value in base.items() if key not in _NOT_INHERITED} | layer
    for key in ("intra", "inter"):
        if key in base and key in layer:
            merged[key] = _link_over(base[key], layer[key])
    if "curves" in base and "curves" not in layer:
        kept = tuple(
            curve
            for curve in base["curves"]
            if "intra" not in layer and (curve.nodes == 1 or "inter" not in layer)
        )
        merged["curves"] = kept
    if "title" not in layer and "title" in base:
        merged["title"] = f"{base['title']}, changed"
    if "provenance" not in layer and "provenance" in base:
        merged["provenance"] = f"{where}, over {base.get('name', 'another')}: {base['provenance']}"
    return merged


def _link_over(base: Layer, link: Layer) -> Layer:
    if link.get("kind", base.get("kind")) != base.get("kind"):
        return link
    reached = {**base.get("reached", {}), **link.get("reached", {})}
    return {**base, **link, **({"reached": reached} if reached else {})}


def _fabric(layer: Layer, where: str) -> Fabric:
    root = Table(layer, where)
    for key in ("name", "title", "provenance"):
        if key not in layer:
            raise root.fail(
                f"`{key}` is missing", f'write {key} = "...", or extends = "..." to take another\'s'
            )
    if "intra" not in layer and "curves" not in layer:
        raise root.fail(
            "no link inside a host", 'write a table [intra], or extends = "..." to take another\'s'
        )
    fields: Layer = dict(layer)
    for key in ("intra", "inter"):
        if key in layer:
            fields[key] = _link(layer[key], key, root)
    return Fabric(**fields)


def _link(layer: Layer, key: str, root: Table) -> Link:
    table = Table(layer, root.where, key)
    for part, example in (("kind", '"infiniband"' if key == "inter" else '"nvswitch"'), ("rank_gbps", "50")):
        if part not in layer:
            raise table.fail(f"`{part}` is missing", f"write {part} = {example} or what it is here")
    link = Link(**layer)
    if link.node_gbps is not None and link.rank_gbps.value > link.node_gbps.value:
        raise table.fail(
            f"a rank's {link.rank_gbps.value:g} GB/s is more than its node's {link.node_gbps.value:g}",
            "write rank_gbps of one rank's own cards and node_gbps of all cards (400 Gb/s is 50 GB/s)",
        )
    return link
