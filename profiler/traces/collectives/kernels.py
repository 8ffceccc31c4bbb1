"""Which device kernels communicate, by name: our table, and a user's own in front of it."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field

from shardtoll.ledger.foreign.toml_text import TomlError, read_text, toml_tables, why_unread
from shardtoll.ledger.records.errors import UsageError, first_line
from shardtoll.ledger.records.volume import OPS
from shardtoll.profiler.traces.collectives.timed_pattern import TimedPattern, timed
from shardtoll.profiler.traces.collectives.unambiguous import ENDLESS, Ways, is_one_way

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
    entries: list[tuple[re.Pattern[str] | TimedPattern, Kind]] = [*_entries(texts[0], "kernels.toml")]
    if extra is not None:
        try:
            texts.append(read_text(extra, _MOST_BYTES))
        except OSError as error:
            hint = "name a TOML file of kernel names with --kernels"
            raise UsageError(f"{extra} cannot be read ({why_unread(error)})", hint) from None
        entries = [*_timed(_entries(texts[1], str(extra)), str(extra)), *entries]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    return KernelTable(tuple(entries), digest)


def _timed(
    entries: Iterable[tuple[re.Pattern[str], Kind]], where: str
) -> list[tuple[re.Pattern[str] | TimedPattern, Kind]]:
    """Return the entries of a user with a budget of time for those that may be slow."""
    return [
        (timed(pattern, f"kernel table {where}, entry {nth}"), kind)
        for nth, (pattern, kind) in enumerate(entries, 1)
    ]


def _entries(text: str, where: str) -> list[tuple[re.Pattern[str], Kind]]:
    try:
        data = toml_tables(text)
    except TomlError as error:
        raise UsageError(f"kernel table {where} is not TOML ({error})", HINT) from None
    unknown = sorted(set(data) - {"kernel"})
    rows = data.get("kernel")
    if unknown or not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(f"kernel table {where} holds {', '.join(unknown) or 'no [[kernel]] entries'}", HINT)
    return [_entry(row, f"kernel table {where}, entry {nth}") for nth, row in enumerate(rows, 1)]


def _entry(row: Mapping[str, Any], where: str) -> tuple[re.Pattern[str], Kind]:
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


if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")

_MANY: Final = 3
"""A repetition of more, nested ones multiplied, counts as one without an end."""


def compiled(text: str) -> re.Pattern[str]:
    """Return the pattern; re.error if it is none, or if it can take for ever.

    `(a+)+` takes 2 to the power of a name's length if it does not match, and so does `(a|aa)+`. `(\\w+::)*`
    does not: each character tells where in the body it stands.
    """
    pattern = re.compile(text)
    ignores_case = bool(pattern.flags & re.IGNORECASE) or bool(re.search(r"\(\?[a-z]*i", text))
    _look(parser.parse(text), Ways(ignores_case), 1)
    return pattern


def _look(parsed: Any, ways: Ways, times: int) -> None:
    """Raise re.error if a repetition can match one text in several ways; `times`: of those around it."""
    for operation, argument in parsed:
        inner = times
        if str(operation) in _REPEATS:
            inner = min(times * max(int(argument[1]), 1), ENDLESS)
            # An optional part repeats nothing itself.
            if inner > _MANY and int(argument[1]) > 1 and not is_one_way(argument[2], ways):
                raise re.error("a repetition that matches a text in several ways can take for ever")
        for part in _parts(argument):
            _look(part, ways, inner)


def _parts(argument: Any) -> list[Any]:
    """Return the patterns that an operation holds."""
    if hasattr(argument, "data"):
        return [argument]
    each = argument if isinstance(argument, (tuple, list)) else ()
    return [part for inner in each for part in _parts(inner)]
