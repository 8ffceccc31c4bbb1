"""What changed between two runs of several steps each, and what of it is noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers import compare_words
from shardtoll.analyzers.comparable import warnings
from shardtoll.analyzers.compare_batch import batch
from shardtoll.analyzers.compare_causes import causes
from shardtoll.analyzers.compare_findings import findings
from shardtoll.analyzers.compare_intervals import RUN_NOISE
from shardtoll.analyzers.compare_machine import State, state
from shardtoll.analyzers.compare_modules import Module, modules
from shardtoll.analyzers.compare_ranks import rank_judges, rank_series
from shardtoll.analyzers.compare_rows import Judge, Rows, judge_all
from shardtoll.analyzers.compare_sites import Site, paired, sites
from shardtoll.analyzers.compare_steps import (
    ALL_ELSE,
    LEAST_STEPS,
    PARTS,
    UNTOLD,
    Chosen,
    StepSeries,
    choose,
    step_series,
)
from shardtoll.analyzers.scaling import Kind, scaling
from shardtoll.analyzers.scaling_kind import scaling_kind
from shardtoll.analyzers.scaling_parts import scaling_parts
from shardtoll.ledger import Report
from shardtoll.ledger.comparison import (
    Change,
    Comparison,
    ModuleChange,
    Scaling,
    Side,
    SiteChange,
    SiteWhat,
    Whole,
)

LEAST_SHARE: Final = 0.001
"""Part of the step below which no time's change is worth saying."""
UNVOUCHED: Final = 3
"""Where equal operators took another time on a shared machine, times that no such operator vouches for are
judged only beyond so many times that share: what waits or idles is stretched more than what computes."""
VOUCHED: Final = 4
"""A module must lie so many standard deviations off the others of equal work."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Options:
    """What a user says of the comparison."""

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
    reports = (before, after)
    chosen = choose(before, after, options.warm_up)
    series = [step_series(report, one.timed) for report, one in zip(reports, chosen, strict=True)]
    scale = options.work[0] / options.work[1] if options.work else 1.0
    series[1] = _scaled(series[1], scale)
    surveyed = [step_series(report, one.surveyed) for report, one in zip(reports, chosen, strict=True)]
    guides = (series[0].own, series[1].own), (surveyed[0].own, surveyed[1].own)
    timed, computed = (
        Rows(guide, min(map(len, guide)) >= LEAST_STEPS and (chosen[0].alike or guide is guides[1]))
        for guide in guides
    )
    was, now = modules(reports, (chosen[0].surveyed, chosen[1].surveyed))
    shared = all(report.run.device in (None, "cpu") for report in reports)
    machine = State(None)
    if computed.enough:
        # By the times as they were: how much work a step does says nothing of the machine.
        machine = state(was, now, guides[1], options.noise, shared=shared)
    now = {
        name: module if module.time is None else replace(module, time=module.time * scale)
        for name, module in now.items()
    }
    floor = _Floor(options.noise, machine.off, max(_mean(one.own) for one in series))
    step = timed.timed("step", series[0].own, series[1].own, floor.of(series[0].own, series[1].own))
    told = all(one.told for one in series)
    parts = [
        timed.timed(name, *_known(one, other), floor.of(*_known(one, other)))
        for name, one, other in zip(
            _part_names(chosen[0], told=told),
            *(each.shown(told=told, alike=chosen[0].alike) for each in series),
            strict=True,
        )
        if len(one) and len(other) and (one.any() or other.any())
    ]
    slow = (series[0].slowest, series[1].slowest)
    totals = [timed.timed("step of the slowest rank", *slow, floor.of(*slow))]
    outside = [rank_series(report, one.timed) for report, one in zip(reports, chosen, strict=True)]
    alone = []
    if reports[0].run.world_size == reports[1].run.world_size:
        after_work = {rank: times * scale for rank, times in outside[1].items()}
        alone = rank_judges(timed, outside[0], after_work, floor.of)
    places = [sites(report, one.timed) for report, one in zip(reports, chosen, strict=True)]
    pairs = paired(*places)
    site_judges = [_Place.of(pair, timed, floor, chosen, scale) for pair in pairs]
    totals += _totals(timed, computed, places, (was, now), chosen, scale)
    module_judges = _modules(computed, was, now, machine, floor, scale)
    judge_all(timed, computed)
    found = [one.change(pair) for one, pair in zip(site_judges, pairs, strict=True)]
    changed_modules = tuple(
        ModuleChange(name, time(), work(), formats) for name, time, work, formats in module_judges
    )
    bills = findings(before, after)
    whole_step = step()
    judged_parts = tuple(judge() for judge in parts)
    reasons, rest = causes(whole_step, judged_parts, found, changed_modules, machine, (was, now), scale)
    verdict = _verdict(timed, whole_step, judged_parts, found, changed_modules, machine,
                       any(one.firm and None in (one.before, one.after) for one in bills
                           if one.severity == "error"))  # fmt: skip
    sides = [
        Side(
            name=name,
            world_size=report.run.world_size,
            ranks_seen=len(report.run.ranks_seen),
            timed_steps=len(one.timed),
            surveyed_steps=len(one.surveyed),
            left_out=one.left_out,
            slow_start=one.slow,
            level=one.level,
            batch=batch(report, one.surveyed),
            work=options.work[at] if options.work else None,
            slowest_rank=each.slowest_rank,
        )
        for at, (name, report, one, each) in enumerate(zip(names, reports, chosen, series, strict=True))
    ]
    made = Comparison(
        before=sides[0],
        after=sides[1],
        verdict=verdict,
        headline="",
        unit=f"{options.work[0]:,g} {options.unit}" if options.work else None,
        step=whole_step,
        parts=judged_parts,
        totals=tuple(judge() for judge in totals),
        # Where nothing else changed, a rank's time has nothing to explain.
        ranks=tuple(one for one in (judge() for judge in alone) if one.changed and verdict == "changed"),
        modules=tuple(sorted(changed_modules, key=_weight)),
        sites=tuple(
            sorted(found, key=lambda site: (_ORDER.index(site.what), -abs(site.exposed.difference or 0)))
        ),
        findings=bills,
        causes=reasons,
        unexplained_ns=rest,
        machine=machine.machine,
        scaling=_scaling(reports, chosen, surveyed, series, options, (sides[0], sides[1])),
        warnings=(
            *compare_words.alike(sides[0], sides[1], chosen[0].alike),
            *warnings(before, after),
        ),
        notes=(
            *compare_words.notes(sides[0], sides[1]),
            *compare_words.exposure(series[0], series[1]),
        ),
    )
    return compare_words.with_headline(made)


_ORDER: Final = ("added", "removed", "dtype", "size", "count", "time", "none")


def _weight(module: ModuleChange) -> tuple[bool, float]:
    return not (module.time.changed or module.work.changed or module.formats), -abs(
        module.time.difference or 0
    )


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else 0.0


def _scaled(series: StepSeries, scale: float) -> StepSeries:
    return replace(series, own=series.own * scale, parts=series.parts * scale, slowest=series.slowest * scale)


def _part_names(chosen: Chosen, *, told: bool) -> tuple[str, ...]:
    # Of a watched step only collectives are known, and so of a surveyed one beside it.
    rest = ALL_ELSE if told else UNTOLD
    return (*PARTS[:-1], rest) if chosen.level == "watched" or not chosen.alike else PARTS


def _known(before: Array, after: Array) -> tuple[Array | None, Array | None]:
    """Return None for both where one is not known."""
    return (None, None) if np.isnan(before).any() or np.isnan(after).any() else (before, after)


@dataclass(frozen=True, slots=True)
class _Floor:
    """What differs from run to run of one program."""

    noise: float
    off: float
    step_ns: float

    def of(self, before: Array | None, after: Array | None) -> float:
        if before is None or after is None:
            return 0.0
        size = max(_mean(np.abs(before)), _mean(np.abs(after)))
        return max((self.noise + UNVOUCHED * self.off) * size, LEAST_SHARE * self.step_ns)


def _modules(
    rows: Rows, was: dict[str, Module], now: dict[str, Module], machine: State, floor: _Floor, scale: float
) -> list[tuple[str, Judge, Judge, tuple[str, str] | None]]:
    counts = [len(guide) for guide in rows.guide]
    if not all(counts):
        return []
    made = []
    for name in {**was, **now}:
        one, other = was.get(name), now.get(name)
        times = [_times(module, count) for module, count in zip((one, other), counts, strict=True)]
        work = [np.zeros(n) if m is None else m.flops for m, n in zip((one, other), counts, strict=True)]
        vouched = name in machine.names
        wide = floor.of(times[0], times[1])
        if vouched:
            size = max(_mean(t) if t is not None else 0 for t in times)
            wide = max((floor.noise + VOUCHED * machine.spread) * size, LEAST_SHARE * floor.step_ns)
        pace = None
        if vouched and machine.pace is not None:
            pace = (machine.pace[0], machine.pace[1] * scale)
        time = rows.timed(name, times[0], times[1], wide, pace=pace)
        formats = (one.formats, other.formats) if one and other and one.formats != other.formats else None
        made.append((name, time, rows.exact(name, *work, unit="FLOP", scale=scale), formats))
    return made


def _times(module: Module | None, count: int) -> Array | None:
    """Return the module's time in each of `count` steps: none where it does not run."""
    return np.zeros(count) if module is None else module.time


