"""Which rows of a report's tables each finding speaks of: what a figure lights up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardtoll.dashboards.row_codes import Bools, Ints, row_codes
from shardtoll.dashboards.summary import by_severity
from shardtoll.ledger import Report
from shardtoll.ledger.subject import NAMED, Records, subject
from shardtoll.ledger.tables import to_frame


@dataclass(frozen=True, slots=True)
class Spoken:
    """Rows of one table by the findings that speak of them."""

    codes: Ints
    """A number for each row; rows with one number are spoken of alike."""
    flags: Mapping[int, Bools]
    """Number of a finding on the bill -> for each of those whether it speaks of them. Findings that speak
    of no row are left out."""

    def rows(self, number: int) -> Bools:
        """Return for each row of the table whether this finding speaks of it."""
        found: Bools = self.flags[number][self.codes]
        return found

    def of_groups(self, groups: Ints, count: int) -> dict[int, list[int]]:
        """Return finding -> which of `count` groups hold a row of it; `groups` has each row's, or -1."""
        pairs = np.unique(self.codes * (count + 1) + groups + 1)
        code, group = pairs // (count + 1), pairs % (count + 1) - 1
        found = {}
        for number, flags in self.flags.items():
            of_it = np.unique(group[flags[code] & (group >= 0)])
            if len(of_it):
                found[number] = [int(each) for each in of_it]
        return found


def spoken(report: Report, name: Records = "collectives") -> Spoken:
    """Return what the findings say of the rows of that table, by `ledger.subject`.

    Rows that a place cannot tell apart are looked at once: long runs repeat few of them.
    """
    table = report.tables[name]
    columns = [each for each in ("rank", "op", "caused_by_op", *NAMED) if each in table.column_names]
    codes, first = row_codes(table, columns)
    kinds = to_frame(table.select(columns).take(first))
    flags: dict[int, Bools] = {}
    for number, finding in by_severity(report.findings):
        fits: Bools = subject(finding, kinds, name).to_numpy(dtype=bool)
        if fits.any():
            flags[number] = fits
    return Spoken(codes, flags)
