"""The layers of a model as one place: names that differ in numbers only share a pattern."""

from __future__ import annotations

import re
from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.tally import Line
from shardtoll.ledger import Evidence

_NUMBER: Final = re.compile(r"(?<![^.\s])\d+(?![^.,])")

SHOWN: Final = 20
"""Names listed as evidence; all are counted."""


def number_as_star(name: str) -> str:
    """Return a dotted name with its whole-number parts as `*`."""
    return _NUMBER.sub("*", name)


def pattern(names: pd.Series[Any]) -> pd.Series[Any]:
    """Return dotted names with their whole-number parts as `*`: `blocks.3.mlp2` -> `blocks.*.mlp2`."""
    # Each name once: a long run has millions of rows and a few hundred names.
    places, different = pd.factorize(names)
    known = [*(number_as_star(str(name)) for name in different), None]
    # Unknown is -1, the last one.
    patterns: pd.Series[Any] = pd.Series(
        pd.array(known, dtype="string").take(places % len(known)), index=names.index
    )
    return patterns


class Names:
    """The names of one column among the groups of a tally."""

    def __init__(self, names: pd.Series[Any], code: Any) -> None:
        self._names = names.groupby(code).unique()

    def of(self, line: Line) -> list[str]:
        """Return the different known names in a group's rows, as they first come."""
        return [str(name) for name in self._names[line.code] if not pd.isna(name)]

    def place(self, line: Line, patterned: str) -> str | None:
        """Return the one name of a group, or what its column `patterned` has for several."""
        names = self.of(line)
        return names[0] if len(names) == 1 else line.text(patterned)

    def evidence(self, line: Line, label: str) -> tuple[Evidence, ...]:
        """Return the list of names as evidence, where there is more than one."""
        names = self.of(line)
        if len(names) < 2:
            return ()
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return (Evidence(label, ", ".join(names[:SHOWN]) + more),)
