"""One table of a TOML file, read with the file, the key and what to write in every mistake's message."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from shardtoll.analyzers.roofline.machines.quantity import CERTAINTIES, Quantity, unit_in_words
from shardtoll.ledger import FabricError
from shardtoll.ledger.foreign.toml_text import TomlError, read_text, toml_tables, why_unread

MOST_CHARACTERS: Final = 16_000_000
"""Characters or bytes of a file; a calibration of every op and group of a large job stays far below."""

MOST_TEXT: Final = 2_000
"""Length of one string; a longer one is not a source."""

_FORM: Final = '{{ value = {}, source = "...", confidence = "verified" }}'
_EXAMPLES: Final = {
    "fabric": "see `shardtoll fabrics show h100x8-ib400 --toml`",
    "GPU": "see docs/dryrun.md for a GPU file",
}
_OLD: Final = ("base_latency_ns", "default", "step_latency_ns", "bandwidth_gbps")


What = Literal["fabric", "GPU"]
"""Object that a file describes, for messages."""


def is_text(words: str) -> bool:
    """Whether the words are a TOML text, in place of a name or a path: names and paths have one line."""
    return "\n" in words


def read_file(path: Path, where: str, what: What = "fabric") -> str:
    """Return the text of a file; FabricError for a pipe or device, and for one that is far too long."""
    try:
        return read_text(path, MOST_CHARACTERS)
    except OSError as error:
        raise FabricError(
            f"{what} file {where:.120} cannot be read ({why_unread(error)})", "name a readable .toml file"
        ) from error


def read_toml(text: str, where: str, what: What = "fabric") -> Table:
    """Return the root of a TOML text; FabricError if it is none, or far too long."""
    if len(text) > MOST_CHARACTERS:
        raise FabricError(
            f"{what} {where}: {len(text)} characters", f"a {what} has at most {MOST_CHARACTERS}"
        )
    try:
        return Table(toml_tables(text), where, what=what)
    except TomlError as error:
        raise FabricError(f"{what} {where}: not TOML ({error})", _EXAMPLES[what]) from error


class Table:
    """One TOML table; `path` is its dotted name, empty for the root."""

    def __init__(self, data: Mapping[str, Any], where: str, path: str = "", *, what: What = "fabric") -> None:
        self.data = data
        self.where = where
        self.path = path
        self.what: What = what

    def fail(self, what: str, write: str) -> FabricError:
        """Return the error that says what is wrong in this table, and what to write instead."""
        place = f" [{self.path}]" if self.path else ""
        return FabricError(f"{self.what} {self.where}{place}: {what}", write)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def only(self, *allowed: str) -> None:
        """Refuse keys that mean nothing here: a number nobody reads is a mistake unseen."""
        for key in self.data:
            if key in allowed:
                continue
            if key in _OLD:
                raise self.fail(
                    f"`{key}` is of an older form of fabrics",
                    "run `shardtoll calibrate` again, or see the docs",
                )
            close = difflib.get_close_matches(key, allowed, 1, 0.5)
            unit = f", in {unit_in_words(close[0])}" if close and unit_in_words(close[0]) else ""
            hint = f"did you mean `{close[0]}`{unit}?" if close else f"known here: {', '.join(allowed)}"
            raise self.fail(f"unknown key `{key[:60]}`", hint)

    def _get(self, key: str, kind: type, word: str) -> Any:
        value = self.data[key]
        if not isinstance(value, kind):
            raise self.fail(f"`{key}` is {value!r:.60}", f"write {word}")
        return value

    def text(self, key: str) -> str:
        """Return a string of bounded length."""
        value: str = self._get(key, str, f'text, as {key} = "..."')
        if len(value) > MOST_TEXT:
            raise self.fail(f"`{key}` has {len(value)} characters", f"write at most {MOST_TEXT}")
        return value

    def one_of(self, key: str, allowed: Iterable[str]) -> str:
        """Return a string that is one of those allowed."""
        names = tuple(allowed)
        value = self.text(key)
        if value not in names:
            raise self.fail(f"`{key}` is {value!r:.60}", f"write one of {', '.join(names)}")
        return value

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value: bool = self._get(key, bool, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self._get(key, list, f'a list of texts, as {key} = ["..."]')
        if not all(isinstance(value, str) and value and len(value) <= MOST_TEXT for value in values):
            raise self.fail(f"`{key}` is {values!r:.60}", f'write a list of texts, as {key} = ["..."]')
        return tuple(values)

    def table(self, key: str) -> Table:
        """Return a table inside this one."""
        inner = f"{self.path}.{key}" if self.path else key
        data = self._get(key, dict, f"a table, as [{inner}]")
        return Table(data, self.where, inner, what=self.what)

    def tables(self, key: str) -> list[Table]:
        """Return a list of tables, as `[[key]]`."""
        values = self._get(key, list, f"tables, as [[{key}]]")
        if not all(isinstance(value, dict) for value in values):
            raise self.fail(f"`{key}` is {values!r:.60}", f"write tables, as [[{key}]]")
        return [
            Table(value, self.where, f"{key} {number}", what=self.what)
            for number, value in enumerate(values, 1)
        ]

    def numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers, none negative."""
        values = self._get(key, list, f"a list of whole numbers, as {key} = [1, 2]")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
                raise self.fail(f"`{key}` holds {value!r:.60}", "write whole numbers, none negative")
        return list(values)

    def quantity(
        self, key: str, *, zero: bool = False, whole: bool = False, most: float = math.inf
    ) -> Quantity:
        """Return a number with its source. One written bare, without a source, is a GUESS."""
        entry = self.data[key]
        if not isinstance(entry, dict):
            value = self._number(key, entry, zero, whole, most)
            return Quantity(value, f"given without a source in {self.where}", "GUESS")
        inner = self.table(key)
        inner.only("value", "source", "confidence")
        for part in ("value", "source", "confidence"):
            if part not in inner:
                raise self.fail(
                    f"`{key}` has no {part}", f"write {key} = {_FORM.format(entry.get('value', 1))}"
                )
        value = self._number(key, entry["value"], zero, whole, most)
        confidence = inner.one_of("confidence", CERTAINTIES)
        return Quantity(value, inner.text("source"), confidence)  # type: ignore[arg-type]

    def _number(self, key: str, value: object, zero: bool, whole: bool, most: float) -> float:
        unit = unit_in_words(key)
        kind = "a whole number" if whole else "a number"
        wanted = f"write {kind} {'of at least' if zero else 'above'} 0{f' in {unit}' if unit else ''}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(f"`{key}` is {value!r:.60}", wanted)
        try:
            number = float(value)
        except OverflowError:
            raise self.fail(f"`{key}` is too large", wanted) from None
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise self.fail(f"`{key}` is {value!r:.60}", wanted)
        if whole and not number.is_integer():
            raise self.fail(f"`{key}` is {value!r:.60}", wanted)
        if number > most:
            raise self.fail(
                f"`{key}` is {value!r:.60}", f"write at most {most:g}{f' {unit}' if unit else ''}"
            )
        return number
