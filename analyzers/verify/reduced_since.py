"""Whether a run shows that a parameter is reduced now: silence on a gradient nobody reduced is no proof.

The finding goes by structure, and whatever leaves a doubt keeps it silent: a watched run, or a message more
that nobody can name. So the run after has to show what became of the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD
from shardtoll.analyzers.findings.unsynced.gradient_groups import names_in
from shardtoll.ledger import Finding, Report

Row = Mapping[str, Any]


def not_shown(finding: Finding, after: Report) -> str | None:
    """Return why the run after does not show that each of the finding's parameters is reduced now, or no
    longer trained; None if it does."""
    if finding.severity != "warning" or finding.cause != "missing-reduction":
        # Values showed it, and are asked for: see `looked_at`.
        return None
    table = after.tables["parameters"]
    if not pc.any(pc.is_valid(table.column("used_in"))).as_py():
        return (
            'the run after has no surveyed step in which an optimizer stepped: audit(model, level="survey")'
        )
    names = finding.parameters or (finding.where.parameter,)
    rows: dict[str, list[Row]] = {}
    for row in table.filter(pc.is_in(table.column("name"), _strings(names))).to_pylist():
        rows.setdefault(row["name"], []).append(row)
    named, valued = _named(after), _valued(after)
    for name in names:
        if name in rows and name not in named | valued and not _is_settled(rows[name]):
            return f"no record of the run after shows that {name} is reduced: compare it, --checks gradients"
    return None


def _is_settled(rows: Sequence[Row]) -> bool:
    """Whether a wrapper reduces the parameter, a collective of many carried it, or it is frozen."""
    return all(bool(row["reduced_by_wrapper"] or row["carried"] or not row["requires_grad"]) for row in rows)


def _named(after: Report) -> set[str]:
    """Return the parameters that a collective of several ranks names, after the forward."""
    table = after.tables["collectives"]
    carries = pc.and_(
        pc.is_in(table.column("phase"), _strings(BACKWARD)), pc.greater(table.column("group_size"), 1)
    )
    carries = pc.and_(carries, pc.invert(pc.is_in(table.column("op"), _strings(("barrier", *PEER_OPS)))))
    texts = pc.unique(table.filter(carries).column("parameter").drop_null()).to_pylist()
    return {name for text in texts for name in names_in(text)}


def _valued(after: Report) -> set[str]:
    """Return the parameters whose gradients were compared: values find one that nobody reduces."""
    table = after.tables["values"]
    return {*pc.unique(table.filter(pc.equal(table.column("kind"), "gradient")).column("name")).to_pylist()}


def _strings(words: Sequence[str | None]) -> pa.Array:
    return pa.array(words, pa.string())
