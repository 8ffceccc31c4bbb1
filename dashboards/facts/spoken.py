"""Which rows of a report's tables each finding speaks of: what a figure lights up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shardtoll.dashboards.facts.row_codes import Bools, Ints
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records.finding import RowTable

_AT_ONCE: Final = 31
"""Findings whose flags are packed into one number together with the code so far."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """Rows of one table by the findings that speak of them."""

    codes: Ints
    """A number for each row; the same findings speak of all rows with one number."""
    flags: Mapping[int, Bools]
    """Number of a finding on the bill -> for each of those whether it speaks of them. Findings that speak
    of no row are left out."""

    def rows(self, number: int) -> Bools:
        """Return for each row of the table whether this finding speaks of it."""
        rows: Bools = self.flags[number][self.codes]
        return rows

    def of_groups(self, groups: Ints, count: int) -> dict[int, list[int]]:
        """Return finding -> which of `count` groups hold a row of it; `groups` has each row's, or -1."""
        pairs = np.unique(self.codes * (count + 1) + groups + 1)
        code, group = pairs // (count + 1), pairs % (count + 1) - 1
        groups_of = {}
        for number, flags in self.flags.items():
            of_it = np.unique(group[flags[code] & (group >= 0)])
            if len(of_it):
                groups_of[number] = [int(each) for each in of_it]
        return groups_of


def spoken(report: Report, name: RowTable = "collectives") -> Spoken:
    """Return which findings speak of which rows of that table."""
    import pandas as pd

    length = report.tables[name].num_rows
    masks = {
        number: mask
        for number, finding in enumerate(report.findings, start=1)
        if getattr(finding.rows, name) and (mask := finding.rows.mask(name, length)).any()
    }
    codes = np.zeros(length, dtype=np.int64)
    every = list(masks.values())
    for begin in range(0, len(every), _AT_ONCE):
        part = every[begin : begin + _AT_ONCE]
        codes = codes << len(part)
        for bit, mask in enumerate(part):
            codes |= mask.astype(np.int64) << bit
        dense, _ = pd.factorize(codes)
        codes = dense.astype(np.int64, copy=False)
    # Codes count up by first appearance, so these stand in their order.
    first = np.flatnonzero(~pd.Series(codes).duplicated().to_numpy())
    return Spoken(codes, {number: mask[first] for number, mask in masks.items()})


def left(findings: Sequence[Finding], kept: Mapping[RowTable, Bools]) -> tuple[Finding, ...]:
    """Return the findings with only those rows of the tables that are marked in `kept`."""
    moved = []
    for finding in findings:
        rows = finding.rows
        for table, mask in kept.items():
            rows = rows.within(table, mask)
        moved.append(finding if rows is finding.rows else replace(finding, rows=rows))
    return tuple(moved)
