"""Changes between two runs of several steps each, and which of them are noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.compare import compare_words
from shardtoll.analyzers.compare.batch import batch
from shardtoll.analyzers.compare.causes import causes
from shardtoll.analyzers.compare.compare_machine import State, module_judges, state
from shardtoll.analyzers.compare.compare_ranks import rank_judges, rank_series
from shardtoll.analyzers.compare.modules import Module, modules
from shardtoll.analyzers.compare.scaling import Kind, scaling, scaling_kind, scaling_parts
from shardtoll.analyzers.compare.sites import WHAT, SiteJudge, paired, sites, total_judges
from shardtoll.analyzers.two_runs.comparable import warnings
from shardtoll.analyzers.two_runs.intervals import RUN_NOISE
from shardtoll.analyzers.two_runs.issued import issued
from shardtoll.analyzers.two_runs.judges import Array, Floor, Judge, Rows, judge_all, mean
from shardtoll.analyzers.two_runs.pair import SLOWEST, TwoRuns
from shardtoll.analyzers.two_runs.same_finding import both_bills, late_rank, place
from shardtoll.analyzers.two_runs.steps import (
    ALL_ELSE,
    LEAST_STEPS,
    PARTS,
    UNTOLD,
    Chosen,
    StepSeries,
    step_series,
)
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.answers.comparison import (
    Change,
    Comparison,
    FindingChange,
    ModuleChange,
    Scaling,
    Side,
    SiteChange,
    Whole,
)

FIRM: Final = (
    "implicit-redistribute",
    "redundant-collective",
    "sync-every-microbatch",
    "wide-dtype",
    "duplicated-data",
)
"""Kinds that rest on what was done, next to those of correctness: times only say how expensive it is."""


class Options(Struct, frozen=True):
    """A user's options for the comparison."""

    work: tuple[float, float] | None = None
    """Work of one step of each run: times, bytes and FLOPs after are then of as much as before."""
    unit: str = "tokens"
    scaling: Kind | None = None
    """None: as the work given says, else as the effective batches say."""
    warm_up: int | None = None
    noise: float = RUN_NOISE


DEFAULT: Final = Options()


def compare(before: Report, after: Report, names: tuple[str, str], options: Options = DEFAULT) -> Comparison:
    """Return what changed from `before` to `after`, called `names`."""
    runs = TwoRuns.of(before, after, options.warm_up)
    alike = runs.chosen[0].alike
    scale = options.work[0] / options.work[1] if options.work else 1.0
    series = runs.timed[0], runs.timed[1].scaled(scale)
    surveyed = runs.each(lambda report, chosen: step_series(report, chosen.surveyed))
    timed = _rows(series, alike=alike, exactly=runs.are_forecasts)
    computed = _rows(surveyed, alike=True, exactly=runs.are_forecasts)
    was, now = modules(runs.reports, runs.each(lambda _, chosen: chosen.surveyed))
    machine = State(None)
    if computed.enough and not computed.exactly:
        # By the times as they were: how much work a step does says nothing of the machine.
        shared = all(report.run.device in (None, "cpu") for report in runs.reports)
        machine = state(was, now, computed.guide, options.noise, shared=shared)
    now = {
        name: module if module.time is None else replace(module, time=module.time * scale)
        for name, module in now.items()
    }
    floor = Floor(options.noise, machine.off, max(mean(each.own) for each in series))
    # First a row for each figure, for the intervals are drawn of all together; then what they say.
    judge_step, *judge_parts = _step_judges(timed, series, floor, runs.chosen[0])
    slowest = series[0].slowest, series[1].slowest
    judge_totals = [timed.timed(SLOWEST, *slowest, floor.of(*slowest))]
    judge_ranks = _rank_judges(runs, timed, floor, scale)
    places = runs.each(lambda report, chosen: sites(report, chosen.timed))
    judge_sites = [SiteJudge.of(pair, timed, floor, scale) for pair in paired(*places)]
    judge_totals += total_judges(timed, runs.each(issued), scale)
    judge_totals.append(_flops_judge(computed, (was, now), scale))
    judge_modules = module_judges(computed, was, now, machine, floor, scale)
    judge_all(timed, computed)
    step, parts = judge_step(), tuple(judge() for judge in judge_parts)
    changed_sites, changed_modules = [judge() for judge in judge_sites], [judge() for judge in judge_modules]
    reasons, rest = causes(step, parts, changed_sites, changed_modules, machine, (was, now), scale)
    bills = _findings(before, after, forecasts=runs.are_forecasts)
    totals = tuple(judge() for judge in judge_totals)
    # A rank that waits less moves no mean: the job's step is that of its slowest rank.
    verdict = _verdict(timed, (step, totals[0], *parts), changed_sites, changed_modules, machine, bills)
    ranks = (judge() for judge in judge_ranks)
    sides = _sides(runs, names, options)
    return compare_words.with_headline(
        Comparison(
            before=sides[0],
            after=sides[1],
            verdict=verdict,
            headline="",
            unit=f"{options.work[0]:,g} {options.unit}" if options.work else None,
            step=step,
            parts=parts,
            totals=totals,
            # If nothing else changed, a rank's time has nothing to explain.
            ranks=tuple(rank for rank in ranks if rank.changed and verdict == "changed"),
            modules=tuple(sorted(changed_modules, key=_weight)),
            sites=tuple(
                sorted(
                    changed_sites,
                    key=lambda site: (WHAT.index(site.what), -abs(site.exposed.difference or 0)),
                )
            ),
            findings=bills,
            causes=reasons,
            unexplained_ns=rest,
            machine=machine.machine,
            scaling=_scaling(runs, surveyed, options, sides),
            warnings=(*compare_words.alike(*sides, alike), *warnings(runs)),
            notes=(*compare_words.notes(*sides), *compare_words.exposure(*series)),
        )
    )


