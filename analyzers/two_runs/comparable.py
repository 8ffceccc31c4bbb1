"""Whether two runs are of the same training on the same machine, so that their difference is the change."""

from __future__ import annotations

from collections.abc import Mapping

from shardtoll.analyzers.two_runs.pair import TwoRuns
from shardtoll.ledger import Report
from shardtoll.ledger.records.levels import alike_steps, surveyed_steps, watched_steps

FEW_STEPS = 3
"""Fewer timed steps tell little of their mean."""
NAMED = 3


def warnings(runs: TwoRuns) -> tuple[str, ...]:
    """Return one sentence for each way in which the runs differ, as `world size 4 before, 8 after`."""
    before, after = runs.reports
    was, other = before.run, after.run
    steps = [report.tables["steps"] for report in (before, after)]
    said: list[str | None] = [
        "both are the same recording" if steps[0].num_rows and steps[0].equals(steps[1]) else None,
        _apart("world size", was.world_size, other.world_size),
        _apart("device", was.device, other.device),
        _apart("backend", was.backend, other.backend),
        _apart("torch", was.torch, other.torch),
        _apart("recorded", was.source, other.source),
        _apart("hosts", len(was.hosts), len(other.hosts)),
        _apart("mesh", *(_mesh(run.mesh) for run in (was, other))),
        _apart("steps", *(len(alike_steps(table)) for table in steps)),
        _apart("steps were", _level(before), _level(after)),
        _apart("floors are of", before.fabric.name, after.fabric.name),
        *_parameters(before, after),
    ]
    for name, report, series in zip(("before", "after"), runs.reports, runs.timed, strict=True):
        if report.run.ranks_missing:
            said.append(f"{len(report.run.ranks_missing)} ranks left no records {name}")
        few = len(series.own)
        if 0 < few < FEW_STEPS and not runs.are_forecasts:
            said.append(f"only {few} timed step{'s' if few > 1 else ''} {name}: run more for a surer time")
    return tuple(words for words in said if words)


def _level(report: Report) -> str:
    """Return how a run's steps were looked at: `surveyed`, `watched` or `partly watched`."""
    table = report.tables["steps"]
    if not watched_steps(table):
        return "surveyed"
    return "partly watched" if surveyed_steps(table) else "watched"


def _mesh(mesh: Mapping[str, int]) -> str | None:
    return " x ".join(f"{name}={size}" for name, size in mesh.items()) or None


def _apart(what: str, before: object, after: object) -> str | None:
    if before is None or after is None or before == after:
        return None
    return f"{what} {before} before, {after} after"


def _parameters(before: Report, after: Report) -> list[str]:
    """Compare names, whole shapes and dtypes of the models, if both runs recorded them."""
    recorded = []
    for report in (before, after):
        frame = report.parameters.drop_duplicates("name")
        recorded.append(
            {
                str(row["name"]): (row["shape"], row["dtype"])
                for row in frame[["name", "shape", "dtype"]].to_dict("records")
            }
        )
    if not all(recorded):
        return []
    said = []
    only = sorted(set(recorded[0]) ^ set(recorded[1]))
    if only:
        said.append(f"{len(only):,} parameters are in one model only ({', '.join(only[:NAMED])})")
    both = [name for name in recorded[0] if name in recorded[1] and recorded[0][name] != recorded[1][name]]
    if both:
        was, is_now = (" ".join(map(str, models[both[0]])) for models in recorded)
        said.append(
            f"{len(both):,} parameters differ in shape or dtype ({both[0]}: {was} before, {is_now} after)"
        )
    return said
