"""The layers of a model as one place: names that differ in numbers only share a pattern."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.shared.tally import Line
from shardtoll.ledger import Evidence
from shardtoll.ledger.records.layers import pattern

__all__ = ["SHOWN", "Names", "pattern"]

SHOWN: Final = 20
"""Names listed as evidence; all are counted."""


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

    def several(self, line: Line) -> tuple[str, ...]:
        """Return all names of a group that has more than one, else none."""
        names = self.of(line)
        return tuple(names) if len(names) > 1 else ()

    def evidence(self, line: Line, label: str) -> tuple[Evidence, ...]:
        """Return the list of names as evidence, where there is more than one."""
        names = self.of(line)
        if len(names) < 2:
            return ()
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return (Evidence(label, ", ".join(names[:SHOWN]) + more),)
