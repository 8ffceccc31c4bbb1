"""Holds `compare` and `verify` of the same two runs to one count of collectives and bytes."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.compare.compare import compare
from shardtoll.analyzers.verify.verify import verify
from shardtoll.dashboards.compare import rows
from shardtoll.dashboards.verify import verdict
from shardtoll.ledger import Report

Figure = tuple[float | None, float | None, str | None, tuple[bool, bool]]


def agree(before: Report, after: Report) -> dict[str, Figure]:
    """Return the counts of both commands by name, once they are found equal in every field and as words."""
    compared = compare(before, after, ("a", "b"))
    verified = verify(before, after, ("a", "b"))
    names = ("collectives", "message bytes")
    totals = {total.name: total for total in compared.totals if total.name in names}
    figures = {figure.name.partition(" (")[0]: figure for figure in verified.quantities}
    of_compare = {name: (one.before, one.after, one.unit, one.at_least) for name, one in totals.items()}
    of_verify = {
        name: (figures[name].before, figures[name].after, figures[name].unit, figures[name].at_least)
        for name in names
    }
    assert of_compare == of_verify
    for name in names:
        assert rows.change(totals[name])[1:3] == verdict.figure(figures[name])[1:3]
    # What stands in both runs is what the lines of the collectives add up to.
    known = [site for site in compared.sites if None not in (site.calls.before, site.calls.after)]
    assert sum(site.calls.before or 0 for site in known) == pytest.approx(of_compare["collectives"][0])
    assert sum(site.calls.after or 0 for site in known) == pytest.approx(of_compare["collectives"][1])
    return of_compare
