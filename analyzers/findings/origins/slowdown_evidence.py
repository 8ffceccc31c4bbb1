"""The what-if figures of a slow rank: the job's slowdown by workers, stages and steps, as evidence."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.origin import Origin
from shardtoll.analyzers.findings.origins.without_slowdown import Slowdowns, slowdowns
from shardtoll.ledger import Evidence, Figure

LEAST: Final = 1.01
"""A slowdown that is worth a name; less is what ranks differ by anyway."""

SHOWN: Final = 6
"""Ranks, stages or steps that are listed."""


def slowdown_evidence(context: Context) -> tuple[Evidence, ...]:
    """Return what slows the job with and without each worker, stage and step, as far as it differs."""
    told = slowdowns(context)
    if told is None:
        return ()
    lines = [Evidence("slowdown of the job by all ranks beyond their peers", round(told.job, 3), "times")]
    if len(told.ranks) > 1:
        lines.append(Evidence("slowdown by each rank alone", _listed("rank", told.ranks)))
    if len(told.stages) > 1:
        lines.append(Evidence("slowdown by each stage alone, all its ranks", _listed("stage", told.stages)))
    if len(told.steps) > 1:
        lines.append(Evidence("slowdown of each step", _steps(told.steps)))
    return tuple(lines)


def slowdown_figures(context: Context, origin: Origin) -> tuple[Figure, ...]:
    """Return the same for programs; figures that are unknown are left out."""
    figures = [
        Figure("slowdown", round(origin.slowdown, 4), "x"),
        Figure("slowdown_alone", round(origin.alone_ns / max(1, origin.ideal_ns), 4), "x"),
        Figure("slow_steps", len(origin.slow_steps), "count"),
        Figure("replayed_steps", origin.steps, "count"),
    ]
    told = slowdowns(context)
    if told is not None:
        figures.append(Figure("slowdown_of_job", round(told.job, 4), "x"))
        figures.append(Figure("slowdown_of_worst_step", round(max(told.steps.values()), 4), "x"))
        figures += _of_stage(told, origin.stage)
    return tuple(figures)


def _of_stage(told: Slowdowns, stage: int | None) -> list[Figure]:
    if stage is None or stage not in told.stages:
        return []
    others = [times for number, times in told.stages.items() if number != stage]
    return [
        Figure("slowdown_of_stage", round(told.stages[stage], 4), "x"),
        *([Figure("slowdown_of_other_stages", round(max(others), 4), "x")] if others else []),
    ]


def _listed(word: str, times: dict[int, float]) -> str:
    """Return `rank 0: 1.97; the others less than 1.01`."""
    order = sorted(times, key=lambda number: -times[number])
    shown = [number for number in order if times[number] >= LEAST][:SHOWN]
    named = ", ".join(f"{word} {number}: {times[number]:.3g}" for number in shown)
    rest = [times[number] for number in order if number not in shown]
    if not rest:
        return named
    most = f"less than {LEAST:.3g}" if max(rest) < LEAST else f"at most {max(rest):.3g}"
    the_others = f"the others {most}" if len(rest) > 1 else f"the other {word} {most}"
    return f"{named}; {the_others}" if named else f"all {most}"


def _steps(times: dict[int, float]) -> str:
    """Return `35: 1.96, 36: 1.92`; of many steps the range, and the step with most."""
    if len(times) <= SHOWN:
        return ", ".join(f"step {step}: {value:.3g}" for step, value in times.items())
    worst = max(times, key=lambda step: times[step])
    return f"{min(times.values()):.3g} to {times[worst]:.3g}, most in step {worst}"
