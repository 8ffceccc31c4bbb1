"""A budget: what a training step may send at most, as `budget.toml` says it.

Every limit is per step and rank, and holds on the rank and in the step where the figure is largest.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from shardtoll.ledger.foreign.toml_text import TomlError, read_text, toml_tables, why_unread
from shardtoll.ledger.records.errors import UsageError
from shardtoll.ledger.records.finding import KINDS
from shardtoll.ledger.records.record import PHASES

Part: TypeAlias = Literal["module", "group", "phase"]
PARTS: Final[tuple[str, ...]] = get_args(Part)

MOST_BYTES: Final = 1_000_000
"""Longest budget file that is read: one of hand-written limits is a hundred times shorter."""
MOST_ENTRIES: Final = 10_000
"""Most sections or patterns of a budget."""
LONGEST_NAME: Final = 1_000
_UNITS: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_SIZE: Final = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")
_HINT: Final = "docs/budgets.md has every key; `shardtoll budget init RUN` writes a budget from a run"


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits of one step on one rank; None: no limit."""

    max_collectives: int | None = None
    max_wire_bytes: int | None = None
    """Bytes that a rank must send for the algorithm assumed (see `volume.wire_bytes`)."""
    max_exposed_fraction: float | None = None
    """Exposed communication as a part of the step, capture's own work left out of the step: 0 to 1."""
    max_step_ms: float | None = None
    """How long a step takes, capture's own work left out. Only for the whole step, not for a section."""

    def given(self) -> dict[str, int | float]:
        """Return the limits that are set, by name."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Section:
    """Limits of a part of the step: of modules, of a group or of a phase."""

    part: Part
    name: str
    """A module pattern (see `matches`), a mesh dimension or group name, or a phase."""
    limits: Limits
    no_implicit: tuple[str, ...] = ()
    """As `Budget.no_implicit`, of the collectives of this part."""
    forbid: tuple[str, ...] = ()
    """As `Budget.forbid`, of the findings of a place in this part."""

    def label(self) -> str:
        """Return the section as a budget writes it: `module "layers.*"`."""
        return f'{self.part} "{self.name}"'


@dataclass(frozen=True, slots=True)
class Budget:
    """All limits of a run."""

    limits: Limits = Limits()
    """Limits of the whole step."""
    sections: tuple[Section, ...] = ()
    no_implicit: tuple[str, ...] = ()
    """Module patterns. The framework may insert no collective into these modules."""
    forbid: tuple[str, ...] = ()
    """Kinds of findings that must not be there, of whatever severity."""
    skip_steps: int = 0
    """How many of a run's first steps are not judged, as they set things up."""

    def is_empty(self) -> bool:
        """Whether it limits nothing."""
        return not (self.limits.given() or self.sections or self.no_implicit or self.forbid)


TOP: Final = (*(limit.name for limit in fields(Limits)), "no_implicit", "forbid", "skip_steps", *PARTS)
"""Keys of a budget."""
OF_SECTION: Final = (
    "max_collectives",
    "max_wire_bytes",
    "max_exposed_fraction",
    "no_implicit",
    "forbid",
)
"""Keys of a section."""


def read_budget(path: Path) -> Budget:
    """Return the budget in a TOML file; UsageError with what is wrong and where."""
    try:
        text = read_text(path, MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"the budget {path} cannot be read ({why_unread(error)})",
            "`shardtoll budget init RUN` writes one",
        ) from error
    try:
        document = toml_tables(text)
    except TomlError as error:
        raise UsageError(f"the budget {path} is no TOML ({error})", _HINT) from error
    return budget_of(document, str(path))


def budget_of(document: Mapping[str, Any], where: str) -> Budget:
    """Return the budget that a TOML document says; `where` names it in messages. UsageError if it cannot."""
    _known(document, TOP, where)
    sections: list[Section] = []
    for part in PARTS:
        tables = _table(document.get(part, {}), f"{where}: {part}")
        _few(tables, f"{where}: {part}")
        for name, values in tables.items():
            place = f'{where}: [{part}."{name}"]'
            _name(name, place)
            if part == "phase" and name not in PHASES:
                raise UsageError(f"{place}: no phase has this name{_near(name, PHASES)}", _HINT)
            table = _table(values, place)
            _known(table, OF_SECTION, place)
            limits, clean, forbid = _limits(table, place), _clean(table, place), _forbid(table, place)
            if not (limits.given() or clean or forbid):
                raise UsageError(f"{place} limits nothing", f"give one of {', '.join(OF_SECTION)}")
            sections.append(Section(part, name, limits, clean, forbid))  # type: ignore[arg-type]
    skip = document.get("skip_steps", 0)
    if isinstance(skip, bool) or not isinstance(skip, int) or not 0 <= skip <= 10**9:
        raise UsageError(f"{where}: skip_steps is {skip!r}, no whole number from 0", _HINT)
    return Budget(
        limits=_limits(document, where),
        sections=tuple(sections),
        no_implicit=_clean(document, where),
        forbid=_forbid(document, where),
        skip_steps=skip,
    )


