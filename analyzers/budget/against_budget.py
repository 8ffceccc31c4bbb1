"""Holding a run to a budget: each limit against the rank and step where the figure is largest."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.budget.budget_rows import Floats, Mask, Rows, host_waits, is_fake, rows_of
from shardtoll.analyzers.budget.forbidden import forbidden
from shardtoll.analyzers.budget.implicit import Scope, implicit
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.answers.budget import Budget, Limits, Section, glob, matches
from shardtoll.ledger.answers.overrun import Answer, BudgetCheck, Overrun
from shardtoll.ledger.report.report import JUDGE
from shardtoll.ledger.words.human import duration, ranks, size
from shardtoll.ledger.words.human import plural as times

_SHOWN: Final = 3
"""Names that are offered in place of one that is not on record."""
BROKEN: Final = ("capture-stopped",)
"""Notices that say that the record is not whole."""
FAKE: Final = "a fake process group transfers nothing, so its times say nothing"


@JUDGE.entry
def judge(
    report: Report,
    budget: Budget,
    *,
    run: str = "the run",
    budget_name: str = "the budget",
    allow_unknown: bool = False,
) -> BudgetCheck:
    """Return every limit that is exceeded, or may be.

    Figures are per step and rank, and judged on the rank and in the step where they are largest. An unknown
    value counts as over, unless `allow_unknown`. Raises UsageError if no step is left to judge.
    """
    rows = rows_of(report, budget.skip_steps)
    if not len(rows.step):
        skipped = f" after the first {budget.skip_steps}" if budget.skip_steps else ""
        raise UsageError(
            f"{run} has no finished step{skipped}, so there is nothing to hold to {budget_name}",
            "record at least one whole step, or lower skip_steps",
        )
    overruns = [*_broken(report)]
    parts = list(_parts(report, budget, rows))
    for part in parts:
        overruns += _over(part, rows)
    for part in parts:
        overruns += implicit(rows, part.no_implicit, part.scope)
    overruns += forbidden(report.findings, budget.forbid)
    for section in budget.sections:
        overruns += forbidden(report.findings, section.forbid, section)
    asking: list[Budget | Section] = [budget, *budget.sections]
    limits = sum(len(part.limits.given()) + len(part.no_implicit) + len(part.forbid) for part in asking)
    return BudgetCheck(
        run=run,
        budget=budget_name,
        overruns=tuple(overruns),
        warnings=tuple(warnings_of(report, budget, rows)),
        limits=limits,
        steps=len(set(rows.step.tolist())),
        ranks=len(set(rows.rank.tolist())),
        unknown_allowed=allow_unknown,
    )


class _Part(Struct, frozen=True):
    """The scope of one set of limits."""

    label: str | None
    limits: Limits
    rows: Mask
    lacking: Floats
    """Per cell: the collectives that belong to it and are counted only, not listed."""
    perhaps: Floats
    """Per cell: collectives that may belong to it."""
    no_times: str | None
    """Why times are unknown; None if they are known."""
    no_implicit: tuple[str, ...]
    nameless: Mask
    """The rows of no known module that may belong to it."""
    unlisted: Floats
    """Per cell: the collectives that may belong to it and are counted only."""
    exposed: tuple[Floats, Floats] | None = None
    """Exposed ns per cell, and the number of collectives whose exposed time is unknown. Set only for the
    whole step, if it is known without the rows."""

    @property
    def scope(self) -> Scope:
        """The part of the step without implicit collectives."""
        return Scope(self.label, self.rows, self.nameless, self.unlisted)


def _parts(report: Report, budget: Budget, rows: Rows) -> Iterator[_Part]:
    run = report.run
    no_times = FAKE if is_fake(run) else None
    every, none = np.ones(len(rows.frame), dtype=bool), np.zeros(len(rows.step))
    lacking = rows.all_lacking().astype(np.float64)
    # The host's blocked time is known, except in cells that do not report it.
    whole = (rows.exposed_ns, rows.exposed_lacks) if host_waits(run) else None
    nameless = rows.nowhere
    top = budget.no_implicit
    yield _Part(None, budget.limits, every, lacking, none, no_times, top, nameless, lacking, whole)
    for section in budget.sections:
        mine, perhaps, unknown = none, lacking, nameless
        if section.part == "module":
            wanted = _inside(section.name)
            inside = rows.named("module", wanted)
            # If a collective has no module, the parameter's name decides.
            inside |= rows.frame["module"].isna().to_numpy(dtype=bool) & rows.named("parameter", wanted)
            if nameless.all():
                perhaps = lacking + rows.per_cell(nameless)
        elif section.part == "group":
            called = _called(section.name)
            inside = rows.named("group", called) | rows.named("mesh_dim", called)
            names = {
                group.name for group in report.groups if called(group.name) or called(group.mesh_dim or "")
            }
            mine = sum((rows.lacking[name].astype(np.float64) for name in names & rows.lacking.keys()), none)
            perhaps = none
        else:
            inside = rows.named("phase", section.name.__eq__)
        if section.part != "module":
            unknown = nameless & inside
        unlisted = mine if section.part == "group" else lacking
        yield _Part(
            section.label(), section.limits, inside, mine, perhaps, no_times,
            section.no_implicit, unknown, unlisted,
        )  # fmt: skip


def _inside(pattern: str) -> Callable[[str], bool]:
    return lambda name: matches(pattern, name)


def _called(pattern: str) -> Callable[[str], bool]:
    return lambda name: glob(pattern, name)


def _over(part: _Part, rows: Rows) -> Iterator[Overrun]:
    limits = part.limits
    count = rows.per_cell(part.rows) + part.lacking
    if limits.max_collectives is not None:
        figure = _Figure("max_collectives", limits.max_collectives, count, part.perhaps, "count")
        yield from figure.judged(part, rows)
    if limits.max_wire_bytes is not None:
        wire = rows.per_cell(part.rows, rows.frame["wire_bytes"])
        unknown = rows.unknown(part.rows, "wire_bytes") + part.lacking + part.perhaps
        figure = _Figure("max_wire_bytes", limits.max_wire_bytes, wire, unknown, "wire_bytes")
        yield from figure.judged(part, rows)
    lasted = np.where(rows.timed, rows.duration_ns, np.nan)
    if limits.max_exposed_fraction is not None:
        exposed = rows.per_cell(part.rows, rows.frame["exposed_ns"])
        unknown = rows.unknown(part.rows, "exposed_ns") + part.lacking + part.perhaps
        if part.exposed is not None:
            exposed, unknown = part.exposed
        if rows.timed.any():
            unknown = np.where(rows.timed, unknown, 0)
        share = np.divide(exposed, lasted, out=np.zeros(len(lasted)), where=lasted > 0)
        figure = _Figure(
            "max_exposed_fraction", limits.max_exposed_fraction, np.minimum(share, 1), unknown, "exposed_ns"
        )
        yield from figure.judged(part, rows, part.no_times)
    if limits.max_step_ms is not None:
        figure = _Figure(
            "max_step_ms", limits.max_step_ms, np.nan_to_num(lasted) / 1e6, np.zeros(len(lasted)), None
        )
        yield from figure.judged(part, rows, part.no_times)


class _Figure(Struct, frozen=True):
    """A limited figure per cell, and the number of collectives whose part of it is unknown."""

    name: str
    limit: int | float
    values: Floats
    unknown: Floats
    by: str | None
    """The field of a Call that says what adds most to it; None: no collective does."""

    def judged(self, part: _Part, rows: Rows, no_times: str | None = None) -> Iterator[Overrun]:
        """Yield at most one overrun: the limit is exceeded, or the figure is unknown."""
        worst = int(np.argmax(self.values))
        if no_times is not None:
            yield self._overrun("cannot be told", worst, no_times, part, rows, measured=False)
        elif self.values[worst] > self.limit:
            more = " at least" if self.unknown[worst] else ""
            over = f"{self._words(self.values[worst])}{more}, {self._words(self.limit)} allowed"
            yield self._overrun("over", worst, over, part, rows)
        elif self.name == "max_collectives":
            most = int(np.argmax(self.values + self.unknown))
            if self.values[most] + self.unknown[most] > self.limit:
                yield self._overrun("cannot be told", most, self._lack(most), part, rows)
        elif self.unknown.any():
            most = int(np.argmax(self.unknown))
            yield self._overrun("cannot be told", most, self._lack(most), part, rows)

    def _lack(self, cell: int) -> str:
        what = {
            "max_collectives": "whether they belong here",
            "max_wire_bytes": "their size",
            "max_exposed_fraction": "their exposed time",
        }[self.name]
        return (
            f"of {times(int(self.unknown[cell]), 'collective')} {what} is not known; "
            f"without them {self._words(self.values[cell])}, {self._words(self.limit)} allowed"
        )

    def _words(self, value: float) -> str:
        if self.name == "max_collectives":
            return times(int(value), "collective")
        if self.name == "max_wire_bytes":
            return f"{size(int(value))} ({int(value):,} bytes)" if value >= 1000 else size(int(value))
        if self.name == "max_step_ms":
            return duration(value * 1e6)
        return f"{100 * value:.3g} %"

    def _overrun(
        self, answer: Answer, cell: int, why: str, part: _Part, rows: Rows, *, measured: bool = True
    ) -> Overrun:
        calls, more = ((), 0) if self.by is None or not measured else rows.calls(part.rows, cell, self.by)
        whole = self.name in ("max_collectives", "max_wire_bytes")
        value = float(self.values[cell])
        return Overrun(
            limit_name=self.name,
            place=part.label,
            answer=answer,
            limit=self.limit,
            found=None if not measured else int(value) if whole else value,
            why=why,
            step=int(rows.step[cell]) if measured else None,
            rank=int(rows.rank[cell]) if measured else None,
            source=next((call.source for call in calls if call.source), None),
            calls=calls,
            calls_left_out=more,
        )


def _broken(report: Report) -> Iterator[Overrun]:
    """Yield that the record is not whole, once a kind of notice."""
    notices = report.notices
    for kind in BROKEN:
        mine = [notice for notice in notices if notice.kind == kind]
        if mine:
            more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
            why = f"the record is not whole: {mine[0].text}{more}"
            yield Overrun("record", None, "cannot be told", 0, None, why, mine[0].step, mine[0].rank, None)


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
    if run.ranks_missing and not is_fake(run):
        yield f"{ranks(run.ranks_missing)} of {run.world_size:,} not seen: their limits are not checked"
    if not rows.timed.any() and (budget.limits.max_step_ms or budget.limits.max_exposed_fraction):
        yield "no step has times that can be judged"
    modules = known_modules(report)
    patterns = [*budget.no_implicit]
    for section in budget.sections:
        patterns += [*([section.name] if section.part == "module" else []), *section.no_implicit]
    # `*` and the root name something in every program.
    named = [pattern for pattern in dict.fromkeys(patterns) if pattern not in ("*", "")]
    if named and not modules:
        yield "no module is on record, so what limits modules says nothing; a run of audit() has them"
    for pattern in named if modules else ():
        if not any(matches(pattern, name) for name in modules):
            close = difflib.get_close_matches(pattern, sorted(modules)[:10_000], n=_SHOWN, cutoff=0.3)
            hint = f"; there are {', '.join(close)}" if close else ""
            yield f'no module on record is named by "{pattern}", so it limits nothing: was it renamed?{hint}'
    groups = {name for group in report.groups for name in (group.name, group.mesh_dim) if name}
    for section in budget.sections:
        if section.part == "group" and not any(glob(section.name, name) for name in groups):
            hint = f"; there are {', '.join(sorted(groups)[:10])}" if groups else ""
            yield f'no group or mesh dimension is named by "{section.name}", so it limits nothing{hint}'
    if any(section.part == "module" for section in budget.sections) and modules:
        most = int(rows.per_cell(rows.nowhere).max(initial=0))
        if most:
            yield f"{times(most, 'collective')} of a step belong to no known module, so to no module's limits"
