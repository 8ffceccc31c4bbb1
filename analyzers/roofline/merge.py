"""One layer of a fabric over the one it extends."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.roofline.layer import Layer

NOT_INHERITED: Final = ("measured", "hardware", "backends")
"""What is said of one fabric only: those that extend it are not named by its words, nor measured by it."""


def merge(base: Layer, own: Layer, where: str) -> Layer:
    """Return `base` with what `own`, from the file `where`, says instead.

    A number is taken whole, never its value from one file and its source from another. A link of
    another kind inherits nothing of the old one. Measured times stay where no link they crossed has
    changed. What the file does not call itself is said to be the other's, changed.
    """
    merged = {key: value for key, value in base.items() if key not in NOT_INHERITED} | own
    for key in ("intra", "inter"):
        if key in base and key in own:
            merged[key] = _link(base[key], own[key])
    if "curves" in base and "curves" not in own:
        kept = tuple(curve for curve in base["curves"] if "intra" not in own and _stays(curve.nodes, own))
        merged["curves"] = kept
    if "title" not in own and "title" in base:
        merged["title"] = f"{base['title']}, changed"
    if "provenance" not in own and "provenance" in base:
        merged["provenance"] = f"{where}, over {base.get('name', 'another')}: {base['provenance']}"
    return merged


def _stays(nodes: int, own: Layer) -> bool:
    return nodes == 1 or "inter" not in own


def _link(base: Layer, own: Layer) -> Layer:
    if own.get("kind", base.get("kind")) != base.get("kind"):
        return own
    reached = {**base.get("reached", {}), **own.get("reached", {})}
    return {**base, **own, **({"reached": reached} if reached else {})}