def matches(pattern: str, name: str) -> bool:
    """Return whether a dotted name is one that the pattern names, or is inside of one.

    `*` stands for one part of a name, or for some letters of it: `layers.*` names `layers.0`, and with it
    `layers.0.mlp`. A `*` alone names everything, the root module too. The empty pattern is the root module
    and nothing inside.
    """
    if pattern == "*" or not pattern:
        return bool(pattern) or not name
    wanted, parts = pattern.split("."), name.split(".")
    return len(parts) >= len(wanted) and all(map(glob, wanted, parts))


def glob(pattern: str, text: str) -> bool:
    """Return whether the text is the pattern with each `*` replaced by any letters, or none.

    The first place where a piece fits is as good as any later one, so this never goes back. A budget may come
    from anywhere, and a regular expression of many `*` would take for ever.
    """
    head, *pieces = pattern.split("*")
    if not pieces:
        return text == pattern
    *middle, tail = pieces
    if len(text) < len(head) + len(tail) or not (text.startswith(head) and text.endswith(tail)):
        return False
    begin, end = len(head), len(text) - len(tail)
    for piece in middle:
        begin = text.find(piece, begin, end)
        if begin < 0:
            return False
        begin += len(piece)
    return True


def size_in_bytes(value: object, where: str) -> int:
    """Return a size given as a whole number of bytes or as text, as `1.5 GB` (1e9 bytes); else UsageError."""
    if isinstance(value, str):
        size = _SIZE.fullmatch(value)
        if size is None or size.group(2) not in _UNITS:
            raise UsageError(
                f"{where} is {_short(value)}, no size",
                f'write bytes as a whole number, or as "1.5 GB": {", ".join(_UNITS)}, each 1,000 of the last',
            )
        exact = float(size.group(1).replace("_", "")) * _UNITS[size.group(2)]
        return _whole(math.floor(exact) if math.isfinite(exact) else exact, where)
    return _whole(value, where)


def _limits(values: Mapping[str, Any], where: str) -> Limits:
    count, size = values.get("max_collectives"), values.get("max_wire_bytes")
    fraction, step_ms = values.get("max_exposed_fraction"), values.get("max_step_ms")
    return Limits(
        None if count is None else _whole(count, f"{where}: max_collectives"),
        None if size is None else size_in_bytes(size, f"{where}: max_wire_bytes"),
        None if fraction is None else _number(fraction, f"{where}: max_exposed_fraction", most=1),
        None if step_ms is None else _number(step_ms, f"{where}: max_step_ms", least_is_more_than_0=True),
    )


def _clean(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    return _names(values.get("no_implicit", []), f"{where}: no_implicit")


def _forbid(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    kinds = _names(values.get("forbid", []), f"{where}: forbid")
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"{where}: forbid has no kind of finding {kind!r}{_near(kind, KINDS)}", _HINT)
    return kinds


def _whole(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise UsageError(f"{where} is {_short(value)}, no whole number from 0", _HINT)
    return value


def _number(
    value: object, where: str, *, most: float = math.inf, least_is_more_than_0: bool = False
) -> float:
    # A whole number of a thousand digits is no float.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e18:
        raise UsageError(f"{where} is {_short(value)}, no number", _HINT)
    number = float(value)
    if not math.isfinite(number) or not 0 <= number <= most or (least_is_more_than_0 and number == 0):
        span = f"from 0 to {most:g}" if math.isfinite(most) else "above 0 and finite"
        raise UsageError(f"{where} is {_short(value)}, not {span}", _HINT)
    return number


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is {_short(value)}, no section", _HINT)
    return value


def _names(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UsageError(f"{where} is {_short(value)}, no list of names", _HINT)
    _few(value, where)
    for name in value:
        _name(name, where)
    return tuple(dict.fromkeys(value))


def _name(value: object, where: str) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise UsageError(f"{where} holds {_short(value)}, no name of at most {LONGEST_NAME} letters", _HINT)


def _few(values: Mapping[str, Any] | Sequence[Any], where: str) -> None:
    if len(values) > MOST_ENTRIES:
        raise UsageError(f"{where} has {len(values):,} entries, more than {MOST_ENTRIES:,}", _HINT)


def _known(values: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    for key in values:
        if key not in tuple(names):
            raise UsageError(f"{where}: no key {_short(key)}{_near(str(key), names)}", _HINT)


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:LONGEST_NAME], list(names), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "a number of more than 18 digits"
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:60]}…"
