"""Which of the shipped fabrics fits what is known of a machine, and how sure that is."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from shardtoll.analyzers.roofline.machines.fabric import UNKNOWN, Fabric
from shardtoll.analyzers.roofline.machines.gpu import named
from shardtoll.analyzers.roofline.machines.load import fabrics_of, known_fabrics
from shardtoll.analyzers.roofline.machines.network_words import NetworkWords

Sureness = Literal["certain", "likely", "assumed", "unknown"]
"""`certain`: what counts is on record. `likely`: the record fits few others. `assumed`: the network between
nodes is not on record, and the fabric is the common one."""

_VENDOR: Final = re.compile(r"(?:aws|azure|gcp|oci)-|polaris|perlmutter|alps|jupiter|frontier|.*-roce")
"""Names of fabrics that only some have; if nothing names them another goes before them."""
_COMMON: Final = ("h100", "a100")
"""Accelerators that are meant if none is named, most common first."""

MOST_OTHERS: Final = 4
"""Alternatives that are named."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A fabric, and why this one."""

    fabric: Fabric
    sureness: Sureness
    why: str
    others: tuple[str, ...] = field(default=())
    """Names of fabrics that fit as well, where the choice matters."""

    def __str__(self) -> str:
        if not self.others:
            return f"{self.sureness}: {self.why}"
        more = "" if len(self.others) <= MOST_OTHERS else ", ..."
        return (
            f"{self.sureness}: {self.why}; it could as well be {', '.join(self.others[:MOST_OTHERS])}{more}"
        )


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts about the machines; None if unknown."""

    device: str | None
    """The accelerator, as its device name says."""
    words: str = ""
    """Text that describes the machines."""
    one_node: bool = False
    size: int | None = None
    """Accelerators of a node."""
    used: int | None = None
    """Accelerators of a node that take part; it may have more."""
    net: NetworkWords = field(default_factory=NetworkWords)


def pick(machine: Known) -> Choice:
    """Return the shipped fabric that fits best: a machine that is named, else its accelerator and network.

    Numbers of a network that is only assumed are guesses, whatever their source says of the network itself.
    """
    choice = _pick(machine)
    if choice.sureness != "assumed" or choice.fabric.inter is None:
        return choice
    return replace(choice, fabric=replace(choice.fabric, inter=choice.fabric.inter.as_guess()))


def _pick(machine: Known) -> Choice:
    device, net = machine.device, machine.net
    fitting = [] if device is None else fabrics_of(device)
    if device is not None and not fitting:
        return Choice(UNKNOWN, "unknown", f"no shipped fabric has a {device}")
    by_name = _by_name(fitting or known_fabrics(), machine.words)
    if by_name is not None:
        return by_name
    if device is None:
        return _by_network(machine)
    sized = [fabric for fabric in fitting if _holds(fabric, machine.size or machine.used)] or fitting
    alone = [fabric for fabric in sized if fabric.inter is None]
    if machine.one_node and alone:
        best = _common(alone, machine)
        others = _names(alone, best)
        return Choice(best, "likely" if others else "certain", f"{device} on one node", others)
    spread = [fabric for fabric in sized if fabric.inter is not None]
    of_kind = [fabric for fabric in spread if fabric.inter and fabric.inter.kind == net.kind]
    if of_kind:
        best = _common(of_kind, machine)
        return Choice(best, "likely", f"{device}, {net.kind} between nodes", _names(of_kind, best))
    if spread:
        best = _common(spread, machine)
        if net.node_gbps(machine.size) is not None:
            return Choice(
                best, "likely", f"{device}, of the network between nodes only its rate is on record"
            )
        why = f"{device}; which network is between nodes is not on record"
        return Choice(best, "assumed", why, _names(spread, best))
    best = _common(alone, machine)
    return Choice(best, "assumed", f"{device}; the network between nodes is not known, nor are costs over it")


def _holds(fabric: Fabric, per_node: int | None) -> bool:
    """Whether a node of the fabric can have so many, a node with more being used in part."""
    size = fabric.ranks_per_node
    return per_node is None or size is None or size.value >= per_node


def plain(text: str) -> str:
    """Return the text as words are looked for in it: case, hyphens and underscores do not matter."""
    return re.sub(r"[-_ ]+", " ", text.casefold())


def _by_name(fabrics: Sequence[Fabric], words: str) -> Choice | None:
    """Return the machine that the text names by its longest word; None if it names none."""
    text = plain(words)
    matches = [
        (len(plain(word)), fabric, word)
        for fabric in fabrics
        for word in fabric.hardware
        if named(text, (plain(word),))
    ]
    if not matches:
        return None
    longest = max(length for length, _, _ in matches)
    fabric, word = next((fabric, word) for length, fabric, word in matches if length == longest)
    return Choice(fabric, "certain", f"`{word}` is named")


def _by_network(machine: Known) -> Choice:
    # Ethernet is everywhere, and says nothing of the machine on it.
    kind = None if machine.net.kind == "ethernet" else machine.net.kind
    of_kind = [
        f for f in known_fabrics() if kind is not None and f.inter is not None and f.inter.kind == kind
    ]
    if not of_kind:
        return Choice(UNKNOWN, "unknown", "neither an accelerator nor a machine that is known is named")
    best = _common(of_kind, machine)
    return Choice(best, "assumed", f"{kind} is named and no accelerator that is known", _names(of_kind, best))


def _common(fabrics: Sequence[Fabric], machine: Known) -> Fabric:
    """Return the best of the fabrics: as many accelerators and cards as are known, then the most common."""
    net = machine.net

    def rank(fabric: Fabric) -> tuple[bool, float, bool, bool, bool, int, float, str]:
        inter = fabric.inter
        size = 8.0 if fabric.ranks_per_node is None else fabric.ranks_per_node.value
        cards = None if inter is None or inter.cards is None else inter.cards.value
        return (
            machine.size is not None and size != machine.size,
            _off(inter.node_gbps.value if inter and inter.node_gbps else None, net.node_gbps(int(size))),
            net.cards is not None and cards != net.cards,
            _VENDOR.match(fabric.name) is not None,
            inter is not None and inter.kind != "infiniband",
            _place(fabric),
            -size,
            fabric.name,
        )

    return min(fabrics, key=rank)


def _off(value: float | None, said: float | None) -> float:
    """Return by what factor a rate is off what was said, in powers of two."""
    return 0.0 if value is None or said is None else round(abs(math.log2(value / said)), 1)


def _place(fabric: Fabric) -> int:
    name = "" if fabric.gpu is None else fabric.gpu.name
    return next((place for place, start in enumerate(_COMMON) if name.startswith(start)), len(_COMMON))


def _names(fabrics: Sequence[Fabric], best: Fabric) -> tuple[str, ...]:
    """Return the names of those that differ from the best in a rate, as most do."""
    return tuple(fabric.name for fabric in fabrics if fabric is not best and _rates(fabric) != _rates(best))


def _rates(fabric: Fabric) -> tuple[object, ...]:
    links = (fabric.intra, fabric.inter)
    return tuple(
        None if link is None else (link.kind, link.rank_gbps.value, link.node_gbps and link.node_gbps.value)
        for link in links
    )
