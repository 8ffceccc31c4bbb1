"""Remedies' code where a wrapper is around the model: how it gets a parameter, and that it averages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.reductions import members
from shardtoll.analyzers.tally import keep
from shardtoll.ledger import Finding

EITHER: Final = re.compile(r"\.grad\)  # op=dist\.ReduceOp\.AVG for a local mean loss")
"""An all_reduce over all ranks that leaves open whether to add up or to average."""
AVERAGED: Final = ".grad, op=dist.ReduceOp.AVG)  # as the wrapper does with the others"


def wrapped(context: Context, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with code that fits the wrapped model.

    DDP's object knows a parameter under its module. A gradient that is reduced by hand over the very
    ranks over which a wrapper averages its siblings has to be averaged too.
    """
    table = context.parameters
    table = keep(table, table["wrapper"].notna() & table["group"].notna())
    if table.empty:
        return list(findings)
    ddp = bool((table["wrapper"] == "DDP").any())
    groups = table[["group", "rank"]].drop_duplicates().itertuples(index=False)
    averaging = {members(context).get((str(group), int(rank))) for group, rank in groups}
    return [_fitting(finding, ddp, finding.ranks in averaging) for finding in findings]


def _fitting(finding: Finding, ddp: bool, averaged: bool) -> Finding:
    if finding.remedy is None or finding.remedy.code is None:
        return finding
    code = finding.remedy.code
    if averaged:
        code = EITHER.sub(AVERAGED, code)
    if ddp:
        code = code.replace("model.get_parameter(", "model.module.get_parameter(")
    return replace(finding, remedy=replace(finding.remedy, code=code))
