"""Which device kernels communicate, by name: our table, and a user's own in front of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from shardtoll.ledger.foreign.toml_text import TomlError, read_text, toml_tables, why_unread
from shardtoll.ledger.records.errors import UsageError, first_line
from shardtoll.ledger.records.volume import OPS

if TYPE_CHECKING:
    from shardtoll.profiler.traces.collectives.timed_pattern import TimedPattern

What = Literal["compute", "communication", "lookalike"]
WHATS: Final[tuple[What, ...]] = ("compute", "communication", "lookalike")
HINT: Final = (
    "write [[kernel]] on a line, and below it pattern = '^my_allreduce', op = \"all_reduce\" and "
    'library = "mine"'
)


class Kind(Struct, frozen=True):
    """Kind of a kernel; `op` is None if its name does not show it."""

    what: What
    op: str | None = None
    library: str | None = None


_Compiled: TypeAlias = Callable[[str], re.Pattern[str]]

COMPUTE: Final = Kind("compute")

_MOST_BYTES: Final = 1_000_000
"""Size of a user's own table; ours has some thousand."""
_LONGEST: Final = 2000
"""Patterns are tried on that much of a name: some take time by its length squared."""


class KernelTable(Struct):
    """Patterns in order; each distinct name is looked up once."""

    entries: tuple[tuple[re.Pattern[str] | TimedPattern, Kind], ...]
    digest: str
    """Changes with the table: results made with another table are not reused."""
    _known: dict[str, Kind] = field(default_factory=dict)

    def classify(self, name: str) -> Kind:
        """Return what the kernel of that name is: the first entry that matches, else compute.

        Raises UsageError if a pattern of the user's own takes too long.
        """
        kind = self._known.get(name)
        if kind is None:
            start = name[:_LONGEST]
            kinds = (kind for pattern, kind in self.entries if pattern.search(start))
            kind = self._known[name] = next(kinds, COMPUTE)
        return kind


def load_table(extra: Path | None = None) -> KernelTable:
    """Return our table with the user's TOML file in front; UsageError if that is malformed."""
    texts = [
        files("shardtoll.profiler.traces.collectives").joinpath("kernels.toml").read_text(encoding="utf-8")
    ]
    entries: list[tuple[re.Pattern[str] | TimedPattern, Kind]] = [
        *_entries(texts[0], "kernels.toml", re.compile)
    ]
    if extra is not None:
        from shardtoll.profiler.traces.collectives.patterns import compiled

        try:
            texts.append(read_text(extra, _MOST_BYTES))
        except OSError as error:
            hint = "name a TOML file of kernel names with --kernels"
            raise UsageError(f"{extra} cannot be read ({why_unread(error)})", hint) from None
        entries = [*_timed(_entries(texts[1], str(extra), compiled), str(extra)), *entries]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    return KernelTable(tuple(entries), digest)


def _timed(
    entries: Iterable[tuple[re.Pattern[str], Kind]], where: str
) -> list[tuple[re.Pattern[str] | TimedPattern, Kind]]:
    """Return the entries of a user with a budget of time for those that may be slow."""
    from shardtoll.profiler.traces.collectives.timed_pattern import timed

    return [
        (timed(pattern, f"kernel table {where}, entry {nth}"), kind)
        for nth, (pattern, kind) in enumerate(entries, 1)
    ]


def _entries(text: str, where: str, compiled: _Compiled) -> list[tuple[re.Pattern[str], Kind]]:
    """Return a table's entries; `compiled` checks their patterns, which of ours a test does once for all."""
    try:
        data = toml_tables(text)
    except TomlError as error:
        raise UsageError(f"kernel table {where} is not TOML ({error})", HINT) from None
    unknown = sorted(set(data) - {"kernel"})
    rows = data.get("kernel")
    if unknown or not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(f"kernel table {where} holds {', '.join(unknown) or 'no [[kernel]] entries'}", HINT)
    return [_entry(row, f"kernel table {where}, entry {nth}", compiled) for nth, row in enumerate(rows, 1)]


def _entry(row: Mapping[str, Any], where: str, compiled: _Compiled) -> tuple[re.Pattern[str], Kind]:
    unknown = sorted(set(row) - {"pattern", "what", "op", "library"})
    if unknown:
        raise UsageError(f"{where}: unknown key {', '.join(unknown)}", HINT)
    _texts(row, ("pattern", "what", "op", "library"), where)
    try:
        pattern = compiled(row["pattern"])
    except KeyError:
        raise UsageError(f"{where}: pattern is missing", HINT) from None
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{where}: pattern is no regular expression ({first_line(error)})", HINT) from None
    what = row.get("what", "communication")
    if what not in WHATS:
        raise UsageError(f"{where}: what = {what!r} is none of {', '.join(WHATS)}", HINT)
    op = row.get("op")
    if op is not None and (op not in OPS or what != "communication"):
        raise UsageError(f"{where}: op = {op!r} is none of {', '.join(OPS)}, or not of communication", HINT)
    return pattern, Kind(what, op, row.get("library"))


def _texts(row: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    wrong = [key for key in keys if key in row and not isinstance(row[key], str)]
    if wrong:
        raise UsageError(f"{where}: {', '.join(wrong)} must be text", HINT)
