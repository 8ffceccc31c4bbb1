"""A budget that a run just keeps: counts and bytes exactly, times with room for noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.budget.against_budget import BROKEN, known_modules
from shardtoll.analyzers.budget.budget_rows import Floats, Mask, Rows, host_waits, is_fake, rows_of
from shardtoll.analyzers.budget.implicit import implicit, whole
from shardtoll.ledger import KINDS, Report, UsageError
from shardtoll.ledger.answers.budget import LONGEST_NAME, Budget, Limits, Section, matches
from shardtoll.ledger.records.layers import layer_pattern
from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.words.human import percent
from shardtoll.ledger.words.human import plural as times

DEVIATIONS: Final = 3
"""How many standard deviations over steps a time limit lies above the mean, if that is above the worst."""
STEADY: Final = 1.5
"""A limit on the step's time is written if, without slack, it is at most so many times the mean. A wider
limit guards nothing."""
MOST_PATTERNS: Final = 100
MOST_GROUPS: Final = 50


@dataclass(frozen=True, slots=True)
class Draft:
    """A budget, and the comments for its keys."""

    budget: Budget
    comments: dict[str, list[str]] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    """Kinds of wrong results that the run has: the budget cannot forbid them."""


def draft(report: Report, *, run: str, slack: float, skip_steps: int = 0) -> Draft:
    """Return the tightest budget that the run keeps, but for times: those get `slack`, a share, more.

    Raises UsageError where the run has no step to go by, or says itself that its record is not whole.
    """
    rows = rows_of(report, skip_steps)
    if not len(rows.step):
        raise UsageError(f"{run} has no finished step to make a budget of", "record at least one step")
    broken = next((notice.text for notice in report.notices if notice.kind in BROKEN), None)
    if broken is not None:
        raise UsageError(f"the record of {run} is not whole ({broken})", "record the run again")
    steps, ranks = len(set(rows.step.tolist())), len(set(rows.rank.tolist()))
    comments = {
        "": [f"Written from {run}: {times(steps, 'step')} of {times(ranks, 'rank')}."],
        "forbid": ["Wrong results. Most are looked for only where audit(checks=(...)) asks for it."],
    }
    limits = _limits(report, rows, slack, comments)
    patterns = _clean_patterns(report, rows, comments)
    there = {finding.kind for finding in report.findings}
    budget = Budget(
        limits=limits,
        sections=(*_groups(rows), *_phases(rows)),
        no_implicit=patterns,
        # A job that hangs leaves no report to check: `shardtoll hang` reads its flight files.
        forbid=tuple(
            kind
            for kind, family in KINDS.items()
            if family == "correctness" and kind not in there and kind != "hang"
        ),
        skip_steps=skip_steps,
    )
    present = sorted(kind for kind in there if KINDS[kind] == "correctness")
    if present:
        comments["forbid"].append(f"Not forbidden, as the run has them: {', '.join(present)}.")
    return Draft(budget, comments, tuple(present))


def _limits(report: Report, rows: Rows, slack: float, comments: dict[str, list[str]]) -> Limits:
    exact = _exact(rows, np.ones(len(rows.frame), dtype=bool))
    if exact.max_wire_bytes is None:
        comments["max_wire_bytes"] = ["max_wire_bytes: not written, as some sizes are not known"]
    fraction, step_ms = _times(report, rows, slack, comments)
    return replace(exact, max_exposed_fraction=fraction, max_step_ms=step_ms)


def _times(
    report: Report, rows: Rows, slack: float, comments: dict[str, list[str]]
) -> tuple[float | None, float | None]:
    run = report.run
    steps = np.unique(rows.step[rows.timed])
    if host_waits(run):
        unknown = bool(rows.exposed_lacks[rows.timed].any())
    else:
        unknown = bool(rows.frame["exposed_ns"].isna().any() or rows.all_lacking().any())
    if is_fake(run):
        why = "a fake process group transfers nothing"
    elif len(steps) < 2 and not run.is_forecast:
        why = "the noise of one step is not known"
    else:
        lasted = np.where(rows.timed, rows.duration_ns, 0)
        share = np.divide(rows.exposed_ns, lasted, out=np.zeros(len(lasted)), where=lasted > 0)
        fraction = None if unknown else _above(_worst(rows, share, steps), slack, 4)
        if unknown:
            comments["max_exposed_fraction"] = [
                "max_exposed_fraction: not written, as of some collectives exposed time is not known"
            ]
        if fraction is not None and fraction >= 1:
            fraction = None
            comments["max_exposed_fraction"] = [
                "max_exposed_fraction: not written, as with the noise of these steps it would allow all"
            ]
        step_ms = _step_ms(_worst(rows, lasted / 1e6, steps), slack, comments)
        if fraction is not None or step_ms is not None:
            of_run = f"the worst of {len(steps)} steps, or {DEVIATIONS} standard deviations above their mean,"
            comments["max_step_ms" if fraction is None else "max_exposed_fraction"] = [
                f"Times: {'those of the forecast' if run.is_forecast else of_run} and {percent(slack)} more."
            ]
        return fraction, step_ms
    comments["max_exposed_fraction"] = [f"max_exposed_fraction, max_step_ms: not written, as {why}"]
    return None, None


def _step_ms(each: Floats, slack: float, comments: dict[str, list[str]]) -> float | None:
    limit, mean = _above(each, 0.0, 3), float(each.mean())
    if limit <= STEADY * mean:
        return _above(each, slack, 3) if limit > 0 else None
    comments["max_step_ms"] = [
        f"max_step_ms: not written, as steps are not steady: {each.min():.3g} to {each.max():.3g} ms, and a",
        f"limit above their noise is {limit / mean:.2g} times the mean, which guards nothing.",
        "More steps on a quiet machine may tell it, or --skip-steps without the first ones.",
    ]
    return None


def _worst(rows: Rows, values: Floats, steps: npt.NDArray[np.int64]) -> Floats:
    """Return of each timed step the value of the rank where it is largest."""
    worst = np.zeros(len(steps))
    np.maximum.at(worst, np.searchsorted(steps, rows.step[rows.timed]), np.minimum(values, 1e15)[rows.timed])
    return worst


def _above(each: Floats, slack: float, digits: int) -> float:
    """Return what lies above the noise, rounded up."""
    # One step has no noise that anybody knows: only a forecast's comes here alone.
    noise = float(each.std(ddof=1)) if len(each) > 1 else 0.0
    most = max(float(each.max()), float(each.mean()) + DEVIATIONS * noise)
    scale: int = 10**digits
    return math.ceil(most * (1 + slack) * scale) / scale


def _groups(rows: Rows) -> Iterable[Section]:
    """Return a section for each mesh dimension; the names that torch gives to other groups may change."""
    names = sorted({str(name) for name in rows.frame["mesh_dim"].dropna().unique()})
    for name in names[:MOST_GROUPS]:
        # A name with a star would name others too, and a budget takes no name without end.
        if "*" not in name and len(name) <= LONGEST_NAME:
            mine = rows.named("mesh_dim", name.__eq__) | rows.named("group", name.__eq__)
            yield Section("group", name, _exact(rows, mine))


def _phases(rows: Rows) -> Iterable[Section]:
    for phase in PHASES:
        mine = rows.named("phase", phase.__eq__)
        if mine.any() and not rows.all_lacking().any():
            yield Section("phase", phase, _exact(rows, mine))


def _exact(rows: Rows, mine: Mask) -> Limits:
    complete = not rows.unknown(mine, "wire_bytes").any() and not rows.all_lacking().any()
    wire = int(rows.per_cell(mine, rows.frame["wire_bytes"]).max()) if complete else None
    count = rows.per_cell(mine) + rows.all_lacking()
    return Limits(int(count.max()), wire)


def _clean_patterns(report: Report, rows: Rows, comments: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the shortest patterns that name all modules without implicit collectives, and no other."""
    if not any(implicit(rows, ("*",), whole(rows))):
        return ("*",)
    if rows.all_lacking().any():
        comments["no_implicit"] = ["no_implicit: not written, as some collectives are not on record"]
        return ()
    frame = rows.frame
    doubtful = rows.implicit | rows.asked_unknown
    if (doubtful & rows.nowhere).any():
        comments["no_implicit"] = ["no_implicit: not written, as some collectives belong to no known module"]
        return ()
    dirty = {
        str(name) for column in ("module", "parameter") for name in frame[column][doubtful].dropna().unique()
    }
    modules = known_modules(report) - {""}
    patterns = sorted(_covering({layer_pattern(name) for name in modules}, dirty))
    causes = [overrun.why for overrun in implicit(rows, ("*",), whole(rows))]
    comments["no_implicit"] = [
        "Modules without a collective that the framework inserted. Elsewhere there are, per step and rank:",
        *(f"  {cause}" for cause in causes[:10]),
        *([f"  and {len(causes) - 10} more causes"] if len(causes) > 10 else []),
    ]
    return tuple([name for name in patterns if len(name) <= LONGEST_NAME][:MOST_PATTERNS])


def _covering(names: set[str], dirty: set[str]) -> Iterable[str]:
    """Yield from the top of the tree of names down each first one with nothing dirty inside."""
    tops = {name.split(".")[0] for name in names}
    open_ = sorted(tops)
    while open_:
        name = open_.pop()
        if not any(matches(name, each) for each in dirty):
            yield name
            continue
        depth = name.count(".") + 1
        deeper = {".".join(each.split(".")[: depth + 1]) for each in names if each.startswith(f"{name}.")}
        open_ += sorted(deeper)
