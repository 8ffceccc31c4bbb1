"""What differs between versions of a library: algorithms it lacked, and latencies by which it chose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from shardtoll.analyzers.roofline.table import read_toml

Version = tuple[int, ...]

_DATA: Final = "shardtoll.analyzers.roofline.libraries"
_FILES: Final[dict[str, str]] = {"nccl": "nccl_versions.toml"}
"""Libraries of whose versions something is known."""

_NUMBER: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class Change:
    """What holds for all versions before one."""

    before: Version
    without: tuple[str, ...]
    """Algorithms that those versions did not have."""
    chosen_by_us: Mapping[str, float]
    """By the name of a constant, as `near_hop_us.tree.Simple`: how many us more than now those versions took
    it for when they chose an algorithm. What the hop really takes is not said by it."""


def parse_version(text: str | None) -> Version | None:
    """Return `2.21.5+cuda12.4` as (2, 21, 5); None where there is no version in the text."""
    found = None if text is None else _NUMBER.search(text)
    return None if found is None else tuple(int(part) for part in found.groups() if part is not None)


def changes_since(library: str, version: Version | None) -> tuple[Change, ...]:
    """Return what differs in that version from today's; nothing where the version is not known."""
    if version is None:
        return ()
    return tuple(change for change in _changes(library) if version < change.before)


@cache
def _changes(library: str) -> tuple[Change, ...]:
    return tuple(_read(_FILES[library])) if library in _FILES else ()


def _read(name: str) -> Iterator[Change]:
    text = resources.files(_DATA).joinpath(name).read_text(encoding="utf-8")
    for entry in read_toml(text, name).data["change"]:
        before = parse_version(entry["before"])
        assert before is not None, f"{name}: {entry['before']}"
        later = {key: both["then"] - both["now"] for key, both in entry.get("chosen_by_us", {}).items()}
        yield Change(before, tuple(entry.get("without", ())), later)