@dataclass(frozen=True, slots=True)
class _Place:
    """What judges one kind of collective."""

    calls: Judge
    bytes: Judge
    exposed: Judge
    waiting: Judge

    @classmethod
    def of(
        cls, pair: tuple[Site | None, Site | None], rows: Rows, floor: _Floor,
        chosen: tuple[Chosen, Chosen], scale: float,
    ) -> _Place:  # fmt: skip
        name = next(site.place[0] for site in pair if site is not None) or "collective"
        zeros = [np.zeros(len(one.timed)) for one in chosen]
        calls = [zero if site is None else site.calls for site, zero in zip(pair, zeros, strict=True)]
        sizes = [0 if site is None else site.message_bytes for site in pair]
        moved = (
            rows.exact(
                name, calls[0] * (sizes[0] or 0), calls[1] * (sizes[1] or 0), unit="bytes", scale=scale
            )
            if None not in sizes
            else lambda: Change(name, "bytes", None, None, "unknown")
        )
        times = []
        for what in ("exposed", "waiting"):
            one, other = (
                zero if site is None else getattr(site, what) for site, zero in zip(pair, zeros, strict=True)
            )
            other = None if other is None else other * scale
            times.append(rows.timed(name, one, other, floor.of(one, other)))
        return cls(rows.exact(name, *calls), moved, times[0], times[1])

    def change(self, pair: tuple[Site | None, Site | None]) -> SiteChange:
        before, after = pair
        calls, moved, exposed, waiting = self.calls(), self.bytes(), self.exposed(), self.waiting()
        one = after or before
        assert one is not None, "a pair has at least one"
        dtypes = tuple(None if site is None else site.dtype for site in pair)
        sizes = tuple(None if site is None else site.message_bytes for site in pair)
        what: SiteWhat = "none"
        if before is None or after is None:
            if calls.changed:
                what = "added" if before is None else "removed"
        elif None not in dtypes and dtypes[0] != dtypes[1]:
            what = "dtype"
        elif sizes[0] != sizes[1] and moved.changed:
            what = "size"
        elif calls.changed:
            what = "count"
        elif exposed.changed or waiting.changed:
            what = "time"
        op, cause, module, phase, group = one.place
        return SiteChange(what, op or "collective", cause, module, phase or "other", group or "unknown group",
                          one.source, (dtypes[0], dtypes[1]), (sizes[0], sizes[1]),
                          calls, moved, exposed, waiting)  # fmt: skip


