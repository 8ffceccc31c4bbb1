"""What a budget names and a run does not have: a renamed module must not pass unseen."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from shardtoll.analyzers.budget_rows import Rows
from shardtoll.analyzers.words import ranks, times
from shardtoll.ledger import Report
from shardtoll.ledger.budget import Budget, glob, matches

_SHOWN = 3


def known_modules(report: Report) -> set[str]:
    """Return every name of a module or parameter that the run has on record."""
    names: set[str] = set()
    for table, columns in (
        ("collectives", ("module", "parameter")),
        ("computes", ("module", "parameter")),
        ("parameters", ("name",)),
    ):
        for column in columns:
            names.update(report.tables[table].column(column).unique().to_pylist())
    return {name for name in names if name is not None}


def warnings_of(report: Report, budget: Budget, rows: Rows) -> Iterator[str]:
    """Yield in a sentence each what the user should know though no limit is exceeded by it."""
    run = report.run
    if run.ranks_missing and "fake" not in (run.backend or ""):
        yield f"{ranks(run.ranks_missing)} of {run.world_size:,} not seen: nothing is said of them"
    if not rows.timed.any() and (budget.limits.max_step_ms or budget.limits.max_exposed_fraction):
        yield "no step has times that can be judged"
    modules = known_modules(report)
    patterns = [*budget.no_implicit]
    for one in budget.sections:
        patterns += [*([one.name] if one.part == "module" else []), *one.no_implicit]
    # `*` and the root name something in every program.
    named = [pattern for pattern in dict.fromkeys(patterns) if pattern not in ("*", "")]
    if named and not modules:
        yield "no module is on record, so what limits modules says nothing; a run of audit() has them"
    for pattern in named if modules else ():
        if not any(matches(pattern, name) for name in modules):
            close = difflib.get_close_matches(pattern, sorted(modules)[:10_000], n=_SHOWN, cutoff=0.3)
            known = f"; there are {', '.join(close)}" if close else ""
            yield f'no module on record is named by "{pattern}", so it limits nothing: was it renamed?{known}'
    groups = {name for one in report.groups for name in (one.name, one.mesh_dim) if name}
    for section in budget.sections:
        if section.part == "group" and not any(glob(section.name, name) for name in groups):
            known = f"; there are {', '.join(sorted(groups)[:10])}" if groups else ""
            yield f'no group or mesh dimension is named by "{section.name}", so it limits nothing{known}'
    if any(one.part == "module" for one in budget.sections) and modules:
        nowhere = (rows.frame["module"].isna() & rows.frame["parameter"].isna()).to_numpy(dtype=bool)
        most = int(rows.per_cell(nowhere).max(initial=0))
        if most:
            yield f"{times(most, 'collective')} of a step belong to no known module, so to no module's limits"