def slowest_change(comparison: Comparison) -> Change:
    """Return how the step of the slowest rank changed, judged together with all else."""
    return next(change for change in comparison.totals if change.name == SLOWEST)


def _rows(series: tuple[StepSeries, StepSeries], *, alike: bool, exactly: bool) -> Rows:
    guide = series[0].own, series[1].own
    return Rows(guide, alike and min(map(len, guide)) >= (1 if exactly else LEAST_STEPS), exactly)


def _step_judges(
    rows: Rows, series: tuple[StepSeries, StepSeries], floor: Floor, chosen: Chosen
) -> list[Judge]:
    """Add rows for the step and its parts, and return what judges them."""
    all_told = all(each.told for each in series)
    # Only collectives of a watched step are known: a surveyed one next to it is read like it.
    is_part = chosen.level == "watched" or not chosen.alike
    names = (*PARTS[:-1], ALL_ELSE if all_told else UNTOLD) if is_part else PARTS
    judges = [rows.timed("step", *rows.guide, floor.of(*rows.guide))]
    for name, *pair in zip(
        names, *(each.shown(exposure_told=all_told, alike=chosen.alike) for each in series), strict=True
    ):
        if all(len(part) for part in pair) and any(part.any() for part in pair):
            both: list[Array | None] = [None, None] if any(np.isnan(part).any() for part in pair) else [*pair]
            judges.append(rows.timed(name, both[0], both[1], floor.of(both[0], both[1])))
    return judges


def _rank_judges(runs: TwoRuns, rows: Rows, floor: Floor, scale: float) -> list[Judge]:
    if runs.reports[0].run.world_size != runs.reports[1].run.world_size:
        return []
    outside = runs.each(lambda report, chosen: rank_series(report, chosen.timed))
    return rank_judges(
        rows, outside[0], {rank: times * scale for rank, times in outside[1].items()}, floor.of
    )


def _flops_judge(rows: Rows, work: tuple[dict[str, Module], dict[str, Module]], scale: float) -> Judge:
    flops = [
        sum((module.flops for module in run.values()), start=np.zeros(len(guide)))
        for run, guide in zip(work, rows.guide, strict=True)
    ]
    return rows.exact("FLOPs", *flops, unit="FLOP", scale=scale)