def _totals(
    timed: Rows, computed: Rows, places: list[list[Site]], work: tuple[dict[str, Module], dict[str, Module]],
    chosen: tuple[Chosen, Chosen], scale: float,
) -> list[Judge]:  # fmt: skip
    calls, moved = [], []
    for found, one in zip(places, chosen, strict=True):
        empty = np.zeros(len(one.timed))
        calls.append(sum((site.calls for site in found), start=empty))
        moved.append(sum((site.calls * (site.message_bytes or 0) for site in found), start=empty))
    flops = [
        sum((module.flops for module in of.values()), start=np.zeros(len(guide)))
        for of, guide in zip(work, computed.guide, strict=True)
    ]
    return [
        timed.exact("collectives", *calls),
        timed.exact("message bytes", *moved, unit="bytes", scale=scale),
        computed.exact("FLOPs", *flops, unit="FLOP", scale=scale),
    ]


def _verdict(
    timed: Rows, step: Change, parts: tuple[Change, ...], found: list[SiteChange],
    of_modules: tuple[ModuleChange, ...], machine: State, broken: bool,
) -> Whole:  # fmt: skip
    slower = machine.machine is not None and machine.machine.apart and not machine.machine.shared
    changed = (
        broken
        or slower
        or step.changed
        or any(part.changed for part in parts)
        or any(site.what != "none" for site in found)
        or any(one.time.changed or one.work.changed or one.formats for one in of_modules)
    )
    if changed:
        return "changed"
    return "no change" if timed.enough else "too few steps"


def _scaling(
    reports: tuple[Report, Report], chosen: tuple[Chosen, Chosen], surveyed: list[StepSeries],
    series: list[StepSeries], options: Options, sides: tuple[Side, Side],
) -> Scaling | None:  # fmt: skip
    ranks = (reports[0].run.world_size, reports[1].run.world_size)
    if ranks[0] == ranks[1] or not all(len(one.own) for one in series):
        return None
    whole = all(len(one.own) for one in surveyed)
    used = surveyed if whole else _unscaled(series, options)
    parts = [
        scaling_parts(report, one, numbers.surveyed if whole else numbers.timed)
        for report, one, numbers in zip(reports, used, chosen, strict=True)
    ]
    divided = chosen[0].alike and all(one.told for one in used)
    kind, work, why = scaling_kind(sides, (reports[0].run.mesh or (), reports[1].run.mesh or ()))
    if options.work:
        kind, work, why = "given", options.work, "by the work given"
    elif options.scaling:
        kind, work, why = options.scaling, None, "as --scaling says"
    found = scaling(ranks, (parts[0], parts[1]), kind, work, why)
    return found if found is None or divided else replace(found, losses=())


def _unscaled(series: list[StepSeries], options: Options) -> list[StepSeries]:
    if options.work is None:
        return series
    return [series[0], _scaled(series[1], options.work[1] / options.work[0])]
