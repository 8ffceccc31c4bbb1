"""The constants of a collective library: latencies, reached shares, ramp; what differs between versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final, cast

from msgspec import Struct

from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.machines.quantity import Certainty, Quantity
from shardtoll.analyzers.roofline.machines.table import read_toml

_DATA: Final = "shardtoll.analyzers.roofline.libraries"
Version = tuple[int, ...]

_VERSION_FILES: Final[dict[str, str]] = {"nccl": "nccl_versions.toml"}
"""Libraries of whose versions something is known."""

_NUMBER: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")

Protocol = str
"""One of NCCL's protocols, `LL`, `LL128`, `Simple`; empty for a library that has none."""


class Change(Struct, frozen=True):
    """Differences that hold for all versions before one."""

    before: Version
    without: tuple[str, ...]
    """Algorithms that those versions did not have."""
    chosen_by_us: Mapping[str, float]
    """Overrating by the name of a constant, as `near_hop_us.tree.Simple`: by how many us more than now those
    versions rated it when they chose an algorithm. This does not change the time that the hop really
    takes."""


def parse_version(text: str | None) -> Version | None:
    """Return `2.21.5+cuda12.4` as (2, 21, 5); None if the text has no version."""
    match = None if text is None else _NUMBER.search(text)
    return None if match is None else tuple(int(part) for part in match.groups() if part is not None)


def changes_since(library: str, version: Version | None) -> tuple[Change, ...]:
    """Return the differences of that version from today's; empty if the version is unknown."""
    if version is None:
        return ()
    return tuple(change for change in _changes(library) if version < change.before)


@cache
def _changes(library: str) -> tuple[Change, ...]:
    return tuple(_read(_VERSION_FILES[library])) if library in _VERSION_FILES else ()


def _read(name: str) -> Iterator[Change]:
    text = resources.files(_DATA).joinpath(name).read_text(encoding="utf-8")
    for entry in read_toml(text, name).data["change"]:
        before = parse_version(entry["before"])
        assert before is not None, f"{name}: {entry['before']}"
        later = {key: both["then"] - both["now"] for key, both in entry.get("chosen_by_us", {}).items()}
        yield Change(before, tuple(entry.get("without", ())), later)


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """Named constants of one library. Equal only to itself, so that it can key a cache."""

    name: str
    protocols: tuple[Protocol, ...]
    algorithms: tuple[str, ...]
    """Names in `model.ALGORITHMS`."""
    numbers: Mapping[str, Quantity]
    """By dotted name: the constant, and what it holds for, from the general to the special.

    `base_us.ring.LL`: time before the first hop. `near_hop_us.ring.LL`, `net_hop_us.ring.LL`: one hop inside
    a host, between hosts. `latency_factor.ampere`: on times inside a host. `net_factor.efa`: on hops between
    hosts. `plugin_us.efa`: latency of the network's plugin. `near_share.ring.hopper`, `net_share.ring.efa`:
    share of the physical rate that large messages reach. `protocol_share.near.LL`: of that, with a protocol.
    `ramp.ring.near`: weight of the pipeline's filling (see `candidate`). All dimensionless but for `_us`.
    """
    changes: tuple[Change, ...]
    """Differences of its version from today's."""
    generations: Mapping[str, str]
    """Generation of accelerators by `Gpu.name`, as `h100-sxm` = `hopper`."""

    def number(self, name: str, *special: str | None, otherwise: float | None = None) -> float:
        """Return the constant for the first of `special` it is known for, else its `default`.

        Raises KeyError where there is neither and no `otherwise`.
        """
        constant = self.find(name, *special)
        if constant is not None:
            return self.numbers[constant].value
        if otherwise is None:
            raise KeyError(f"{self.name} has no {name} for {special}")
        return otherwise

    def find(self, name: str, *special: str | None) -> str | None:
        """Return the key in `numbers` that `number` takes; None if there is none."""
        for key in (*special, "default"):
            if key is not None and f"{name}.{key}" in self.numbers:
                return f"{name}.{key}"
        return None

    def chosen_by_us(self, name: str) -> float:
        """Return by how much this version overrates a constant when it chooses an algorithm."""
        return sum(change.chosen_by_us.get(name, 0.0) for change in self.changes)

    def measured_on(self, kind: str) -> bool:
        """Whether the constants of this kind of link were learned from anything measured."""
        number = self.numbers.get(f"known.{kind}")
        return number is not None and number.confidence != "GUESS"

    def generation(self, fabric: Fabric) -> str | None:
        """Return the generation of the fabric's accelerator; None if it has none or an unlisted one."""
        return None if fabric.gpu is None else self.generations.get(fabric.gpu.name)


@dataclass(frozen=True, slots=True, eq=False)
class Watched(Library):
    """A library that keeps the names of the guesses it was asked for."""

    guesses: list[str] = field(default_factory=list)

    def find(self, name: str, *special: str | None) -> str | None:
        """Return the key as a library does, and keep it if its number is a guess."""
        constant = Library.find(self, name, *special)
        if (
            constant is not None
            and self.numbers[constant].confidence == "GUESS"
            and constant not in self.guesses
        ):
            self.guesses.append(constant)
        return constant


def watched(library: Library) -> Watched:
    """Return the library with nothing asked yet."""
    return Watched(
        library.name,
        library.protocols,
        library.algorithms,
        library.numbers,
        library.changes,
        library.generations,
    )


@cache
def load_library(name: str, version: str | None = None) -> Library:
    """Return the shipped constants of `nccl`, `rccl` or `gloo`; those of today's if none is named."""
    text = resources.files(_DATA).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    data = read_toml(text, f"{name}.toml").data
    numbers = dict(_flat("", data["numbers"]))
    base = load_library(data["extends"]) if "extends" in data else None
    if base is not None:
        numbers = {**base.numbers, **numbers}
    changes = changes_since(name, parse_version(version))
    missing = {algorithm for change in changes for algorithm in change.without}
    return Library(
        name=name,
        protocols=tuple(data["protocols"]),
        algorithms=tuple(each for each in data["algorithms"] if each not in missing),
        changes=changes,
        numbers=numbers,
        generations=data.get("generations", base.generations if base is not None else {}),
    )


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Quantity]]:
    for key, value in table.items():
        if "value" in value:
            confidence = cast(Certainty, value["confidence"])
            yield prefix + key, Quantity(float(value["value"]), value["source"], confidence)
        else:
            yield from _flat(f"{prefix}{key}.", value)