def _weight(module: ModuleChange) -> tuple[bool, float]:
    return not _changed(module), -abs(module.time.difference or 0)


def _changed(module: ModuleChange) -> bool:
    return module.time.changed or module.work.changed or module.formats is not None


def _findings(before: Report, after: Report, *, forecasts: bool) -> tuple[FindingChange, ...]:
    """Return each finding of both bills once: errors that came or went, then by how much its toll differs."""
    gone: list[FindingChange] = []
    new: list[FindingChange] = []
    stayed: list[FindingChange] = []
    for was, now in both_bills(before, after):
        _, finding = now or was or (0, None)
        assert finding is not None, "a finding is on one of the bills"
        change = FindingChange(
            kind=finding.kind,
            severity=finding.severity,
            place=_place(finding),
            title=finding.title,
            before=was and was[0],
            after=now and now[0],
            toll_ns=(was and was[1].toll_ns, now and now[1].toll_ns),
            firm=finding.family == "correctness" or finding.kind in FIRM or forecasts,
            rank=late_rank(finding),
        )
        (new if was is None else gone if now is None else stayed).append(change)
    # Equal ones stand as above.
    return tuple(
        sorted((*gone, *new, *stayed), key=lambda each: (not _is_error(each), -abs(each.difference_ns)))
    )


def _place(finding: Finding) -> str:
    late = late_rank(finding)
    return place(finding.where) if late is None else f"rank {late} · {place(finding.where)}"


def _is_error(change: FindingChange) -> bool:
    return change.severity == "error" and change.firm and None in (change.before, change.after)


def _verdict(
    timed: Rows, times: Sequence[Change], sites: Sequence[SiteChange], modules: Sequence[ModuleChange],
    machine: State, bills: Sequence[FindingChange],
) -> Whole:  # fmt: skip
    slower = machine.machine is not None and machine.machine.apart and not machine.machine.shared
    changed = (
        slower
        or any(time.changed for time in times)
        or any(site.what != "none" for site in sites)
        or any(map(_changed, modules))
        or any(_is_error(finding) for finding in bills)
    )
    if changed:
        return "changed"
    return "no change" if timed.enough else "too few steps"


def _sides(runs: TwoRuns, names: tuple[str, str], options: Options) -> tuple[Side, Side]:
    before, after = (
        Side(
            name=name,
            world_size=report.run.world_size,
            ranks_seen=len(report.run.ranks_seen),
            timed_steps=len(chosen.timed),
            surveyed_steps=len(chosen.surveyed),
            left_out=chosen.left_out,
            slow_start=chosen.slow,
            level=chosen.level,
            batch=batch(report, chosen),
            work=work,
            slowest_rank=series.slowest_rank,
        )
        for name, report, chosen, series, work in zip(
            names, runs.reports, runs.chosen, runs.timed, options.work or (None, None), strict=True
        )
    )
    return before, after


def _scaling(
    runs: TwoRuns, surveyed: tuple[StepSeries, StepSeries], options: Options, sides: tuple[Side, Side]
) -> Scaling | None:
    ranks = (sides[0].world_size, sides[1].world_size)
    if ranks[0] == ranks[1] or not all(len(each.own) for each in runs.timed):
        return None
    whole = all(len(each.own) for each in surveyed)
    used = surveyed if whole else runs.timed
    parts = [
        scaling_parts(report, series, chosen.surveyed if whole else chosen.timed)
        for report, series, chosen in zip(runs.reports, used, runs.chosen, strict=True)
    ]
    kind, work, why = scaling_kind(sides, runs.each(lambda report, _: report.run.mesh or ()))
    if options.work:
        kind, work, why = "given", options.work, "by the work given"
    elif options.scaling:
        kind, work, why = options.scaling, None, "as --scaling says"
    made = scaling(ranks, (parts[0], parts[1]), kind, work, why)
    divided = runs.chosen[0].alike and all(each.told for each in used)
    return made if made is None or divided else replace(made, losses=())
